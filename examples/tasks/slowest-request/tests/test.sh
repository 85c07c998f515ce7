#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }

[ "$(cat slowest.txt 2>/dev/null)" = /pay ] && earn 50
[ "$(cat mean.txt 2>/dev/null)" = 474 ] && earn 50

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
