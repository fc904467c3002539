"""Ports: what the broker needs from the rest of the node, which `node.py` provides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

from codeq_cluster.broker.questions import Answer, Question
from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import Outcome


class StateStore(Protocol):
    """One shard's committed state: ordered bytes, and how far the log is in it."""

    @property
    def applied_index(self) -> int:
        """Index of the last entry in the state; 1 when fresh."""

    @property
    def stored_index(self) -> int:
        """Index of the last entry that a restart would find in the state."""

    @property
    def seen_index(self) -> int:
        """Index of the last entry that is known to have been applied, at least `applied_index`."""

    @property
    def digest(self) -> bytes:
        """Running hash over every applied entry, 16 bytes."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return n values for n keys, None where there is none."""

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows of start <= key < end, ascending."""

    def commit(self, mutations: Mapping[bytes, bytes | None], *, index: int, digest: bytes) -> None:
        """Write one entry's mutations with its index and digest, all or none; None deletes.

        Raises:
            StorageFailed: Nothing was written; the node must stop.
        """


class Log(Protocol):
    """The shard's Raft group, as its engine sees it."""

    @property
    def level(self) -> int:
        """Return the level of the formats that the next entry may have."""

    def wake(self) -> None:
        """Tell the group that there is something to take."""

    def barrier(self, done: Callable[[bool], None]) -> None:
        """Confirm that this node leads now.

        `done(True)` comes once a quorum has confirmed it after this call and everything committed
        before the call is applied; `done(False)` when leadership ends first.
        """


class Clock(Protocol):
    """Time as the broker stamps it."""

    def wall_ms(self) -> int:
        """Return Unix milliseconds; may jump."""

    def monotonic_ms(self) -> int:
        """Return milliseconds that never jump."""


class Observer(Protocol):
    """Hears what became durable, on the node that led it."""

    def changed(self, change: TaskChange) -> None:
        """One task changed."""

    def committed(self, *, shard: int, mutations: int, commit_s: float) -> None:
        """One entry of this leader was applied, so long after it was handed over."""


class Tracing(Protocol):
    """Makes the spans of entries."""

    def commit(
        self, *, shard: int, term: int, ordinal: int, operations: int
    ) -> AbstractContextManager[object]:
        """Wait within the block until what was decided for the current request is applied."""


class Head(Struct, frozen=True, array_like=True):
    """The first ready task of one shard; the larger priority, then the smaller seq, goes first."""

    shard: int
    priority: int
    seq: int


class Snapshot(Struct, frozen=True, array_like=True):
    """Rows read at one applied index.

    Attributes:
        values: One a key, None where there is none.
    """

    applied_index: int
    values: list[bytes | None]


class Depth(Struct, frozen=True, array_like=True):
    """One queue of one shard: its committed counters, and since when its oldest task waits.

    Attributes:
        oldest_ready_ms: Unix milliseconds; 0 when nothing is ready.
    """

    queue: str
    ready: int
    delayed: int
    leased: int
    dead: int
    oldest_ready_ms: int


class Shards(Protocol):
    """Every shard of the cluster, wherever it is led; waits out elections until the deadline.

    Deadlines are monotonic seconds of this node. Every call raises NoLeader when no leader was
    found in time and nothing was done.
    """

    @property
    def count(self) -> int:
        """Return the number of shards."""

    @property
    def deaf(self) -> bool:
        """Tell whether this node hears nothing of some shard: who waits has to ask its leader."""

    async def operate(
        self, shard: int, operations: Sequence[Operation], *, deadline: float
    ) -> list[Outcome]:
        """Run the operations in order, one outcome each, all durable when it returns.

        Raises:
            OutcomeUnknown: The deadline passed and some may have taken effect.
            Overloaded: The shard's queue is full; nothing was done.
        """

    async def read(self, shard: int, keys: Sequence[bytes], *, deadline: float) -> Snapshot:
        """Read rows as of now, linearizably."""

    async def heads(self, tenant: str, queues: tuple[str, ...], *, deadline: float) -> list[Head]:
        """Return the first ready task of every shard that has one, as its leader sees it."""

    async def depths(self, tenant: str, queue: str = "", *, deadline: float) -> list[Depth]:
        """Return every queue of the tenant, or the one named, shard by shard."""

    async def ask(self, shard: int, question: Question, *, deadline: float) -> Answer:
        """Ask a shard's leader, as of now.

        Raises:
            Overloaded: Too many wait there already.
        """

    def local(self, shard: int) -> LocalShard:
        """Return this node's replica."""


class LocalShard(Protocol):
    """A replica of one shard on this node; its answers may be behind the leader's."""

    @property
    def leads(self) -> bool:
        """Return whether this node decides for the shard."""

    def ready(self, tenant: str, queue: str) -> int:
        """Return how many tasks of a queue are ready, as far as is known here."""

    def head(self, tenant: str, queues: tuple[str, ...]) -> Head | None:
        """Return the first ready task known here."""

    def stale(self, keys: Sequence[bytes]) -> Snapshot:
        """Read rows from the local store."""


class Missing(Protocol):
    """Asked for what keeps the node from being ready."""

    def __call__(self, *, in_full: bool) -> list[str]:
        """Return it, empty when the node is ready; in full it names directories."""
