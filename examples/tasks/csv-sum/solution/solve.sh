#!/bin/sh
set -e
awk -F, 'NR > 1 { units += $3; revenue += $3 * $4 } END { print "units=" units; print "revenue_cents=" revenue }' sales.csv >total.txt
