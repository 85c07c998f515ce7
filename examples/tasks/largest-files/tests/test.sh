#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

[ "$(sed -n 1p largest.txt 2>/dev/null)" = b.bin ] && earn 40
[ "$(sed -n 2p largest.txt 2>/dev/null)" = d.bin ] && earn 30
same largest.txt 'b.bin\nd.bin\n' && earn 30

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
