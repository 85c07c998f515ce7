#!/bin/bash
sh "$TEST_DIR/names.sh"
