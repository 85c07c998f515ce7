#!/bin/sh
set -e
echo table >kitchen.txt
echo bench >garden.txt
echo bicycle >garage.txt
