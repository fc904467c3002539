"""Ports: what a Raft group needs from its surroundings, which the node provides.

Nothing here depends on asyncio, sockets or RocksDB, so the whole group runs unchanged under the
simulator's virtual clock, network and disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol


class Handle(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Forget the call; does nothing once it has run."""


class Timers(Protocol):
    """Time and the event loop."""

    def now(self) -> float:
        """Return monotonic seconds."""

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Handle:
        """Run `call` on the loop after `delay_s` seconds."""

    def call_soon(self, call: Callable[[], None]) -> object:
        """Run `call` on the loop's next pass."""


class Beat:
    """The instants at which the groups of one node send heartbeats: one frame carries them all."""

    def __init__(self) -> None:
        self._next = float("-inf")
        self._set_by: object = None

    def after(self, now: float, period_s: float, group: object) -> float:
        """Return when a group that beats now beats next: with another group, or in a period.

        Args:
            now: Monotonic seconds.
            period_s: Seconds from one heartbeat to the next, at most.
            group: Stands for the group.
        """
        if self._set_by is group or not now < self._next <= now + period_s:
            self._set_by, self._next = group, now + period_s
        return self._next


class RestingPlace(Protocol):
    """Beats for the groups of a node that rest."""

    def enter(self, shard: int) -> None:
        """Beat for a group that this node leads, for as long as it rests."""


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

        `done` is never called before this returns. After an error the content of the disk is
        unknown. One write at a time.

        Args:
            puts: n rows, any order.
            delete_ranges: half-open key ranges, deleted before the puts.
            done: Takes the error, or None when this and every earlier write is durable.
        """

    def forget(
        self,
        delete_ranges: Sequence[tuple[bytes, bytes]],
        puts: Sequence[tuple[bytes, bytes]],
    ) -> None:
        """Replace rows that nobody needs, all or none, at some later time.

        Reads see the replacement at once. After a crash it may not have happened.
        """


class StateMachine(Protocol):
    """The state that the log drives. An exception from it stops the node, whatever the entry."""

    @property
    def applied_index(self) -> int:
        """Return the last entry's index; 1 in a fresh state, which holds the library's entry."""

    @property
    def stored_index(self) -> int:
        """Return the last entry that a restart would find in the state, at most `applied_index`.

        The log keeps the entries after it.
        """

    @property
    def seen_index(self) -> int:
        """Return the last entry known to have been applied, at least `applied_index`.

        It can be higher after a crash. Entries up to it are certainly committed, so they are
        applied at once.
        """

    @property
    def digest(self) -> bytes:
        """Return the running hash over every applied entry, 16 bytes."""

    @property
    def awaited(self) -> bool:
        """Return whether a caller on this node waits for entries to be applied here."""

    def apply(self, index: int, term: int, payload: bytes | None) -> None:
        """Apply the committed entry `applied_index` + 1; the library's own have no payload."""


class EntrySource(Protocol):
    """The source of a leader's entries: the broker's group commit."""

    def take(self) -> bytes | None:
        """Return the next entry's payload, which the group then owns, or None when there is none.

        Called at most a few times a turn, only while this node leads and has applied its own term's
        first entry.
        """

    def lead(self, term: int) -> None:
        """Note that this node leads `term` and has applied everything committed before it."""

    def follow(self, leader: str | None) -> None:
        """Note that this node does not lead, or no longer leads, and which leader is known now.

        Entries taken before and not yet applied may still be applied: their outcome is unknown.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything around one group; every port calls back on the group's loop.

    Attributes:
        store: Where the journal lives.
        writer: Makes the journal's rows durable.
        machine: Applies the committed entries.
        source: Where entries come from while this node leads.
        random: For election timeouts.
        beat: When heartbeats are due; shared by the groups of a node.
        rest: Shared by them too; None if each sends all its heartbeats itself.
    """

    store: LogStore
    writer: LogWriter
    machine: StateMachine
    source: EntrySource
    link: Link
    timers: Timers
    random: Random
    beat: Beat = field(default_factory=Beat)
    rest: RestingPlace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The reports of a group to the node around it.

    Attributes:
        on_fatal: Called once when the replica must stop; no turn follows.
        on_behind: Called repeatedly while the leader no longer has the entries this node needs.
        on_diverged: Called repeatedly, with the first entry at which this replica's state differs
            from the majority's, until a snapshot has replaced the state.
        on_storage_failed: Called when the disk refused and the group has paused itself. `resume`
            may follow, on a store that was reopened. Without it, a failed disk is fatal.
        on_members: Called when the membership has changed.
    """

    on_fatal: Callable[[BaseException], None]
    on_behind: Callable[[], None] = lambda: None
    on_diverged: Callable[[int], None] = lambda _index: None
    on_storage_failed: Callable[[BaseException], None] | None = None
    on_members: Callable[[], None] = lambda: None
