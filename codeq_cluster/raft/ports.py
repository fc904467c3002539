"""Ports: what a Raft group needs from the world, declared by the group and provided by the node.

Nothing here knows asyncio, sockets or RocksDB, so the whole group runs unchanged under the
simulator's virtual clock, network and disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class Handle(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Forget the call; harmless when it has run."""


class Timers(Protocol):
    """Time and the event loop."""

    def now(self) -> float:
        """Return monotonic seconds."""

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Handle:
        """Run `call` on the loop after `delay_s` seconds."""

    def call_soon(self, call: Callable[[], None]) -> Handle:
        """Run `call` on the loop's next pass."""


class Flusher(Protocol):
    """Runs one blocking disk call at a time away from the loop."""

    def run(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run `work` elsewhere, then `done(error or None)` on the loop."""


class Link(Protocol):
    """Sends to peers; FIFO with loss, authenticated, bounded."""

    def send(self, peer: str, message: Mapping[str, object]) -> bool:
        """Queue one message; False when it was dropped, which is always safe."""


class LogStore(Protocol):
    """The journal's disk: ordered bytes, written atomically."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def scan(
        self, start: bytes, end: bytes, *, limit: int, bytes_max: int
    ) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows of start <= key < end, ascending, about `bytes_max` bytes."""

    def last(self, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the last row of start <= key < end."""

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        *,
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
        sync: bool,
    ) -> None:
        """Apply the range deletes, then the puts, all or none.

        Args:
            puts: n rows, any order.
            delete_ranges: half-open key ranges, deleted before the puts.
            sync: Return only when this and every earlier write of the shard is on disk.

        Raises:
            StorageFailed: Nothing was written; the node must stop.
        """


class StateMachine(Protocol):
    """What the log drives. Never raises for an entry's content: a raise stops the node."""

    @property
    def applied_index(self) -> int:
        """Index of the last entry in the state; 1 in a fresh state (the library's first entry)."""

    @property
    def digest(self) -> bytes:
        """Running hash over every applied entry, 16 bytes."""

    def apply(self, index: int, term: int, payload: bytes | None) -> None:
        """Apply the committed entry at `applied_index` + 1; None for the library's own."""


class EntrySource(Protocol):
    """Where a leader's entries come from: the broker's group commit."""

    def take(self) -> bytes | None:
        """Return the next entry's payload and hand it over for good, or None when there is none.

        Called at most a few times a turn, only while this node leads and has applied its own
        term's first entry.
        """

    def lead(self, term: int) -> None:
        """Note that this node leads `term` and its state holds all that was committed before."""

    def follow(self, leader: str | None) -> None:
        """Note that this node does not lead (any more), or that another leader is known now.

        Entries handed over and not applied by then may still be applied: their fate is unknown.
        """
