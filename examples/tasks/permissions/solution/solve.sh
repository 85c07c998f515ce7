#!/bin/sh
set -e
find bin -name '*.sh' -exec chmod u+x {} +
chmod 600 secret.key
