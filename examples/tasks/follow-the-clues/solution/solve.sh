#!/bin/sh
set -e
echo HERON >answer.txt
