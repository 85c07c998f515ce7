#!/bin/sh
# One point for each line that is right and in its place, one for the winner.
points=0
line() { [ "$(sed -n "$1p" result.txt 2>/dev/null)" = "$2" ] && points=$((points + 1)); }
line 1 "ada 4"
line 2 "cleo 4"
line 3 "bob 3"
line 4 "invalid 2"
[ "$(cat winner.txt 2>/dev/null)" = "ada" ] && points=$((points + 1))
logs="${LOGS_DIR:-/logs}/verifier"
mkdir -p "$logs"
printf '0.%02d\n' $((points * 20)) | sed 's/^0\.100$/1.0/' >"$logs/reward.txt"
