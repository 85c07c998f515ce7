#!/bin/sh
set -e
echo apple >red.txt
echo sky >blue.txt
echo leaf >green.txt
