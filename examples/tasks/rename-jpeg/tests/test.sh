#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }

for name in beach 'city at night' tree; do
    [ -s "photos/$name.jpg" ] && [ ! -e "photos/$name.jpeg" ] && earn 25
done
[ "$points" = 75 ] && [ "$(cat photos/beach.jpg)" = beach ] && [ -s photos/notes.txt ] && [ "$(cat photos/old.jpg)" = old ] && earn 25

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
