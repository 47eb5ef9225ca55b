#!/usr/bin/env bash
# Runs one step of the set-up: step.sh NAME MESSAGE COMMAND...
# The screen gets the message and the seconds. What the command prints goes to var/set-up.log with
# the step's name before each line, because steps run at once; its end is shown when the step fails.
set -euo pipefail

name=$1 message=$2
shift 2
log=var/set-up.log
mkdir -p "${log%/*}"
echo "$message; log: $log"
status=0
# Ctrl-C must not take the log from an apt that is still ending.
{ date && "$@"; } 2>&1 | (trap '' HUP INT TERM && exec sed -u "s/^/$name: /" >> "$log") || status=$?
if [ "$status" != 0 ]; then
  echo "$name failed after $SECONDS s with status $status; the end of its output in $log:"
  sed -n "s/^$name: /  /p" "$log" | tail -n 20
  exit "$status"
fi >&2
echo "$name: done in $SECONDS s"
