#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

[ -s hello.txt ] && earn 30
grep -qi 'hello' hello.txt 2>/dev/null && earn 20
same hello.txt 'Hello, world!\n' && earn 50

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
