#!/bin/sh
set -e
awk -F, 'NR == 1 { print >"clean.csv"; next }
NF == 3 && $1 ~ /^[0-9]+$/ && $3 ~ /^[0-9]+$/ && !seen[$1]++ { print >"clean.csv"; next }
{ print >"bad.csv" }' people.csv
