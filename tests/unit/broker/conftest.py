"""One shard's engine over a store in memory, with a clock and a log under the test's control."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest_asyncio

from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.engine.state import EngineLimits, EngineSetup
from codeq_cluster.core.changes import Change, TaskChange
from codeq_cluster.core.items import Mode
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Claim, Submit, Subscribe
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.routing.router import Router, RouterCalls
from tests.fakes.memory_store import MemoryShard
from tests.fakes.one_node_log import OneNodeLog
from tests.unit.no_peers import NoPeers

START_MS = 1_700_000_000_000
GRACE_MS = 2_000

F = TypeVar("F", bound=Router)


class TestClock:
    """A clock that stands still until the test moves it, wall and monotonic time separately."""

    __test__ = False

    def __init__(self) -> None:
        self.wall = START_MS
        self.monotonic = 5_000

    def wall_ms(self) -> int:
        """Return the wall clock."""
        return self.wall

    def monotonic_ms(self) -> int:
        """Return the monotonic clock."""
        return self.monotonic

    def pass_ms(self, ms: int) -> None:
        """Move both clocks."""
        self.wall += ms
        self.monotonic += ms


@dataclass
class Seen:
    """An observer that records its events."""

    changes: list[TaskChange] = field(default_factory=list)
    entries: list[tuple[int, int]] = field(default_factory=list)
    failures: list[Loop] = field(default_factory=list)

    def changed(self, change: Change) -> None:
        """Record it if it is of a task."""
        if isinstance(change, TaskChange):
            self.changes.append(change)

    def committed(self, *, shard: int, mutations: int, commit_s: float) -> None:
        """Record it."""
        self.entries.append((shard, mutations))

    def item_failed(self, loop: Loop) -> None:
        """Record it."""
        self.failures.append(loop)


@dataclass
class Shard:
    """One shard and all the parts that a test of its engine needs."""

    store: MemoryShard
    clock: TestClock
    seen: Seen
    engine: Engine
    log: OneNodeLog


def make_shard(
    store: MemoryShard,
    clock: TestClock,
    *,
    number: int = 0,
    shards: int = 1,
    operations_max: int = 1000,
    bytes_max: int = 2**24,
    entry_bytes_max: int = 3 * 2**20,
    catalogue: Catalogue | None = None,
    rules: LifetimeRules | None = None,
) -> Shard:
    """Return an engine over a store, which may hold earlier state."""
    seen = Seen()
    catalogue = catalogue or Catalogue([store.state])
    logs: list[OneNodeLog] = []

    def open_log(engine: Engine) -> OneNodeLog:
        logs.append(OneNodeLog(engine, engine))
        return logs[-1]

    setup = EngineSetup(
        node_id="n1",
        shards=shards,
        rules=rules or LifetimeRules(),
        limits=EngineLimits(
            operations_max=operations_max,
            bytes_max=bytes_max,
            lease_grace_ms=GRACE_MS,
            entry_bytes_max=entry_bytes_max,
            gather_s=0,  # A decision becomes an entry at once, so that the tests need not wait.
        ),
        clock=clock,
        observer=seen,
        catalogue=catalogue,
    )
    engine = Engine(
        setup,
        shard=number,
        store=store.state,
        fraction=random.Random(7).random,
        open_log=open_log,
    )
    catalogue.reload()
    engine.on_rows(catalogue.rows)
    return Shard(store, clock, seen, engine, logs[-1])


def shards_of(
    *shards: Shard,
    calls: RouterCalls | None = None,
    is_out: Callable[[int], bool] = lambda _shard: False,
    kind: type[F] = Router,
) -> F:
    """Return the shards of a node that sends calls to its peers and knows nothing else of them."""
    engines = [shard.engine for shard in shards]
    leaders = Leaders(engines)
    leaders.ask_peers(while_out=is_out, peers=tuple)
    return kind(
        node_id="n1",
        engines=engines,
        leaders=leaders,
        calls=calls or NoPeers(),
        on_answered=lambda method, seconds: None,
    )


@pytest_asyncio.fixture
async def shard() -> AsyncIterator[Shard]:
    """Yield an engine that leads."""
    made = make_shard(MemoryShard(), TestClock())
    made.log.term = 4
    made.log.lead()
    yield made
    made.engine.stop()
    await asyncio.sleep(0)  # A timer that has fired just now ends on its loop.


def create(task_id: str, **fields: object) -> Create:
    """Return a create of a small task."""
    defaults: dict[str, object] = {"tenant": "acme", "command": "render", "payload": "{}"}
    return Create(id=task_id, **(defaults | fields))  # type: ignore[arg-type]


def claim(request: str, **fields: object) -> Claim:
    """Return a claim of one task for a minute."""
    defaults: dict[str, object] = {
        "tenant": "acme",
        "worker": "ann",
        "commands": ("render",),
        "count": 1,
        "lease_ms": 60_000,
    }
    return Claim(request=request, **(defaults | fields))  # type: ignore[arg-type]


def submit(task_id: str, **fields: object) -> Submit:
    """Return a result of a task, named after the task."""
    defaults: dict[str, object] = {
        "request": f"s-{task_id}",
        "tenant": "acme",
        "worker": "ann",
        "status": "COMPLETED",
    }
    return Submit(id=task_id, **(defaults | fields))  # type: ignore[arg-type]


def subscribe(*, ttl_ms: int = 3_600_000) -> Subscribe:
    """Return a subscription to the notices of one queue, by default for an hour."""
    return Subscribe(
        id="s1",
        tenant="acme",
        worker="ann",
        callback_url="http://swift/s1",
        event_types=("render",),
        mode=Mode.FANOUT,
        group_id="",
        ttl_ms=ttl_ms,
        min_interval_ms=0,
    )
