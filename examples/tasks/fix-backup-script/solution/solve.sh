#!/bin/sh
set -e
cat >backup.sh <<'END'
#!/bin/sh
mkdir -p "$2"
count=0
for file in "$1"/*; do
    [ -f "$file" ] || continue
    cp "$file" "$2/${file##*/}.bak"
    count=$((count + 1))
done
echo "$count"
END
