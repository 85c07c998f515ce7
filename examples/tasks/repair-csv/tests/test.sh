#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
same() { printf '%b' "$2" | cmp -s - "$1"; }                # file, text it must have to the byte

[ "$(head -n 1 clean.csv 2>/dev/null)" = 'id,name,age' ] && earn 10
for row in '1,Ada,36' '5,Eve,29' '6,Finn,51'; do
    grep -qxF "$row" clean.csv 2>/dev/null && [ "$(grep -c '' clean.csv)" -lt 9 ] && earn 10
done
same clean.csv 'id,name,age\n1,Ada,36\n5,Eve,29\n6,Finn,51\n' && earn 30
same bad.csv '2,Bob\nx3,Cleo,22\n4,Dan,forty\n1,Ada again,37\n7,Gus,33,extra\n' && earn 30

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
