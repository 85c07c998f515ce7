#!/bin/sh
set -e
awk '$2 == "ERROR" { e[$3]++; s[$3] } $2 == "WARN" { w[$3]++; s[$3] } END { for (n in s) print n, e[n] + 0, w[n] + 0 }' app.log | sort >report.txt
