#!/bin/sh
set -e
cat ballots-north.txt ballots-south.txt | tr 'A-Z' 'a-z' | sed 's/^ *//; s/ *$//' >all.tmp
grep . all.tmp | sort | uniq -c | sort -k1,1nr -k2,2 | awk '{ print $2, $1 }' >result.txt
echo "invalid $(grep -c '^$' all.tmp)" >>result.txt
sed -n '1s/ .*//p' result.txt >winner.txt
rm all.tmp
