"""Simulated disk: ordered bytes that a crash cuts back to what was synced, or a bit more."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

from codeq_cluster.errors import StorageFailed
from codeq_cluster.raft.ports import Timers

Work = Callable[[], None]
Done = Callable[[BaseException | None], None]
_REFUSED_IS_THERE = 0.5  # The chance that a refused write is stored after all.
_Batch = tuple[Sequence[tuple[bytes, bytes]], Sequence[tuple[bytes, bytes]], Sequence[bytes], bool]


class SimDisk:
    """One node's disk for one shard; outlives the node's crashes.

    The first shard's disk has the node's write-ahead log too.

    Every write is one record of a write-ahead log: a sync makes it and all earlier ones durable. A
    crash keeps all durable records and perhaps some later ones, in order.

    Attributes:
        full: Every write is refused. Only `crash` decides whether a refused write was stored, and
            no later sync repairs it.
        segments: Of the write-ahead log.
        has_wal: The write-ahead log has writes that the rows lack.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._durable: dict[bytes, bytes] = {}
        self._volatile: list[_Batch] = []
        self.full = False
        self.segments = SimSegments(lambda: self.full)
        self.has_wal = False
        self._applied = SimApplied()

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
        """Apply the deletes, then the puts; durable with all earlier writes if `sync`.

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
        """Replace all rows durably and atomically, like a directory renamed over another."""
        self._rows = dict(rows)
        self._keys = sorted(self._rows)
        self._durable = dict(self._rows)
        self._volatile.clear()

    def lose_power(self, random: Random) -> None:
        """Lose a random part of the unsynced writes, in the rows and in the write-ahead log."""
        self.segments.crash(random)
        self._applied.crash(random)
        self.crash(random)

    def crash(self, random: Random) -> None:
        """Lose a random part of the unsynced rows, the youngest first."""
        self._harden(random.randint(0, len(self._volatile)), refused_too=True)
        self._volatile.clear()
        self._rows = dict(self._durable)
        self._keys = sorted(self._rows)

    def lose_process(self, random: Random) -> None:
        """Decide for each refused write whether the next process finds it."""
        if not any(refused for *_, refused in self._volatile):
            return
        kept: list[_Batch] = []
        for puts, delete_ranges, deletes, refused in self._volatile:
            if refused and random.random() >= _REFUSED_IS_THERE:
                break  # Writes behind a missing one are missing too.
            kept.append((puts, delete_ranges, deletes, False))
        durable, self._volatile = dict(self._durable), list(kept)
        self._harden(len(kept), refused_too=False)
        self._rows, self._durable, self._volatile = self._durable, durable, kept
        self._keys = sorted(self._rows)

    @property
    def applied(self) -> SimApplied:
        """Return the record of the shards' applied indexes."""
        return self._applied

    def note_wal(self, *, begun: bool) -> None:
        """Note whether the write-ahead log has writes that the rows lack."""
        self.has_wal = begun

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


class SimApplied:
    """The applied indexes of a node's shards; a power cut may bring earlier ones back."""

    def __init__(self) -> None:
        self._indexes: dict[int, int] = {}

    def note(self, shard: int, index: int) -> None:
        """Note that the state has reached an entry."""
        self._indexes[shard] = index

    def of(self, shard: int) -> int:
        """Return the last index noted; 0 if it is unknown."""
        return self._indexes.get(shard, 0)

    def crash(self, random: Random) -> None:
        """Go back to an earlier index, or not."""
        self._indexes = {
            shard: random.choice((index, random.randint(0, index)))
            for shard, index in self._indexes.items()
        }


class _SimFile:
    """A file that a crash cuts back to its synced bytes and a part of the others."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)
        self.durable = bytes(content)
        self.unsynced: list[tuple[int, bytes]] = []


class SimSegment:
    """One open segment; implements `wal.SegmentFile`."""

    def __init__(self, file: _SimFile, is_full: Callable[[], bool]) -> None:
        self._file = file
        self._is_full = is_full

    def write(self, offset: int, content: bytes) -> None:
        """Write bytes that a crash may take."""
        _put(self._file.content, offset, content)
        self._file.unsynced.append((offset, content))
        self._refuse_when_full()

    def sync(self) -> None:
        """Make what was written durable."""
        self._refuse_when_full()
        self._file.durable = bytes(self._file.content)
        self._file.unsynced.clear()

    def fill(self, offset: int, size: int) -> None:
        """Write zeros."""
        self.write(offset, bytes(size))

    def close(self) -> None:
        """Do nothing."""

    def _refuse_when_full(self) -> None:
        if self._is_full():
            raise OSError("No space left on device")


class SimSegments:
    """A node's directory of segments; outlives the node's crashes; implements `wal.SegmentDisk`.

    Args:
        is_full: Returns whether every write is refused.
    """

    def __init__(self, is_full: Callable[[], bool]) -> None:
        self._is_full = is_full
        self._files: dict[str, _SimFile] = {}

    def names(self) -> list[str]:
        """Return the names of the segments, ascending."""
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        """Return a segment's content."""
        return bytes(self._files[name].content)

    def create(self, name: str, head: bytes, size: int) -> tuple[SimSegment, int]:
        """Create a durable segment that begins with `head`."""
        if self._is_full():
            raise OSError("No space left on device")
        self._files[name] = _SimFile(head + bytes(size - len(head)))
        return SimSegment(self._files[name], self._is_full), size

    def delete(self, name: str) -> None:
        """Delete a segment, if it exists."""
        self._files.pop(name, None)

    def tear(self, name: str, *, keep: float) -> None:
        """Cut a segment, synced or not, to such a share of its bytes."""
        file = self._files[name]
        content = bytes(file.content).rstrip(b"\x00")
        file.content = bytearray(content[: int(len(content) * keep)])

    def crash(self, random: Random) -> None:
        """Lose a random part of the unsynced bytes, the youngest first, torn anywhere."""
        for file in self._files.values():
            content = bytearray(file.durable)
            kept = random.randint(0, len(file.unsynced))
            for offset, piece in file.unsynced[:kept]:
                _put(content, offset, piece)
            if kept < len(file.unsynced):
                offset, piece = file.unsynced[kept]
                _put(content, offset, piece[: random.randint(0, len(piece))])
            file.content = content
            file.durable = bytes(content)
            file.unsynced.clear()


def _put(content: bytearray, offset: int, piece: bytes) -> None:
    if len(content) < offset + len(piece):
        content.extend(bytes(offset + len(piece) - len(content)))
    content[offset : offset + len(piece)] = piece


class SimExecutor:
    """Runs a node's waits for the disk after a random latency, one at a time, in order.

    Args:
        timers: The node's.
        latency: Draws the seconds a wait takes.
    """

    def __init__(self, timers: Timers, latency: Callable[[], float]) -> None:
        self._timers = timers
        self._latency = latency
        self._waiting: deque[tuple[Work, Done]] = deque()

    def run(self, work: Work, done: Done) -> None:
        """Do `work` when its latency is over, then call `done`."""
        self._waiting.append((work, done))
        if len(self._waiting) == 1:
            self._timers.call_later(self._latency(), self._finish)

    def stop(self, within_s: float) -> bool:
        """Finish the current wait without calling `done`."""
        del within_s
        self._reach()
        return True

    def _finish(self) -> None:
        if not self._waiting:
            return
        work, done = self._waiting[0]
        error: BaseException | None = None
        try:
            work()
        except Exception as failure:  # noqa: BLE001 - handed on, as the real one does
            error = failure
        self._waiting.popleft()
        if self._waiting:
            self._timers.call_later(self._latency(), self._finish)
        done(error)

    def crash(self, random: Random) -> None:
        """Let the current wait have reached the disk, or not."""
        if self._waiting and random.random() < 0.5:
            self._reach()
        self._waiting.clear()

    def _reach(self) -> None:
        # Nobody is called any more if the disk refuses.
        with suppress(StorageFailed, OSError):
            if self._waiting:
                self._waiting[0][0]()
        self._waiting.clear()
