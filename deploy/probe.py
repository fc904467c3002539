"""Probe: a cluster seen from outside, with nothing but the standard library.

    probe.py free-ports N              print N free ports
    probe.py cycle URL...              create, claim and finish a task through each URL
    probe.py caught-up URL...          wait until all have applied the same entries

Tokens come from PRODUCER_TOKEN and WORKER_TOKEN.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import Any

# An election and the restart of a container are over long before.
WITHIN_S = 60.0


def call(url: str, token: str, body: object = None) -> tuple[int, Any]:
    """Send one request, POST when there is a body; return the status and the decoded answer."""
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            content, status = response.read(), response.status
    except urllib.error.HTTPError as error:
        content, status = error.read(), error.code
    return status, json.loads(content) if content else None


def require(expected: int, answer: tuple[int, Any], what: str) -> Any:
    """Return the body of an answer with the expected status, or end the program."""
    status, body = answer
    if status != expected:
        sys.exit(f"probe: {what}: HTTP {status} instead of {expected}: {body}")
    return body


def cycle(url: str) -> None:
    """Take one task through its life."""
    producer, worker = os.environ["PRODUCER_TOKEN"], os.environ["WORKER_TOKEN"]
    # A command of its own: a task of another run cannot be claimed in this one's place.
    command = f"probe-{time.time_ns()}"
    tasks = f"{url}/v1/codeq/tasks"
    task = require(202, call(tasks, producer, {"command": command, "payload": {"n": 1}}), "create")
    claim = {"commands": [command], "waitSeconds": 10}
    held = require(200, call(f"{tasks}/claim", worker, claim), "claim")
    if held["id"] != task["id"]:
        sys.exit(f"probe: claimed {held['id']}, created {task['id']}")
    done = {"status": "COMPLETED", "result": {"n": 2}}
    require(200, call(f"{tasks}/{task['id']}/result", worker, done), "result")
    read = require(200, call(f"{tasks}/{task['id']}/result", producer), "read of the result")
    if read["result"]["result"] != {"n": 2}:
        sys.exit(f"probe: the result came back as {read['result']}")
    print(f"probe: {url} took {task['id']} through its life")


def applied(url: str) -> dict[int, tuple[int, str]] | None:
    """Return each shard's applied index and digest on one node, or None when it does not answer."""
    try:
        status, body = call(f"{url}/v1/codeq/raft/status", os.environ["PRODUCER_TOKEN"])
    except OSError:
        return None
    if status != 200:
        return None
    return {g["shardIdx"]: (g["appliedIndex"], g["digest"]) for g in body["groups"]}


def caught_up(urls: list[str]) -> None:
    """Wait until every node has applied the same entries, or end the program."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        states = [applied(url) for url in urls]
        if states[0] and all(state == states[0] for state in states):
            print(f"probe: {len(urls)} nodes agree: {states[0]}")
            return
        time.sleep(0.2)
    sys.exit(f"probe: the nodes differ after {WITHIN_S:g} s: {states}")


def free_ports(count: int) -> None:
    """Print ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        print(*(one.getsockname()[1] for one in sockets))


def main(verb: str, *arguments: str) -> None:
    """Run one verb."""
    match verb:
        case "free-ports":
            free_ports(int(arguments[0]))
        case "cycle":
            for url in arguments:
                cycle(url)
        case "caught-up":
            caught_up(list(arguments))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["help"]))
