#!/bin/sh
for f in `ls $1`
do
    cp $f $2/$f.bak
    n=$n+1
done
echo $n
