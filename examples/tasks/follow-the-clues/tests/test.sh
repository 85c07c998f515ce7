#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

[ -s answer.txt ] && earn 10
grep -q HERON answer.txt 2>/dev/null && ! grep -q RAVEN answer.txt && earn 40
same answer.txt 'HERON\n' && earn 50

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
