"""Simulated database: one shard's rows of log and state on a simulated disk."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from codeq_cluster.errors import StorageDamaged, StorageFailed
from codeq_cluster.storage.segments import Row
from tests.simulator.disk import SimDisk

_ROW = b"state/"
_END = b"state0"  # One past every key that starts with `state/`.
# Sorts before every row of a family, since their keys are never empty.
_HEAD_KEY = _ROW
_HEAD = struct.Struct(">Q16s")
_MARK = b"wal"
_FRESH = (1, bytes(16))


class SimState:
    """The state's rows; implements `storage.shard.StateRows`."""

    def __init__(self, disk: SimDisk) -> None:
        self.on_damage: Callable[[StorageDamaged], None] = lambda _failure: None
        self._disk = disk
        self.load()

    def load(self) -> None:
        """Read the applied index of the stored state."""
        head = self._disk.get(_HEAD_KEY)
        self.applied_index, self.digest = _FRESH if head is None else _HEAD.unpack(head)

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        return self._disk.get(_ROW + key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return n values for n keys."""
        return [self._disk.get(_ROW + key) for key in keys]

    def scan(self, start: bytes, end: bytes, limit: int) -> list[Row]:
        """Return at most `limit` rows of start <= key < end, ascending."""
        rows = self._disk.scan(_ROW + start, _ROW + end, limit=limit, bytes_max=2**62)
        return [(key[len(_ROW) :], value) for key, value in rows if key != _HEAD_KEY]


class SimLog:
    """The log's rows; implements `storage.shard.LogRows`."""

    def __init__(self, disk: SimDisk) -> None:
        self.on_damage: Callable[[StorageDamaged], None] = lambda _failure: None
        self._disk = disk

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        return self._disk.get(key)

    def scan(self, start: bytes, end: bytes, *, limit: int, bytes_max: int) -> list[Row]:
        """Return at most `limit` rows, about `bytes_max` bytes of them."""
        return self._disk.scan(start, end, limit=limit, bytes_max=bytes_max)


class SimDatabase:
    """One life of one shard's database; implements `storage.shard.Database`.

    Attributes:
        incoming: The state's rows that `replace` will install.
        stalled: No write is taken, and none is refused.
        refuses_syncs: Every sync fails, so a crash may lose all that was written.
    """

    def __init__(self, disk: SimDisk, random: Random) -> None:
        self._disk = disk
        self._random = random
        self.log = SimLog(disk)
        self.state = SimState(disk)
        self.incoming: Sequence[Row] = ()
        self.stalled = False
        self.refuses_syncs = False

    @property
    def mark(self) -> int:
        """The last job of the write-ahead log whose writes are stored here."""
        return int.from_bytes(self._disk.get(_MARK) or b"", "big")

    def write(
        self,
        *,
        rows: Mapping[bytes, bytes | None],
        index: int,
        digest: bytes,
        delete_ranges: Sequence[tuple[bytes, bytes]],
        log_rows: Mapping[bytes, bytes | None],
        mark: int,
        wait: bool = False,
    ) -> bool:
        """Write all or none, unsynced."""
        if self.stalled and not wait:
            return False
        puts = [(_ROW + key, value) for key, value in rows.items() if value is not None]
        puts += [(key, value) for key, value in log_rows.items() if value is not None]
        puts += [(_HEAD_KEY, _HEAD.pack(index, digest)), (_MARK, mark.to_bytes(8, "big"))]
        deletes = [_ROW + key for key, value in rows.items() if value is None]
        self._disk.write(puts, delete_ranges=delete_ranges, deletes=deletes, sync=False)
        self.state.load()
        return True

    def sync(self) -> None:
        """Make what was written durable.

        Raises:
            StorageFailed: The disk refused.
        """
        if self.refuses_syncs:
            raise StorageFailed("syncing: Input/output error")
        self._disk.write((), sync=True)

    def checkpoint(self, path: Path) -> None:
        """Not simulated: snapshots are taken by `state_rows`."""
        raise AssertionError(f"a simulated database is copied to {path}")

    def state_rows(self) -> list[Row]:
        """Return the stored state, for `incoming` of another database."""
        return self._disk.scan(_ROW, _END, limit=2**31, bytes_max=2**62)

    def replace(self, log_rows: Sequence[Row], *, index: int, mark: int) -> None:
        """Install the incoming rows, with a log of these rows."""
        rows, self.incoming = self.incoming, ()
        self._disk.exchange([*rows, *log_rows, (_MARK, mark.to_bytes(8, "big"))])
        self.state.load()
        if self.state.applied_index != index:
            raise StorageFailed(f"what came in ends with {self.state.applied_index}, not {index}")

    def reopen(self) -> None:
        """Reopen the disk: a refused write may have been stored or not."""
        self._disk.crash(self._random)
        self.state.load()

    def close(self) -> None:
        """Do nothing."""
