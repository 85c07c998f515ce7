#!/bin/sh
name = $1
if [ -z $name ]; then
    echo "usage: greet.sh NAME"
    exit 1
fi
echo "Hello, $Name!"
