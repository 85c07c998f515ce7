#!/bin/sh
set -e
[ "$(ls photos | LC_ALL=C sort | tr '\n' ' ')" = "2023-11-14.txt 2024-01-03-2.txt 2024-01-03.txt " ]
grep -qx snow photos/2024-01-03.txt
grep -qx 'more snow' photos/2024-01-03-2.txt
grep -qx rain photos/2023-11-14.txt
