#!/bin/sh
set -e
grep ' ERROR ' app.log >errors.txt
grep -c '' errors.txt >count.txt
