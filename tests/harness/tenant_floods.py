"""Tenant floods: the attacks of a tenant with valid tokens that use what tasks do together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.harness.attacks import API, Attack, posts, request

_GRAPH = 200  # The most tasks of one, and with so many parents each about the most edges.
_PARENTS = 5
_MEMBERS = 1000  # The most that one request adds to a group.
_BATCH = 100
_LEASES = 1000  # The most of one request.
_SHARERS = 64  # The most queues of one limit.
_PIPELINED = 20
_KEYED, _TAGGED, _SHARED = "keyed", "tagged", "shared"
_LIST = f"{API}/admin/tasks?tag=all:x&tag=never:y&limit=500"
_RARE = {"cron": "30 2 29 2 *", "zone": "Europe/Berlin", "count": 100}


def tenant_floods(rng: random.Random, token: str, leased: str) -> Iterator[Attack]:
    """Yield the attacks.

    Args:
        rng: Draws names.
        token: A producer's, a worker's and an admin's of one tenant.
        leased: The id of a task that the token holds.
    """
    name = f"n{rng.randrange(10**9)}"
    yield Attack(name="graphs", first=posts("/tasks/graph", token, [_graph()]), connections=4)
    yield Attack(
        name="new keys",
        first=_topic(token, _KEYED, {"perKey": {"maxRunning": 1}})
        + posts("/tasks/batch", token, [_batch(_KEYED, key=f"{name}-{{n}}")] * _PIPELINED),
        connections=2,
        answers=1 + _PIPELINED,
    )
    claims = {"commands": [_KEYED], "waitSeconds": 3, "leaseSeconds": 1}
    yield Attack(
        name="claims of keys", first=posts("/tasks/claim", token, [claims]), connections=100
    )
    yield Attack(
        name="groups without end",
        first=posts("/groups", token, [{"tasks": [_task("member")] * _MEMBERS}]),
        connections=2,
    )
    signal, beat = f"/tasks/{leased}/signals/{name}", f"/tasks/{leased}/heartbeat"
    yield Attack(
        name="signals",
        first=posts(signal, token, [{"payload": "x" * 30_000}] * _PIPELINED),
        connections=4,
        answers=_PIPELINED,
    )
    said = {"log": ["x" * 1000] * 20, "checkpoint": "x" * 30_000, "progress": {"done": 1}}
    yield Attack(
        name="heartbeats",
        first=posts(beat, token, [said] * _PIPELINED),
        connections=4,
        answers=_PIPELINED,
    )
    held = {"id": leased, "log": ["x"] * 20}
    yield Attack(
        name="log lines",
        first=posts("/tasks/batch/heartbeats", token, [{"leases": [held] * _LEASES}]),
        connections=4,
    )
    tagged = posts("/tasks/batch", token, [_batch(_TAGGED, tags={"all": "x"})])
    yield Attack(
        name="tag lists",
        first=tagged + request("GET", _LIST, token) * _PIPELINED,
        connections=4,
        answers=1 + _PIPELINED,
    )
    select = {"select": {"tag": ["all:x"]}}
    jobs = [{**select, "action": "tag", "set": {"job": f"{name}-{n}"}} for n in range(_PIPELINED)]
    counts = [{**select, "action": "cancel", "dryRun": True}] * _PIPELINED
    yield Attack(
        name="bulk jobs",
        first=tagged + posts("/admin/bulk", token, [*jobs, *counts]),
        connections=2,
        answers=1 + 2 * _PIPELINED,
    )
    yield Attack(
        name="previews",
        first=posts("/admin/schedules/preview", token, [_RARE] * _PIPELINED),
        connections=4,
        answers=_PIPELINED,
    )
    yield Attack(
        name="waits for events",
        first=request("GET", f"{API}/events?tag=all:x&waitSeconds=3", token) + tagged,
        connections=100,
        answers=2,
    )
    unique = {"key": name, "on": "keepLast", "debounceSeconds": 5, "maxWaitSeconds": 60}
    yield Attack(
        name="debounces",
        first=posts("/tasks", token, [_task("bounced", unique=unique)] * _PIPELINED),
        connections=4,
        answers=_PIPELINED,
    )
    yield Attack(
        name="claims of a limit", first=_shared(token), connections=2, answers=3 + _SHARERS
    )


def _graph() -> Mapping[str, Any]:
    tasks = [
        _task("graph", ref=f"r{n}", dependsOn=[f"r{of}" for of in range(max(0, n - _PARENTS), n)])
        for n in range(_GRAPH)
    ]
    return {"tasks": tasks}


def _shared(token: str) -> bytes:
    """Return requests that make a limit of many queues, fill one and claim from all of them."""
    queues = [f"{_SHARED}-{n}" for n in range(_SHARERS)]
    rule = b'{"maxRunning":3}'
    made = request("PUT", f"{API}/admin/limits/{_SHARED}", token, rule)
    topics = b"".join(_topic(token, each, {"limit": _SHARED}) for each in queues)
    filled = posts("/tasks/batch", token, [_batch(queues[0])])
    return made + topics + filled + posts("/tasks/claim", token, [{"commands": queues}])


def _topic(token: str, name: str, flow: Mapping[str, Any]) -> bytes:
    body = posts(f"/admin/topics/{name}", token, [{"flow": flow}])
    return body.replace(b"POST", b"PUT", 1)


def _batch(command: str, *, key: str = "", **fields: object) -> Mapping[str, Any]:
    """Return so many creates; a key may have an `{n}`, for another one each."""
    keyed: Sequence[dict[str, object]] = [
        {"key": key.format(n=n)} if key else {} for n in range(_BATCH)
    ]
    return {"tasks": [_task(command, **fields, **each) for each in keyed]}


def _task(command: str, **fields: object) -> dict[str, object]:
    return {"command": command, "payload": {}, **fields}
