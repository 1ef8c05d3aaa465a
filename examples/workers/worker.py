#!/usr/bin/env python3
"""A worker in Python, with nothing but the standard library.

It acts on the first word of a payload: "kill" (SIGKILL to itself), "fail", "reject"; anything else it replies to.
"""

import json
import os
import signal
import socket

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # "stop" comes first, and this one finishes what it has.
node = socket.socket(socket.AF_UNIX)
node.connect(os.environ["PANDO_SOCKET"])


def say(**line):
    node.sendall(json.dumps(line).encode() + b"\n")


def handle(message):
    order = message.get("payload", "")
    word = order.split(" ")[0]
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "fail":
        return {"type": "failed", "error": "it does not work out"}
    if word == "reject":
        return {"type": "failed", "error": "nobody can do this", "retry": False}
    return {"type": "done", "reply": "handled " + order}


say(type="ready", starts=True, prefetch=16)
for line in node.makefile("rb"):
    message = json.loads(line)
    if message["type"] == "stop":
        break  # What is not settled goes back by itself.
    if message["type"] == "error":
        raise SystemExit(message["error"])
    say(type="started", id=message["id"])
    say(id=message["id"], **handle(message))
