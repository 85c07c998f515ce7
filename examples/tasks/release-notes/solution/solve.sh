#!/bin/sh
set -e
cat changes/* >all.tmp
IFS=. read -r major minor patch <VERSION
if grep -q '^breaking:' all.tmp; then
    next=$((major + 1)).0.0
elif grep -q '^feature:' all.tmp; then
    next=$major.$((minor + 1)).0
else
    next=$major.$minor.$((patch + 1))
fi
echo "$next" >VERSION
{ echo "## $next"; sed 's/^[a-z]*: /- /' all.tmp; echo; cat NOTES.md; } >new.tmp
mv new.tmp NOTES.md
rm all.tmp changes/*
