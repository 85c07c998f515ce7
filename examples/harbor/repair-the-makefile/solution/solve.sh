#!/bin/sh
cp "${0%/*}/build.sh" build.sh
