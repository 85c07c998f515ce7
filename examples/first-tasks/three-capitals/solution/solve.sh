#!/bin/sh
set -e
echo Paris >france.txt
echo Rome >italy.txt
echo Oslo >norway.txt
