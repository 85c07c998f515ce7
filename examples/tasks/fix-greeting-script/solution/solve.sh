#!/bin/sh
set -e
cat >greet.sh <<'END'
#!/bin/sh
name=$1
if [ -z "$name" ]; then
    echo "usage: greet.sh NAME" >&2
    exit 2
fi
echo "Hello, $name!"
END
