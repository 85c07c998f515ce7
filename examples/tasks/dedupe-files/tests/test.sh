#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

for name in c e f; do
    [ ! -e "pool/$name.txt" ] && [ -s pool/a.txt ] && [ -s pool/b.txt ] && [ -s pool/d.txt ] && earn 20
done
same deleted.txt 'c.txt\ne.txt\nf.txt\n' && earn 40

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
