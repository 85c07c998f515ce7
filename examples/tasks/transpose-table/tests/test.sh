#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

for line in 'name\tage\tcity' 'ann\t31\tOslo' 'bob\t27\tRome' 'cat\t45\tLima'; do
    grep -qxF "$(printf '%b' "$line")" transposed.tsv 2>/dev/null && earn 15
done
same transposed.tsv 'name\tage\tcity\nann\t31\tOslo\nbob\t27\tRome\ncat\t45\tLima\n' && earn 40

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
