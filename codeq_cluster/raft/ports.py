"""Ports: what a Raft group needs from the world, declared by the group and provided by the node.

Nothing here knows asyncio, sockets or RocksDB, so the whole group runs unchanged under the
simulator's virtual clock, network and disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class Link(Protocol):
    """Sends to peers; FIFO with loss, authenticated, bounded."""

    def send(self, peer: str, message: bytes) -> bool:
        """Queue one packed message; False when it was dropped, which is always safe."""


class LogStore(Protocol):
    """The journal's rows: ordered bytes, as they were last written."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def scan(
        self, start: bytes, end: bytes, *, limit: int, bytes_max: int
    ) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows of start <= key < end, ascending, about `bytes_max` bytes."""


class LogWriter(Protocol):
    """Makes the journal's rows durable."""

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        delete_ranges: Sequence[tuple[bytes, bytes]],
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Delete the ranges, put the rows, all or none; then call `done` on the loop.

        Never calls `done` before it returns. An error says that what the disk holds is unknown.
        One write at a time.

        Args:
            puts: n rows, any order.
            delete_ranges: half-open key ranges, deleted before the puts.
            done: Takes what failed, or None when this and every earlier write is durable.
        """

    def forget(
        self,
        delete_ranges: Sequence[tuple[bytes, bytes]],
        puts: Sequence[tuple[bytes, bytes]],
    ) -> None:
        """Delete rows that nobody needs, and put what stands for them, all or none, at some time.

        Reads see it at once. After a crash it may not have happened.
        """


class StateMachine(Protocol):
    """What the log drives. Never raises for an entry's content: a raise stops the node."""

    @property
    def applied_index(self) -> int:
        """Index of the last entry in the state; 1 in a fresh state (the library's first entry)."""

    @property
    def stored_index(self) -> int:
        """Index of the last entry that a restart would find in the state, at most `applied_index`.

        The log keeps what follows it.
        """

    @property
    def seen_index(self) -> int:
        """Index of the last entry that is known to have been applied, at least `applied_index`.

        Beyond it after a crash: so much is committed for certain, and is applied at once.
        """

    @property
    def digest(self) -> bytes:
        """Running hash over every applied entry, 16 bytes."""

    @property
    def awaited(self) -> bool:
        """Tell whether somebody on this node waits for entries to be applied here."""

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
