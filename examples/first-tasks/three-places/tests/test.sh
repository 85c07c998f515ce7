#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
file() {                                                    # file, its only line: 30 points, a third for each step
    [ -s "$1" ] && earn 10
    grep -qi "$2" "$1" 2>/dev/null && earn 10
    printf '%s\n' "$2" | cmp -s - "$1" && earn 10
}

file one.txt first
file two.txt second
file three.txt third
[ "$points" -eq 90 ] && earn 10

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
