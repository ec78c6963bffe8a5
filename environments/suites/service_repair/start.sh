#!/bin/sh
# Starts the app: refuses while another one holds a lock, then runs the steps in order.
cd "${0%/*}" || exit 1
app=${PWD##*/}

for lock in run/*.lock; do
  case $lock in
    run/keep.lock | 'run/*.lock') ;;
    *) echo "start: $app/$lock is held"; exit 1 ;;
  esac
done

last=0 before=
while read -r number step; do
  if [ "$number" -lt "$last" ]; then echo "start: $app/steps: $step after $before"; exit 1; fi
  last=$number before=$step
done < steps

echo "start: $app is up"
