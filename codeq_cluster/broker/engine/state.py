"""State: one shard on one node, as its engine and its leaderships share it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial

from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.engine.faults import alone
from codeq_cluster.broker.engine.group_commit import GATHER_S_MAX
from codeq_cluster.broker.engine.reads import Reads
from codeq_cluster.broker.engine.recounting import Recounted
from codeq_cluster.broker.engine.view import ShardView
from codeq_cluster.broker.engine.watching import Watches
from codeq_cluster.broker.ports import Clock, EntryTracing, Log, Observer, StateStore
from codeq_cluster.codec import keyspace
from codeq_cluster.codec.followed import followed_in
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.changes import Change
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.rules import LifetimeRules

log = logging.getLogger(__name__)

CLOCK_KEY = keyspace.meta("clock")
SEQ_KEY = keyspace.meta("seq")
EVERY: frozenset[Family] = frozenset()

# Pause between two reads of queues that a look left out, which take up to 2 ms each. When all
# shards of a node read at once, other work still gets half of the loop.
READ_ON_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Bounds of one engine.

    Attributes:
        operations_max: Operations decided and not released; beyond it callers are refused.
        bytes_max: The same in bytes of rows.
        lease_grace_ms: No lease ends within this time after the node began to lead.
        entry_bytes_max: Bytes of one entry of the log.
        gather_s: The longest time an entry waits for the next requests of callers just answered.
    """

    operations_max: int
    bytes_max: int
    lease_grace_ms: int
    entry_bytes_max: int
    gather_s: float = GATHER_S_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """What all engines of a node share.

    Attributes:
        shards: How many there are in the cluster.
        tracing: Makes spans of entries; None for none.
        reads: The line of the reads of many rows.
        awaited: Returns whether a caller on this node waits for an entry to be applied.
    """

    node_id: str
    shards: int
    rules: LifetimeRules
    limits: EngineLimits
    clock: Clock
    observer: Observer
    catalogue: Catalogue
    tracing: EntryTracing | None = None
    reads: Reads = field(default_factory=Reads)
    awaited: Callable[[], bool] = lambda: False


# A callback, and the families of rows that concern it; none for all.
_Listener = tuple[Callable[..., None], frozenset[Family]]


class Listeners:
    """The callbacks of one engine; one that fails stops neither the replica nor the others."""

    def __init__(self, shard: int, observer: Observer) -> None:
        self._shard = shard
        self._observer = observer
        self.on_leader: list[_Listener] = []
        self.on_reload: list[_Listener] = []
        self.on_rows: list[_Listener] = []

    def leader(self) -> None:
        """Tell that another leader is known, or none."""
        self._tell(self.on_leader)

    def reload(self) -> None:
        """Tell that the replica's state has been replaced."""
        self._tell(self.on_reload)

    def rows(self, rows: dict[bytes, bytes | None]) -> None:
        """Tell of an applied entry's rows."""
        followed, families = followed_in(rows)
        self._tell(self.on_rows, followed, of=families)

    def changed(self, changes: Sequence[Change]) -> None:
        """Tell the observer of durable changes."""
        # So often that no list of listeners is gone through for it.
        changed = self._observer.changed
        for change in changes:
            try:
                changed(change)
            except Exception:
                log.exception("the observer failed", extra={"shard": self._shard})
                self._observer.item_failed(Loop.LISTENERS)

    def _tell(
        self, listeners: Iterable[_Listener], *told: object, of: AbstractSet[Family] = EVERY
    ) -> None:
        for call, families in listeners:
            if families and families.isdisjoint(of):
                continue
            try:
                call(*told)
            except Exception:
                log.exception("a listener failed", extra={"shard": self._shard})
                self._observer.item_failed(Loop.LISTENERS)


class EngineState:
    """One shard on this node, led or not.

    Args:
        fraction: Returns random numbers in [0, 1).

    Attributes:
        leader: The id of the node that leads the shard, or None if this node knows of none.
        replica: The view of the applied state.
        view: The leader's view while this node leads; else the replica.
        listeners: Hear of leaders, rows and replaced states.
        watches: Of leases, while this node leads.
        clock_base_ms: What the clock of decisions is ahead of the monotonic clock, while this node
            leads.
        log: The shard's Raft group, once opened.
    """

    log: Log

    def __init__(
        self, setup: EngineSetup, *, shard: int, store: StateStore, fraction: Callable[[], float]
    ) -> None:
        self.setup = setup
        self.shard = shard
        self.store = store
        self._fraction = fraction
        self.leader: str | None = None
        self.listeners = Listeners(shard, setup.observer)
        self.watches = Watches(store)
        self._recounted = Recounted(
            store, shard=shard, failed=partial(setup.observer.item_failed, Loop.COUNTERS)
        )
        self.replica = self.view = self.new_view()
        self._reading: asyncio.Handle | None = None
        self._stopped = False
        self.clock_base_ms = setup.clock.wall_ms() - setup.clock.monotonic_ms()

    @property
    def now_ms(self) -> int:
        """Return the clock of decisions while this node leads, Unix milliseconds."""
        return self.clock_base_ms + self.setup.clock.monotonic_ms()

    def new_view(self) -> ShardView:
        """Return a view of the store as it is now."""
        return ShardView(
            self.store,
            shard=self.shard,
            fraction=self._fraction,
            catalogue=self.setup.catalogue,
            recounted=self._recounted,
            unreadable=partial(self.setup.observer.item_failed, Loop.BULK),
        )

    def reload(self) -> None:
        """Read the store again."""
        self.replica = self.view = self.new_view()

    def replaced(self) -> None:
        """Read the store again: it holds another state."""
        self._recounted.forget()
        self.reload()

    def opened(self, tenant: str, queue: str, _most: int = 1) -> None:
        """Look at a queue again: it may have become claimable."""
        self.view.opened(tenant, queue)

    def number(self, key: bytes) -> int:
        """Return the number in a row of the store; 0 if there is none."""
        return int.from_bytes(self.store.get(key) or b"", "big")

    def read_soon(self) -> None:
        """Schedule a read of the queues that the last look left out, some at a time."""
        if self._reading is None and not self._stopped:
            # Wait a little, so that other work on the loop gets its turn between two reads.
            self._reading = asyncio.get_running_loop().call_later(
                READ_ON_S, self._read_on, context=Context()
            )

    def stop(self) -> None:
        """Read no more."""
        self._stopped = True
        if self._reading is not None:
            self._reading.cancel()

    def _read_on(self) -> None:
        self._reading = None
        # A queue that fails is not unread any more, so the others get their turn.
        with alone(partial(self.setup.observer.item_failed, Loop.LISTENERS), shard=self.shard):
            self.view.read_on()
        if self.view.unread:
            self.read_soon()
