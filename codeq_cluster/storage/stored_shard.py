"""Stored shard: a shard's RocksDB that no process writes, from a checkpoint or a stopped node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rocksdict import AccessType, Options, Rdict, ReadOptions

from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.storage.buffer import Missing, RowBuffer
from codeq_cluster.storage.rocks_options import cut_damage, refuse_damage
from codeq_cluster.storage.rocks_rows import LOG, MARK, PLACE, STATE, place
from codeq_cluster.storage.wal import SegmentDisk, stored_jobs

Get = Callable[[bytes], bytes | None]
Rows = Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]]
# Returns the term of the entry at an index of a log, and the row with the group's membership there.
LogAt = Callable[[Get, Rows, int], tuple[int | None, bytes]]

_LAST_KEY = b"\xff" * 16  # Past every key.


class StoredShard:
    """A shard's directory that no process writes, from a checkpoint or a stopped node; read only.

    Attributes:
        mark: The last job of the node's write-ahead log whose writes are in the directory.
        pending: The rows of the shard's log that only the node's write-ahead log has.
    """

    def __init__(self, path: Path, *, wal: SegmentDisk | None = None) -> None:
        """Open the directory, including the content of RocksDB's own write-ahead log.

        Args:
            wal: The node's write-ahead log, unless the directory has all rows without it.
                RocksDB's own log may be damaged where this one has the rows.

        Raises:
            StorageFailed: It cannot be read, or is damaged.
        """
        self._name = path.name
        try:
            try:
                self._open(path, refuse_damage)
            except Exception:
                if wal is None or not self._open_before_damage(path, wal):
                    raise
        except Exception as error:
            raise StorageFailed(f"reading {self._name}: {error}") from error
        self.pending = RowBuffer()

    def _open(self, path: Path, treat_damage: Callable[[Options], None]) -> None:
        options = Options(raw_mode=True)
        treat_damage(options)
        self._db = Rdict(
            str(path),
            options,
            column_families={STATE: Options(raw_mode=True), LOG: Options(raw_mode=True)},
            access_type=AccessType.read_only(),
        )
        self._state = self._db.get_column_family(STATE)
        self._log = self._db.get_column_family(LOG)
        self.index, self.digest = place(self._state.get(PLACE))
        self.mark = int.from_bytes(self._log.get(MARK) or b"", "big")

    def _open_before_damage(self, path: Path, wal: SegmentDisk) -> bool:
        """Open the rows before the damage; return whether the node's log has all that follow."""
        self._open(path, cut_damage)
        try:
            for _ in stored_jobs(wal, [self.mark]):
                pass
        except DataDirectoryRefused:
            self.close()
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the directory."""
        self._state.close()
        self._log.close()
        self._db.close()

    def get(self, key: bytes) -> bytes | None:
        """Return a row of the state, or None; raises StorageFailed."""
        return self._get(self._state, key)

    def log_get(self, key: bytes) -> bytes | None:
        """Return a row of the log, or None; raises StorageFailed."""
        value = self.pending.get(key)
        return value if not isinstance(value, Missing) else self._get(self._log, key)

    def rows(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the state's rows of start <= key < end, ascending; raises StorageFailed."""
        return self._iterate(self._state, start, end)

    def log_rows(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the log's rows of start <= key < end, ascending; raises StorageFailed."""
        stored = self._iterate(self._log, start, end)
        return self.pending.over(stored, start, end)

    def _get(self, family: Rdict, key: bytes) -> bytes | None:
        try:
            value: bytes | None = family.get(key)
        except Exception as error:
            raise StorageFailed(f"reading {self._name}: {error}") from error
        return value

    def _iterate(self, family: Rdict, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            options = ReadOptions()
            options.set_iterate_upper_bound(end)
            found = family.iter(options)
            found.seek(start)
            while found.valid():
                yield found.key(), found.value()
                found.next()
            found.status()
        except Exception as error:
            raise StorageFailed(f"reading {self._name}: {error}") from error


@dataclass(frozen=True, slots=True)
class StatePosition:
    """The position of a shard's state.

    Attributes:
        index: Of the last entry in it.
        term: Of that entry.
        members: The row of the log with the group's members there; empty when the log names none.
    """

    index: int
    term: int
    digest: bytes
    members: bytes


def read_place(
    path: Path,
    *,
    log_at: LogAt,
    every_row: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> StatePosition:
    """Return the position of a directory that no process writes.

    Args:
        path: A checkpoint.
        every_row: Read the whole state, so that RocksDB compares every checksum.
        stopped: Asked at every row; True ends the reading.

    Raises:
        StorageFailed: It cannot be read, is damaged, or was not read to its end.
    """
    with StoredShard(path) as shard:
        if every_row:
            for _ in shard.rows(b"", _LAST_KEY):
                if stopped():
                    raise StorageFailed(f"reading {path.name}: stopped before its end")
        try:
            term, members = log_at(shard.log_get, shard.log_rows, shard.index)
        except (ValueError, DataDirectoryRefused) as error:
            raise StorageFailed(f"reading the log of {path.name}: {error}") from error
        if term is None:
            raise StorageFailed(
                f"{path.name} lacks the log entry {shard.index} that its state ends with"
            )
        return StatePosition(shard.index, term, shard.digest, members)
