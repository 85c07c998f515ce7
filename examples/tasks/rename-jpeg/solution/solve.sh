#!/bin/sh
set -e
for file in photos/*.jpeg; do mv "$file" "${file%.jpeg}.jpg"; done
