#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }

work=$(mktemp -d)
mkdir "$work/in" "$work/in/folder"
echo x >"$work/in/x"
echo y >"$work/in/y z"
# A script that hangs loses: it has five seconds, and its output is a file, which waits for nobody.
timeout -k 1 5 sh backup.sh "$work/in" "$work/out" >"$work/said" 2>/dev/null </dev/null
output=$(cat "$work/said")
[ "$(cat "$work/out/x.bak" 2>/dev/null)" = x ] && earn 30
[ "$(cat "$work/out/y z.bak" 2>/dev/null)" = y ] && earn 30
[ "$output" = 2 ] && earn 25
[ "$points" = 85 ] && [ ! -e "$work/out/folder.bak" ] && [ "$(ls -A "$work/in")" = "$(printf 'folder\nx\ny z')" ] && earn 15
rm -rf "$work"

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
