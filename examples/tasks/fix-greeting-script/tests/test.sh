#!/bin/sh
# Grades the preserved workspace (the current directory); the reward, in hundredths, is the sum of what is earned.
points=0
earn() { points=$((points + $1)); }

[ "$(sh greet.sh Ada 2>/dev/null)" = 'Hello, Ada!' ] && earn 30
[ "$(sh greet.sh 'Ada Byron' 2>/dev/null)" = 'Hello, Ada Byron!' ] && earn 20
[ "$(sh greet.sh Bob 2>/dev/null)" = 'Hello, Bob!' ] && { # only a script that works at all can earn the rest
    output=$(sh greet.sh 2>/dev/null)
    [ $? = 2 ] && earn 25
    [ -z "$output" ] && [ "$(sh greet.sh 2>&1)" = 'usage: greet.sh NAME' ] && earn 25
}

printf '%d.%02d\n' $((points / 100)) $((points % 100)) >"$REWARD_FILE"
