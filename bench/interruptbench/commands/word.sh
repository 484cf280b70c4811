#!/bin/sh
# Says a word after some seconds. Arguments: seconds, up, word.
: >"$2"
sleep "$1"
echo "LATE-$3"
