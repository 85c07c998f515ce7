#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

[ -s errors.txt ] && ! grep -qv ' ERROR ' errors.txt && earn 20
[ "$(cat count.txt 2>/dev/null)" = 4 ] && earn 30
same errors.txt '10:00:04 ERROR db connection refused\n10:01:12 ERROR db connection refused\n10:02:31 ERROR mail no such host\n10:04:02 ERROR db deadlock\n' && earn 50

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
