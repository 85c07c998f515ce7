#!/bin/sh
set -e
cd photos
for name in $(ls | sed 's/[^0-9]//g' | sort -n); do
    date=$(awk -F. 'NR == 1 { printf "%d-%02d-%02d", $3, $2, $1 }' "IMG_$name.txt")
    target="$date.txt"
    [ -e "$target" ] && target="$date-2.txt"
    mv "IMG_$name.txt" "$target"
done
