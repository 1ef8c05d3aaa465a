#!/bin/sh
# Kills the node process of the container that this runs in, as a crash would: docker-compose exec n2 examples/kill-node.sh
# The launcher (PID 1) and the guard live on for a moment: long enough to report that everything the node ran is gone.
set -eu
for process in /proc/[0-9]*; do
  command=$(tr '\0' ' ' 2>/dev/null <"$process/cmdline") || continue
  parent=$(sed -n 's/^PPid:[[:space:]]*//p' "$process/status" 2>/dev/null) || continue
  case $command in
    "pando-node run "* | */"pando-node run "*) ;;
    *) continue ;;
  esac
  [ "$parent" = 1 ] || continue
  kill -9 "${process#/proc/}"
  echo "killed the node process, pid ${process#/proc/}"
  exit 0
done
echo "kill-node.sh: no process 'pando-node run' below PID 1 here: run it inside the container of a node that is up" >&2
exit 1
