#!/bin/sh
set -e
rm -rf dist
mkdir dist
(cd src && find . -name '*.txt' -type f) | sed 's|^\./||' | LC_ALL=C sort >dist/MANIFEST
while IFS= read -r name; do
    case $name in */*) mkdir -p "dist/${name%/*}" ;; esac
    sed 's/[[:blank:]]*$//' "src/$name" >"dist/$name"
done <dist/MANIFEST
