#!/bin/sh
# Like plain.sh, with two children in a session of their own whose parent has ended.
export IB_MARK="$1"
setsid sh -c 'sleep 30 & sleep 30 & : >"$0"' "$2" &
sleep 30
wait
