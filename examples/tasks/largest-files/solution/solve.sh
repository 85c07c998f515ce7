#!/bin/sh
set -e
ls -S data | head -n 2 >largest.txt
