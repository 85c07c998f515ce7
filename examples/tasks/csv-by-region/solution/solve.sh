#!/bin/sh
set -e
awk -F, 'NR > 1 { sum[$1] += $2 } END { for (region in sum) print region, sum[region] }' orders.csv | sort -k2,2nr >by_region.txt
