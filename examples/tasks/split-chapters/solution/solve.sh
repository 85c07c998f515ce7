#!/bin/sh
set -e
mkdir -p chapters
awk '/^== .* ==$/ {
    n = sprintf("%02d", ++count)
    title = substr($0, 4, length($0) - 6)
    print n, title >"chapters/index.txt"
    next
}
{ print >("chapters/" n ".txt") }' book.txt
