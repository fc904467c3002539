"""Rocks rows: the two column families of a shard's RocksDB, to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocksdict import ColumnFamily, Rdict, ReadOptions

from codeq_cluster.errors import StorageDamaged, StorageFailed

STATE = "state"
LOG = "raft"
PLACE = b"codeq/meta/applied"  # -> applied index (8 bytes), digest (16 bytes)
# Among the log's rows -> the last job of the write-ahead log that is in here (8 bytes).
MARK = b"wal"

_FRESH_INDEX = 1  # The log begins with an entry of its own at index 1.
_FRESH_DIGEST = bytes(16)
_PLACE_BYTES = 8 + 16
_DAMAGED = "Corruption: "  # RocksDB's prefix for failed checksums and impossible content.


class RocksRows:
    """Ordered rows of one column family.

    Attributes:
        name: Of the column family.
        on_damage: Called with every damaged row that a read finds, on the thread of that read.
    """

    def __init__(self, db: Rdict, name: str) -> None:
        self.on_damage: Callable[[StorageDamaged], None] = lambda _failure: None
        self.name = name
        self.open(db)

    def open(self, db: Rdict) -> None:
        """Read this database from now on."""
        self._rows = db.get_column_family(self.name)
        # None once closed, because a handle that stays open keeps the directory locked.
        self._handle: ColumnFamily | None = db.get_column_family_handle(self.name)

    @property
    def family(self) -> Rdict:
        """Return the open family."""
        return self._rows

    @property
    def handle(self) -> ColumnFamily:
        """Return the handle of the family for a batch; raises StorageFailed once it is closed."""
        if self._handle is None:
            raise StorageFailed("writing: the directory is closed")
        return self._handle

    def close(self) -> None:
        """Close the family."""
        self._handle = None
        self._rows.close()

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None; raises StorageFailed."""
        try:
            value: bytes | None = self._rows.get(key)
        except Exception as error:
            raise self.failed("reading a row", error) from error
        return value

    def scan(
        self, start: bytes, end: bytes, limit: int, *, bytes_max: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows of start <= key < end, ascending, about `bytes_max` bytes."""
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        try:
            options = ReadOptions()
            options.set_iterate_upper_bound(end)
            rows_there = self._rows.iter(options)
            rows_there.seek(start)
            while len(rows) < limit and rows_there.valid():
                key, value = rows_there.key(), rows_there.value()
                rows.append((key, value))
                size += len(key) + len(value)
                if bytes_max is not None and size >= bytes_max:
                    break
                rows_there.next()
            rows_there.status()
        except Exception as error:
            raise self.failed("reading rows", error) from error
        return rows

    def failed(self, doing: str, error: Exception) -> StorageFailed:
        """Return the error to raise for one of RocksDB's."""
        if _DAMAGED not in str(error):
            return StorageFailed(f"{doing}: {error}")
        failure = StorageDamaged(f"{doing}: {error}")
        # Reported here, because a reader may swallow the error.
        self.on_damage(failure)
        return failure


class RocksState(RocksRows):
    """The committed state and its applied index.

    The index is a row of its own under `codeq/meta/applied`. No entry may write that row, and a
    scan across it returns it.

    Attributes:
        applied_index: Index of the last entry in the state; 1 when fresh.
        digest: The running hash over every applied entry, 16 bytes; zeros when fresh.
    """

    def open(self, db: Rdict) -> None:
        """Read this database from now on; raises ValueError if its applied index is damaged."""
        super().open(db)
        self.applied_index, self.digest = place(self.get(PLACE))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return n values for n keys, None where there is none."""
        try:
            values = self._rows.get(list(keys))
        except Exception as error:
            raise self.failed("reading rows", error) from error
        assert isinstance(values, list), "a list of keys is answered with a list"
        return values


def place(row: bytes | None) -> tuple[int, bytes]:
    """Return the applied index and the digest of a state, from its row; raises ValueError."""
    if row is None:
        return _FRESH_INDEX, _FRESH_DIGEST
    if len(row) != _PLACE_BYTES:
        raise ValueError(f"the applied index has {len(row)} bytes, not {_PLACE_BYTES}")
    return int.from_bytes(row[:8], "big"), row[8:]
