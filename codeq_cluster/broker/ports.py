"""Ports: interfaces of the node that the broker needs; the parts in `node/` provide them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from msgspec import Struct

from codeq_cluster.broker.questions import Question
from codeq_cluster.codec.entries import Entry
from codeq_cluster.core.changes import Change
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import Outcome

_A = TypeVar("_A")

# An entry of a shard's log: index, term, and the payload if the broker made it.
LogEntry = tuple[int, int, bytes | None]
# Takes each applied entry: index, term, payload, and its content unless another term decided it.
Tap = Callable[[int, int, bytes | None, Entry | None], None]


class StateStore(Protocol):
    """One shard's committed state: ordered rows, and the index of the log they reflect."""

    @property
    def applied_index(self) -> int:
        """Index of the last entry in the state; 1 when fresh."""

    @property
    def stored_index(self) -> int:
        """Index of the last entry that a restart would find in the state."""

    @property
    def seen_index(self) -> int:
        """Index of the last entry known to have been applied, at least `applied_index`."""

    @property
    def digest(self) -> bytes:
        """Running hash over every applied entry, 16 bytes."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return n values for n keys, None for a missing row."""

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows of start <= key < end, ascending."""

    def commit(self, mutations: Mapping[bytes, bytes | None], *, index: int, digest: bytes) -> None:
        """Write one entry's mutations with its index and digest, all or none; None deletes.

        Args:
            mutations: By key; net, see `codec.entries`.

        Raises:
            StorageFailed: Nothing was written; the node must stop.
        """


class Log(Protocol):
    """The shard's Raft group, as its engine sees it."""

    @property
    def level(self) -> int:
        """Return the level of the formats that the next entry may have."""

    def wake(self) -> None:
        """Tell the group that an entry is ready to be taken."""

    def barrier(self, done: Callable[[bool], None]) -> None:
        """Confirm that this node leads now, by a read index.

        `done(True)` is called once a quorum has confirmed the leadership after this call, and
        everything committed before it is applied. `done(False)` is called if leadership ends first.
        """

    @property
    def oldest_index(self) -> int:
        """Return the index of the oldest entry that `entries` may return."""

    def entries(self, start: int, *, upto: int, bytes_max: int) -> list[LogEntry]:
        """Return entries on this node's disk: about `bytes_max` of them, but at least one.

        Args:
            start: Index of the first; the list is empty if the log does not hold it.
            upto: Index of the last one wanted, which is committed.
            bytes_max: Of all together.

        Raises:
            StorageFailed: The disk refused, or a row is damaged.
        """


class Clock(Protocol):
    """The broker's sources of time."""

    def wall_ms(self) -> int:
        """Return Unix milliseconds; may jump."""

    def monotonic_ms(self) -> int:
        """Return milliseconds that never jump."""


class Observer(Protocol):
    """Receives the changes that became durable, on the node that led them."""

    def changed(self, change: Change) -> None:
        """Record that one task or item changed."""

    def committed(self, *, shard: int, mutations: int, commit_s: float) -> None:
        """Record that an entry of this leader was applied, `commit_s` after it was taken."""

    def item_failed(self, loop: Loop) -> None:
        """Record that a loop met something it fails at, and went on without it."""


class EntryTracing(Protocol):
    """Makes the spans of entries."""

    def commit(
        self, *, shard: int, term: int, ordinal: int, operations: int
    ) -> AbstractContextManager[object]:
        """Open a span for the block, which waits until the request's decisions are applied."""


class Head(Struct, frozen=True, array_like=True):
    """The first ready task of one shard; higher priority goes first, then lower seq."""

    shard: int
    priority: int
    seq: int


class Snapshot(Struct, frozen=True, array_like=True):
    """Rows read at one applied index.

    Attributes:
        values: One per key, None for a missing row.
    """

    applied_index: int
    values: list[bytes | None]


class Depth(Struct, frozen=True, array_like=True):
    """One queue of one shard: its committed counters, and when its oldest task became ready.

    Attributes:
        oldest_ready_ms: Unix milliseconds; 0 if nothing is ready.
        oldest_held_ms: Since when the first task waits for its key; 0 if none does.
        held_until_ms: Until when a worker holds the queue; 0 if none does.
    """

    queue: str
    ready: int
    delayed: int
    leased: int
    dead: int
    oldest_ready_ms: int
    held: int = 0
    oldest_held_ms: int = 0
    held_until_ms: int = 0


class Shards(Protocol):
    """Every shard of the cluster, wherever it is led; waits out elections until the deadline.

    Deadlines are monotonic seconds of this node. Every call raises NoLeader if no leader was found
    in time and nothing was done.
    """

    @property
    def count(self) -> int:
        """Return the number of shards."""

    @property
    def isolated(self) -> bool:
        """Return whether some shard is isolated here: waiting callers must ask its leader."""

    async def operate(
        self, shard: int, operations: Sequence[Operation], *, deadline: float
    ) -> list[Outcome]:
        """Run the operations in order, one outcome each, all durable when it returns.

        Raises:
            OutcomeUnknown: Some may have taken effect, and the deadline passed, or one was refused
                when it was sent again.
            Overloaded: The shard's queue is full; nothing was done.
        """

    async def read(self, shard: int, keys: Sequence[bytes], *, deadline: float) -> Snapshot:
        """Return rows as of now, linearizably."""

    async def heads(self, tenant: str, queues: tuple[str, ...], *, deadline: float) -> list[Head]:
        """Return the first ready task of every shard that has one, as its leader sees it."""

    async def depths(self, tenant: str, queue: str = "", *, deadline: float) -> list[Depth]:
        """Return every queue of the tenant, or the one named, shard by shard."""

    async def ask(self, shard: int, question: Question[_A], *, deadline: float) -> _A:
        """Return a leader's answer as of now; raises Overloaded if too many wait there already."""

    def local(self, shard: int) -> LocalShard:
        """Return this node's replica."""


class LocalShard(Protocol):
    """A replica of one shard on this node; its answers may be behind the leader's.

    Attributes:
        tap: Gets every entry while somebody watches; else None.
    """

    tap: Tap | None

    @property
    def applied_index(self) -> int:
        """Return the index of the last entry in the state."""

    @property
    def oldest_index(self) -> int:
        """Return the index of the oldest entry that `entries` may return."""

    def entries(self, start: int, *, upto: int, bytes_max: int) -> list[LogEntry]:
        """Return entries of the log, as `Log.entries` does."""

    @property
    def leads(self) -> bool:
        """Return whether this node decides for the shard."""

    @property
    def leader(self) -> str | None:
        """Return the id of the node that leads the shard, or None if this node knows of none."""

    @property
    def level(self) -> int:
        """Return the level of the formats in use; the leader's is no lower."""

    def ready(self, tenant: str, queue: str) -> int:
        """Return how many tasks of a queue are ready, as far as this node knows."""

    def head(self, tenant: str, queues: tuple[str, ...]) -> Head | None:
        """Return the first ready task known here."""

    def stale(self, keys: Sequence[bytes]) -> Snapshot:
        """Return rows from the local store."""


class ReadinessCheck(Protocol):
    """Returns the reasons why the node is not ready."""

    def __call__(self, *, in_full: bool) -> list[str]:
        """Return the reasons, empty if the node is ready; in full they name directories."""
