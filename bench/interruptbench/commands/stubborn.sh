#!/bin/sh
# Like plain.sh, and deaf to SIGINT and SIGTERM, with everything that it starts.
export IB_MARK="$1"
trap '' INT TERM
: >"$2"
while :; do
    sleep 0.2
done
