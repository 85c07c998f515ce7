#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }
# A script that hangs loses what it is asked for: it has five seconds, and its output is a file, which waits for nobody.
out=$(mktemp)
greet() { timeout -k 1 5 sh greet.sh "$@" >"$out" 2>/dev/null </dev/null; }
said() { [ "$(cat "$out")" = "$1" ]; }

greet Ada
said 'Hello, Ada!' && earn 30
greet 'Ada Byron'
said 'Hello, Ada Byron!' && earn 20
greet Bob
said 'Hello, Bob!' && { # only a script that works at all can earn the rest
    greet
    [ $? = 2 ] && earn 25
    if said ''; then
        timeout -k 1 5 sh greet.sh >"$out" 2>&1 </dev/null
        said 'usage: greet.sh NAME' && earn 25
    fi
}
rm -f "$out"

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
