"""Probe: a cluster seen from outside, with nothing but the standard library.

    probe.py free-ports N              print N free ports
    probe.py cycle URL...              create, claim and finish a task through each URL
    probe.py caught-up URL...          wait until all have applied the same entries
    probe.py artifact WRITER READER    store a file through one URL, read it through the other
    probe.py callback HOOK HEARD URL   have a task of the URL call the webhook HOOK, and verify the
                                       signature of what the receiver tells at HEARD

Tokens come from PRODUCER_TOKEN, WORKER_TOKEN and ADMIN_TOKEN.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import Any

# Much longer than an election or the restart of a container.
WITHIN_S = 60.0
# An older signature may be a replayed one.
FRESH_S = 300
FILE_BYTES = 256 * 1024  # Larger than one read of a socket, so that the transfer takes several.


def send(
    url: str, token: str = "", *, content: bytes | None = None, method: str | None = None
) -> tuple[int, bytes]:
    """Send one request, POST when there is content; return the status and the answer."""
    request = urllib.request.Request(
        url,
        data=content,
        method=method,
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def call(url: str, token: str = "", body: object = None) -> tuple[int, Any]:
    """Send one request as JSON, POST when there is a body; return status and decoded answer."""
    encoded = None if body is None else json.dumps(body).encode()
    status, content = send(url, token, content=encoded)
    return status, json.loads(content) if content else None


def require(expected: int, answer: tuple[int, Any], what: str) -> Any:
    """Return the body of an answer with the expected status, or end the program."""
    status, body = answer
    if status != expected:
        sys.exit(f"probe: {what}: HTTP {status} instead of {expected}: {body}")
    return body


def begun(url: str, **fields: object) -> Any:
    """Create a task and lease it; return the lease."""
    # Each run has its own command, so that it cannot claim a task of another run.
    command = f"probe-{time.time_ns()}"
    tasks = f"{url}/v1/codeq/tasks"
    new = {"command": command, "payload": {"n": 1}, **fields}
    task = require(202, call(tasks, os.environ["PRODUCER_TOKEN"], new), "create")
    claim = {"commands": [command], "waitSeconds": 10}
    held = require(200, call(f"{tasks}/claim", os.environ["WORKER_TOKEN"], claim), "claim")
    if held["id"] != task["id"]:
        sys.exit(f"probe: claimed {held['id']}, created {task['id']}")
    return held


def finished(url: str, task_id: str, **fields: object) -> Any:
    """Finish a task; return its result as a producer reads it."""
    result = f"{url}/v1/codeq/tasks/{task_id}/result"
    done = {"status": "COMPLETED", "result": {"n": 2}, **fields}
    require(200, call(result, os.environ["WORKER_TOKEN"], done), "result")
    read = require(200, call(result, os.environ["PRODUCER_TOKEN"]), "read of the result")
    if read["result"]["result"] != {"n": 2}:
        sys.exit(f"probe: the result came back as {read['result']}")
    return read["result"]


def cycle(url: str) -> None:
    """Create, claim and finish one task."""
    held = begun(url)
    finished(url, held["id"])
    print(f"probe: {url} took {held['id']} through its life")


def artifact(writer: str, reader: str) -> None:
    """Store a file with a task's result through one node, and read it through another."""
    held = begun(writer)
    content = os.urandom(FILE_BYTES)
    at = f"{writer}/v1/codeq/tasks/{held['id']}/artifacts/report.bin"
    stored = send(at, os.environ["WORKER_TOKEN"], content=content, method="PUT")
    named = {"name": "report.bin", "url": json.loads(require(201, stored, "upload"))["url"]}
    [kept] = finished(writer, held["id"], artifacts=[named])["artifacts"]
    read = require(200, send(reader + kept["url"], os.environ["PRODUCER_TOKEN"]), "download")
    if read != content:
        sys.exit(f"probe: {len(content)} bytes were stored, {len(read)} others were read")
    print(f"probe: {reader} read {len(read)} bytes that {writer} stored")


def callback(hook: str, heard: str, url: str) -> None:
    """Wait for the callback of a task, and verify its signature as a receiver does.

    The tenant's admin gives the receiver its key.
    """
    keys = call(f"{url}/v1/codeq/admin/webhooks/keys", os.environ["ADMIN_TOKEN"])
    key = require(200, keys, "the webhook's keys")["keys"][0]["key"]
    held = begun(url, webhook=hook)
    finished(url, held["id"])
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        for each in require(200, call(heard), "what the receiver heard"):
            if json.loads(each["body"]).get("taskId") == held["id"]:
                verify(each["headers"], each["body"].encode(), key)
                print(f"probe: {url} had {held['id']} called back, and the signature verifies")
                return
        time.sleep(0.2)
    sys.exit(f"probe: no callback of {held['id']} within {WITHIN_S:g} s")


def verify(headers: dict[str, str], body: bytes, key: str) -> None:
    """End the program unless the body was signed with the key within the last minutes."""
    stamp = headers.get("X-CodeQ-Timestamp", "")
    given = headers.get("X-CodeQ-Signature", "")
    wanted = hmac.new(key.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(given, wanted):
        sys.exit(f"probe: the callback's signature does not verify: {headers}")
    if abs(time.time() - int(stamp)) > FRESH_S:
        sys.exit(f"probe: the callback was signed at {stamp}")


def applied(url: str) -> dict[int, tuple[int, str]] | None:
    """Return each shard's applied index and digest on one node, or None if it does not answer."""
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
    """Print ports that no process listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        print(*(one.getsockname()[1] for one in sockets))


def main(verb: str, *arguments: str) -> None:
    """Run one verb."""
    match verb, arguments:
        case "free-ports", (count,):
            free_ports(int(count))
        case "cycle", urls:
            for url in urls:
                cycle(url)
        case "caught-up", urls:
            caught_up(list(urls))
        case "artifact", (writer, reader):
            artifact(writer, reader)
        case "callback", (hook, heard, url):
            callback(hook, heard, url)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["help"]))
