#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

for line in 'api 0 2' 'db 3 0' 'mail 1 0'; do
    grep -qx "$line" report.txt 2>/dev/null && earn 20
done
same report.txt 'api 0 2\ndb 3 0\nmail 1 0\n' && earn 40

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
