#!/bin/sh
# Like plain.sh, and leaves a line in a file each time that it is run. Arguments: mark, up, file.
export IB_MARK="$1"
echo done >>"$3"
: >"$2"
sleep 30
