#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }

[ -n "$(find bin/run.sh -perm -100 2>/dev/null)" ] && earn 30
[ -n "$(find bin/tools/clean.sh -perm -100 2>/dev/null)" ] && earn 30
[ -n "$(find secret.key -perm 600 2>/dev/null)" ] && earn 30
[ "$points" = 90 ] && [ -f bin/README ] && [ -z "$(find bin/README -perm /111)" ] && earn 10

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
