#!/bin/sh
set -e
for file in inbox/*; do
    ending=${file##*.}
    mkdir -p "$ending"
    mv "$file" "$ending/"
done
