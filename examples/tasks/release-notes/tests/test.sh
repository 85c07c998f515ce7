#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

same VERSION '1.5.0\n' && earn 30
head -n 1 NOTES.md 2>/dev/null | grep -qx '## 1.5.0' && earn 15
same NOTES.md '## 1.5.0\n- close the file after reading\n- sort by date\n- no crash on an empty list\n\n## 1.4.2\n- first public release\n' && earn 35
[ "$points" -ge 30 ] && [ -z "$(ls -A changes 2>/dev/null)" ] && earn 20

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
