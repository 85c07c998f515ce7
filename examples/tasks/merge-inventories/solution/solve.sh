#!/bin/sh
set -e
sort stock.txt >a.tmp
sort prices.txt >b.tmp
join a.tmp b.tmp >merged.txt
join -v 1 a.tmp b.tmp | cut -d' ' -f1 >unpriced.txt
rm a.tmp b.tmp
