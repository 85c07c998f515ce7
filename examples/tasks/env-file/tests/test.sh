#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

for line in 'WEB_HOST=example.org' 'WEB_PORT=8080' 'DB_NAME=Orders' 'DB_USER=reader'; do
    grep -qx "$line" settings.env 2>/dev/null && earn 15
done
same settings.env 'WEB_HOST=example.org\nWEB_PORT=8080\nDB_NAME=Orders\nDB_USER=reader\n' && earn 40

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
