#!/bin/sh
set -e
cd pool
cksum * | sort -k1,1 -k2,2 -k3 | awk 'seen[$1, $2]++ { print $3 }' | sort >../deleted.txt
while read -r name; do rm "$name"; done <../deleted.txt
