#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

same chapters/01.txt 'It was early.\nNobody was up.\n' && earn 20
same chapters/02.txt 'The road was long.\n' && earn 20
same chapters/03.txt 'They slept.\nThe end.\n' && earn 20
same chapters/index.txt '01 The Start\n02 The Road\n03 The End\n' && earn 40

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
