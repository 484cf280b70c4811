#!/bin/sh
# A command that takes its time. Arguments: a mark to be found by, and the file that says it is up.
export IB_MARK="$1"
: >"$2"
sleep 30
