#!/bin/sh
# Sends the same hundred orders, three of them poison, to the three pools of poison.toml, waits until nothing more changes, and shows
# what became of them. Needs a cluster that `pando` finds (`pando dev`), and `pando` in the PATH.
set -eu
here=$(dirname "$0")

pando apply "$here/poison.toml" --wait
for pool in once thrice endless; do
  seq 1 100 | sed 's/^\(17\|50\|83\)$/poison &/; s/^[0-9]/order &/' | pando send "poison/$pool" --lines -
done

# Waits until so many messages of a pool are done (or dead), at most 60 s.
wait_for() {
  for _ in $(seq 1 300); do
    pando mailbox "poison/$1" --output json | grep -q "\"$2\": $3," && return
    sleep 0.2
  done
  echo "run.sh: poison/$1 has not $3 messages $2 within a minute; pando mailbox poison/$1 says what it waits for" >&2
  exit 1
}
for pool in once thrice endless; do wait_for $pool done 97; done
wait_for once dead 3
wait_for thrice dead 3

pando mailbox poison
pando dead-letters ls poison/thrice
