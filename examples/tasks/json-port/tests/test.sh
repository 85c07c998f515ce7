#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

grep -q '"port": 9090,' config.json 2>/dev/null && earn 30
grep -q '"debug": false,' config.json 2>/dev/null && earn 30
same config.json '{\n  "name": "shop",\n  "port": 9090,\n  "debug": false,\n  "workers": 4\n}\n' && earn 40

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
