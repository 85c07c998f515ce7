#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte
sorted_same() { [ -f "$1" ] && [ "$(sort "$1")" = "$(printf '%b' "$2" | sort)" ]; } # the same lines in any order

[ -s sorted.txt ] && earn 20
[ -s sorted.txt ] && sort -c sorted.txt 2>/dev/null && earn 20
sorted_same sorted.txt 'Anna\nBen\nCarl\nLena\nMia\nOtto\n' && earn 20
same sorted.txt 'Anna\nBen\nCarl\nLena\nMia\nOtto\n' && same names.txt 'Mia\nOtto\nAnna\nMia\nLena\nBen\nOtto\nCarl\n' && earn 40

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
