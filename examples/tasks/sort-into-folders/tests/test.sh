#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }

for file in txt/a.txt csv/b.csv txt/c.txt md/d.md; do
    [ -s "$file" ] && [ ! -e "inbox/${file#*/}" ] && earn 20
done
[ "$points" = 80 ] && [ -d inbox ] && [ -z "$(ls -A inbox)" ] && earn 20

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
