#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

for line in 'src/lib/deep.py:1:TODO rename x' 'src/main.py:3:TODO read the file name from the command line' 'src/util.py:2:TODO write this' 'src/util.py:6:TODO remove'; do
    grep -qxF "$line" todo.txt 2>/dev/null && earn 15
done
same todo.txt 'src/lib/deep.py:1:TODO rename x\nsrc/main.py:3:TODO read the file name from the command line\nsrc/util.py:2:TODO write this\nsrc/util.py:6:TODO remove\n' && earn 40

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
