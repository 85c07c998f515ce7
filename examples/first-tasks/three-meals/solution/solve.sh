#!/bin/sh
set -e
echo bread >breakfast.txt
echo soup >lunch.txt
echo rice >dinner.txt
