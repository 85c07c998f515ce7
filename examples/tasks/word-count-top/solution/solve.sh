#!/bin/sh
set -e
tr -cs 'A-Za-z' '\n' <poem.txt | tr 'A-Z' 'a-z' | sort | uniq -c | sort -k1,1nr -k2 | head -n 3 | sed 's/^ *//' >top.txt
