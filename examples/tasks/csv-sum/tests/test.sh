#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }

[ -s total.txt ] && earn 10
grep -qx 'units=25' total.txt 2>/dev/null && earn 40
grep -qx 'revenue_cents=17848' total.txt 2>/dev/null && earn 50

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
