"""Hostile: a tenant that attacks the nodes while the workload's tenant works."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache
from typing import ClassVar

from codeq_cluster.codec.arrivals import Arrivals, encode_arrivals
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.items import Subscription, Topic
from codeq_cluster.core.task import State, Task
from jepsen_lite.db import HOSTILE_TENANT, HOSTILE_TOKEN, HTTP_PORT, LINK_PORT, Db
from jepsen_lite.history import HOSTILE
from jepsen_lite.nemesis import Links, Nemesis, PlannedFault
from tests.harness.arsenal import TO_LINK, Loot, loot
from tests.harness.arsenal import arsenal as attacks_of
from tests.harness.attacks import API, Attack, Target, attacking, request

# Attacks at once, and the connections of one, on all nodes together. With this, a run stays below
# the usual 1024 open files of a process.
AT_ONCE = 2
CONNECTIONS_MAX = 300
_OPENED_AT_ONCE = 10  # At each node, in a tenth of a second.
_QUEUES_MAX = 300
_UPLOADS = 30_000
_EVENT_TYPES = 300_000
_DOOMED = "doomed"
# Servers that never answer; each port is a host of its own to the nodes.
_RECEIVER_PORTS = (9100, 9101, 9102, 9103)
IMPORT = f"{API}/admin/import?backup=20260131T123000000Z-5f0c4a2e&tenant={HOSTILE_TENANT}"


class Hostile(Nemesis):
    """A tenant attacks one node or a majority from an address of its own, in two ways at once."""

    name = HOSTILE
    target = "tenant"
    lasts_s = 13.0
    # So small that a few hundred connections would use them up, if a tenant had no share of them.
    settings: ClassVar[Mapping[str, object]] = {
        "limits": {
            "connectionsMax": 180,
            "waitersMax": 80,
            "unauthenticatedBytesMax": 2**20,
            "headerTimeoutMs": 2000,
            "queuesMax": _QUEUES_MAX,
        },
        "webhooks": {"concurrency": 8},
    }

    def __init__(self, db: Db, links: Links) -> None:
        super().__init__(db, links)
        self._turn: list[str] = []
        self._seed = 0.0
        self._burst = AsyncExitStack()
        self._reached: list[Mapping[Target, int]] = []

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose nodes and attacks; every attack has its turn before one has two."""
        _, names = await self.some(rng, ("one", "majority"))
        if len(self._turn) < AT_ONCE:
            self._turn += rng.sample(ATTACKS, len(ATTACKS))
        chosen = [self._turn.pop(0) for _ in range(AT_ONCE)]
        self._seed = rng.random()
        detail = ", ".join(chosen)
        return PlannedFault(nodes=tuple(names), detail=detail, hold_s=rng.uniform(5, 8))

    async def begin(self, planned: PlannedFault) -> int:
        """Begin the attacks."""
        source = self.db.network.stranger
        looted = await loot(self.db.urls[planned.nodes[0]], HOSTILE_TOKEN)
        every = arsenal(random.Random(self._seed), receiver=source, looted=looted)
        for port in _RECEIVER_PORTS:
            # The kernel takes connections, and nobody takes them from it.
            listening = socket.create_server((source, port), backlog=CONNECTIONS_MAX)
            self._burst.enter_context(listening)
        for name in planned.detail.split(", "):
            attack = shared(every[name], len(planned.nodes))
            entered = attacking(attack, self._targets(planned.nodes, name), source=source)
            self._reached.append(await self._burst.enter_async_context(entered))
        return 0

    async def end(self, planned: PlannedFault) -> int:
        """End them."""
        await self._burst.aclose()
        struck = self.struck(planned)
        self._reached = []
        return struck

    def struck(self, planned: PlannedFault) -> int:
        """Return how many nodes have answered or ended something of each attack so far."""
        hosts = [self.db.nodes[name].host for name in planned.nodes]
        told = [{host for (host, _), count in each.items() if count} for each in self._reached]
        return sum(all(host in each for each in told) for host in hosts)

    def _targets(self, names: Sequence[str], attack: str) -> list[Target]:
        port = LINK_PORT if attack == TO_LINK else HTTP_PORT
        return [(self.db.nodes[name].host, port) for name in names]


def arsenal(rng: random.Random, *, receiver: str, looted: Loot) -> dict[str, Attack]:
    """Return every attack by its name.

    Args:
        rng: Draws names, so that bursts do not repeat each other.
        receiver: Address of servers that never answer.
        looted: What the hostile token got.
    """
    made = attacks_of(
        rng,
        HOSTILE_TOKEN,
        looted,
        queues=2 * _QUEUES_MAX,
        receivers=[f"{receiver}:{port}" for port in _RECEIVER_PORTS],
    )
    return {each.name: each for each in (*made, *_imports())}


def shared(attack: Attack, nodes: int) -> Attack:
    """Return an attack on so many nodes within the bounds of a burst."""
    return replace(
        attack,
        # Slower than the least rate, so that nodes end such bodies within a burst.
        drip=attack.drip[:400],
        connections=max(1, min(attack.connections, CONNECTIONS_MAX) // nodes),
        opened_at_once=_OPENED_AT_ONCE,
    )


def _imports() -> Iterator[Attack]:
    for field, body in impossible().items():
        first = request("POST", IMPORT, HOSTILE_TOKEN, body)
        yield Attack(name=f"import: {field}", first=first, connections=1, opened_max=2)


@cache
def impossible() -> dict[str, bytes]:
    """Return imports of records that no route could have made, by the field that is wrong."""
    topic = Topic(tenant=HOSTILE_TENANT, id=_DOOMED, name=_DOOMED, dead_letter="a/b")
    task = Task(
        id="many-uploads",
        tenant=HOSTILE_TENANT,
        command=_DOOMED,
        priority=5,
        max_attempts=1,
        created_ms=1,
        updated_ms=1,
        state=State.READY,
        seq=1 << 20,
        ready_ms=1,
        uploads=tuple(f"u{n}" for n in range(_UPLOADS)),
        upload_bytes=(0,) * _UPLOADS,
    )
    subscription = Subscription(
        tenant=HOSTILE_TENANT,
        id="many-types",
        worker=HOSTILE_TENANT,
        callback_url="https://example.com/",
        event_types=tuple(f"t{n}" for n in range(_EVENT_TYPES)),
        ttl_ms=60_000,
        expires_ms=2**42,
    )
    return {
        "dead_letter": encode_arrivals(Arrivals(items=(topic,))),
        "uploads": encode_arrivals(Arrivals(tasks=(Arrival(task=task, payload="1"),))),
        "event_types": encode_arrivals(Arrivals(items=(subscription,))),
    }


ATTACKS = tuple(arsenal(random.Random(0), receiver="", looted=Loot()))
