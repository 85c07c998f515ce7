#!/bin/sh
set -e
echo warm >sun.txt
echo wet >rain.txt
echo cold >snow.txt
