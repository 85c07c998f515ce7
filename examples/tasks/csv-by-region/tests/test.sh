#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

for line in 'south 75' 'north 50' 'west 31' 'east 27'; do
    grep -qx "$line" by_region.txt 2>/dev/null && earn 15
done
same by_region.txt 'south 75\nnorth 50\nwest 31\neast 27\n' && earn 40

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
