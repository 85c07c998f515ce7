#!/bin/sh
set -e
sed -e 's/"port": 8080/"port": 9090/' -e 's/"debug": true/"debug": false/' config.json >new.json && mv new.json config.json
