#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

for line in '6 the' '4 rain' '3 '; do
    grep -q "^$line" top.txt 2>/dev/null && earn 20
done
same top.txt '6 the\n4 rain\n3 on\n' || same top.txt '6 the\n4 rain\n3 wind\n' && earn 40

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
