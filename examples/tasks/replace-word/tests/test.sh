#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

same docs/one.md 'The color of the sky.\nA colourful day.\n' && earn 40
same docs/deep/two.md 'No color, no color at all.\n' && earn 40
[ "$points" = 80 ] && same docs/raw.txt 'colour\n' && same docs/deep/three.md 'Nothing to do here.\n' && earn 20

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
