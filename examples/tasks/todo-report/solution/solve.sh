#!/bin/sh
set -e
grep -rn TODO src | sed 's/^\([^:]*:[0-9]*:\).*\(TODO.*\)$/\1\2/' | LC_ALL=C sort -t: -k1,1 -k2,2n >todo.txt
