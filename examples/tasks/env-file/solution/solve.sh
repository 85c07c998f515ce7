#!/bin/sh
set -e
awk -F' = ' '/^;/ || /^$/ { next }
/^\[/ { section = toupper(substr($0, 2, length($0) - 2)); next }
{ print section "_" toupper($1) "=" $2 }' settings.ini >settings.env
