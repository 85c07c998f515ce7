#!/bin/sh
set -e
sort -k2,2nr access.log | head -n 1 | cut -d' ' -f1 >slowest.txt
awk '{ sum += $2 } END { print int(sum / NR) }' access.log >mean.txt
