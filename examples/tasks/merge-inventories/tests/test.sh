#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

for line in 'bolt 40 15' 'nail 500 2' 'screw 120 4'; do
    grep -qx "$line" merged.txt 2>/dev/null && earn 10
done
same merged.txt 'bolt 40 15\nnail 500 2\nscrew 120 4\n' && earn 40
same unpriced.txt 'washer\n' && earn 30

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
