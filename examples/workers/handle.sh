#!/bin/sh
# Handles one message, for: pando work -- ./handle.sh
# The payload comes on standard input, the reply goes to standard output, and the exit code says the rest.
read -r word rest
case $word in
    reject) echo "nobody can do this" >&2; exit 65 ;;
    fail) echo "it does not work out" >&2; exit 75 ;;
    *) echo "handled $word $rest (attempt $PANDO_ATTEMPT of $PANDO_MESSAGE_ID)" ;;
esac
