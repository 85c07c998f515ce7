#!/bin/sh
set -e
awk -F'\t' '{ for (i = 1; i <= NF; i++) cell[i, NR] = $i; columns = NF }
END { for (i = 1; i <= columns; i++) for (j = 1; j <= NR; j++) printf "%s%s", cell[i, j], j < NR ? "\t" : "\n" }' table.tsv >transposed.tsv
