#!/bin/sh
mkdir dist
for file in `find src -name *.txt`; do
    cp $file dist/
done
ls dist > dist/MANIFEST
