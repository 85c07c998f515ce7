#!/bin/sh
set -e
echo first >one.txt
echo second >two.txt
echo third >three.txt
