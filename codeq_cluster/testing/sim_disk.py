"""Simulated disk: ordered bytes that a crash cuts back to what was synced, or a bit more."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

from codeq_cluster.errors import StorageFailed
from codeq_cluster.raft.ports import Timers

_Batch = tuple[Sequence[tuple[bytes, bytes]], Sequence[tuple[bytes, bytes]], Sequence[bytes], bool]


class SimDisk:
    """One node's store for one shard; outlives the node's crashes.

    Every write is one record of a write-ahead log: a sync makes it and all earlier ones durable, a
    crash keeps a prefix of the records that holds at least the durable ones.

    Attributes:
        full: Every write is refused; what came of a refused one is known after `crash` alone, and
            no later sync makes up for it.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._durable: dict[bytes, bytes] = {}
        self._volatile: list[_Batch] = []
        self.full = False

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        return self._rows.get(key)

    def scan(
        self, start: bytes, end: bytes, *, limit: int, bytes_max: int
    ) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows of start <= key < end, about `bytes_max` bytes."""
        rows: list[tuple[bytes, bytes]] = []
        total = 0
        for position in range(bisect_left(self._keys, start), len(self._keys)):
            key = self._keys[position]
            if key >= end or len(rows) >= limit or (rows and total >= bytes_max):
                break
            rows.append((key, self._rows[key]))
            total += len(self._rows[key])
        return rows

    def last(self, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the last row of start <= key < end."""
        position = bisect_left(self._keys, end) - 1
        if position < 0 or self._keys[position] < start:
            return None
        return self._keys[position], self._rows[self._keys[position]]

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        *,
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
        deletes: Sequence[bytes] = (),
        sync: bool,
    ) -> None:
        """Apply the deletes, then the puts; durable with all earlier writes when `sync`.

        Raises:
            StorageFailed: The disk is full.
        """
        for start, end in delete_ranges:
            low, high = bisect_left(self._keys, start), bisect_left(self._keys, end)
            for key in self._keys[low:high]:
                del self._rows[key]
            del self._keys[low:high]
        for key in deletes:
            if self._rows.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        for key, value in puts:
            if key not in self._rows:
                insort(self._keys, key)
            self._rows[key] = value
        self._volatile.append((puts, delete_ranges, deletes, self.full))
        if self.full:
            raise StorageFailed("no space left")
        if sync:
            self._harden(len(self._volatile), refused_too=False)

    def exchange(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Hold these rows and no others, durably and at once: a directory renamed over another."""
        self._rows = dict(rows)
        self._keys = sorted(self._rows)
        self._durable = dict(self._rows)
        self._volatile.clear()

    def crash(self, random: Random) -> None:
        """Lose a random part of what was not synced, the youngest first: a power cut."""
        self._harden(random.randint(0, len(self._volatile)), refused_too=True)
        self._volatile.clear()
        self._rows = dict(self._durable)
        self._keys = sorted(self._rows)

    def damage(self, key: bytes, change: Callable[[bytes], bytes | None]) -> None:
        """Change a row behind the node's back; None removes it."""
        value = change(self._rows[key])
        for rows in (self._rows, self._durable):
            if value is None:
                del rows[key]
            else:
                rows[key] = value
        self._keys = sorted(self._rows)

    def _harden(self, batches: int, *, refused_too: bool) -> None:
        for puts, delete_ranges, deletes, refused in self._volatile[:batches]:
            if refused and not refused_too:
                continue
            for start, end in delete_ranges:
                for key in [key for key in self._durable if start <= key < end]:
                    del self._durable[key]
            for key in deletes:
                self._durable.pop(key, None)
            self._durable.update(puts)
        del self._volatile[:batches]


class SimFlusher:
    """Runs a node's disk writes after a random latency, one at a time.

    Attributes:
        latency: Draws the seconds a write takes.
    """

    def __init__(self, timers: Timers, latency: Callable[[], float]) -> None:
        self._timers = timers
        self.latency = latency
        self._work: Callable[[], None] | None = None

    def run(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Do `work` when its latency is over, then call `done`."""
        assert self._work is None, "one flush at a time"
        self._work = work

        def finish() -> None:
            self._work = None
            try:
                work()
            except Exception as error:  # noqa: BLE001 - handed on, as the real one does
                done(error)
            else:
                done(None)

        self._timers.call_later(self.latency(), finish)

    def crash(self, random: Random) -> None:
        """Let the write under way have reached the disk, or not."""
        if self._work is not None and random.random() < 0.5:
            # Nobody hears of it any more when the disk refuses.
            with suppress(StorageFailed):
                self._work()
        self._work = None
