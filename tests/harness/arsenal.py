"""Arsenal: the attacks of one address and one tenant, for the benchmark and for jepsen-lite."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from tests.harness.attacks import API, Attack, posts, request
from tests.harness.http import HttpClient
from tests.harness.tenant_floods import tenant_floods

TO_LINK = "connections to the link"  # The attack whose targets are the ports of the link.
WAITS = 300  # Claims of one attack that wait at each node.

_BODY = 2**20
_REQUESTS = 40  # Sent in one piece.
_SCHEDULES = 500  # Of one connection.
_RUNS = 20  # Of each.
_LOG_IN = "/ui/api/session"
_DOOMED = "doomed"
_UPLOADED = "uploaded"
_PREPARED_WITHIN_S = 1.0


class Loot(msgspec.Struct, frozen=True):
    """What an attacker with a token has got from a node.

    Attributes:
        cookie: A session of the page.
        leased: The id of a task that it holds, so that it may upload artifacts.
    """

    cookie: str = "none"
    leased: str = "none"


async def loot(url: str, token: str) -> Loot:
    """Return what a node gives to a token; attacks with nothing are useless, as on a dead node."""
    create, claim = {"command": _UPLOADED, "payload": 1}, {"commands": [_UPLOADED]}
    try:
        async with HttpClient(timeout_s=_PREPARED_WITHIN_S) as http:
            said = await http.send("POST", url, _LOG_IN, body=msgspec.json.encode({"token": token}))
            for path, body in (("/tasks", create), ("/tasks/claim", claim)):
                answer = await http.send(
                    "POST", url, API + path, token=token, body=msgspec.json.encode(body)
                )
    except ConnectionError:
        return Loot()
    leased = answer.json["id"] if answer.status == 200 else "none"
    return Loot(said.headers.get("set-cookie", "none").partition(";")[0], leased)


def arsenal(
    rng: random.Random, token: str, loot: Loot, *, queues: int, receivers: Sequence[str]
) -> tuple[Attack, ...]:
    """Return the attacks.

    Args:
        rng: Draws names, so that bursts do not repeat each other.
        token: Of the tenant that attacks: a producer's, a worker's and an admin's.
        loot: What the token got.
        queues: New ones of one attack.
        receivers: Hosts and ports that never answer; without any there are no callbacks to them.
    """
    create = request("POST", f"{API}/tasks", token, length=_BODY)
    upload = request("PUT", f"{API}/tasks/{loot.leased}/artifacts/a", token, length=_BODY)
    wrong = [msgspec.json.encode({"token": f"wrong-{rng.random()}"}) for _ in range(_REQUESTS)]
    some, many = _in_new_queues(rng, token, _REQUESTS), _in_new_queues(rng, token, queues)
    head = b"GET /healthz HTTP/1.1\r\nHost: node\r\n"
    live = f"GET /ui/api/live?view=queues HTTP/1.1\r\nHost: node\r\nCookie: {loot.cookie}\r\n\r\n"
    return (
        Attack(name="idle bodies", first=create, connections=300),
        Attack(name="slow bodies", first=create, drip=b" " * 4096, connections=100),
        Attack(name="partial heads", first=head + b"X: " + b"y" * 8000, connections=1000),
        Attack(name="connections", first=b"", connections=4000),
        Attack(name="log-ins", first=request("POST", _LOG_IN, "", length=8000), connections=150),
        Attack(
            name="wrong tokens",
            first=b"".join(request("POST", _LOG_IN, "", body) for body in wrong),
            connections=20,
            answers=_REQUESTS,
        ),
        Attack(name="uploads", first=upload, drip=b" " * 400, connections=100),
        Attack(name=TO_LINK, first=b"", connections=150),
        Attack(name="half requests", first=some + some[:-3], connections=20, answers=2 * _REQUESTS),
        Attack(name="many queues", first=many, connections=1, answers=queues, opened_max=2),
        Attack(
            name="schedules",
            first=_every_second(rng, token),
            connections=1,
            answers=_SCHEDULES,
            opened_max=2,
        ),
        Attack(
            name="claim waits",
            first=posts("/tasks/claim", token, [{"commands": ["nothing"], "waitSeconds": 3}]),
            connections=WAITS,
        ),
        # A stream's head counts as its answer; a second one never comes, so it stays open.
        Attack(name="event streams", first=live.encode(), connections=150, answers=2),
        *tenant_floods(rng, token, loot.leased),
        *([_callbacks(rng, token, receivers)] if receivers else []),
    )


def _callbacks(rng: random.Random, token: str, receivers: Sequence[str]) -> Attack:
    hooks = [f"http://{each}/{rng.random()}" for each in receivers]
    subscribe = [{"callbackUrl": hook, "ttlSeconds": 60} for hook in hooks]
    # They die after a second, so that their callbacks are due.
    doomed = [
        _task(_DOOMED, n, webhook=hooks[n % len(hooks)], ttlSeconds=1) for n in range(_REQUESTS)
    ]
    return Attack(
        name="slow receivers",
        first=posts("/workers/subscriptions", token, subscribe) + posts("/tasks", token, doomed),
        connections=2,
        answers=len(subscribe) + _REQUESTS,
        opened_max=6,
    )


def _task(command: str, n: int, **fields: object) -> dict[str, object]:
    return {"command": command, "payload": {"n": n}, **fields}


def _every_second(rng: random.Random, token: str) -> bytes:
    """Return requests for schedules that all fire at each second, for some of these."""
    task = {"command": "fired", "payload": {}}
    plan = msgspec.json.encode({"every": "1s", "maxRuns": _RUNS, "overlap": "allow", "task": task})
    names = (f"s{rng.randrange(10**9)}" for _ in range(_SCHEDULES))
    return b"".join(request("PUT", f"{API}/admin/schedules/{name}", token, plan) for name in names)


def _in_new_queues(rng: random.Random, token: str, count: int) -> bytes:
    return posts("/tasks", token, [_task(f"q{rng.randrange(10**9)}", n) for n in range(count)])
