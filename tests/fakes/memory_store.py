"""Memory store: one shard's log and state in memory, for tests that need no disk."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from codeq_cluster.codec import keyspace


class _Rows:
    """Ordered rows."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        return self._values.get(key)

    def _range(self, start: bytes, end: bytes) -> tuple[int, int]:
        first = bisect_left(self._keys, start)
        return first, max(first, bisect_left(self._keys, end))

    def _read(self, start: bytes, end: bytes, *, limit: int) -> list[tuple[bytes, bytes]]:
        first, beyond = self._range(start, end)
        keys = self._keys[first : min(beyond, first + limit)]
        return [(key, self._values[key]) for key in keys]

    def _put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            if self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
            return
        if key not in self._values:
            insort(self._keys, key)
        self._values[key] = value


class MemoryState(_Rows):
    """A `StateStore`."""

    def __init__(self) -> None:
        super().__init__()
        self.applied_index = 1
        self.digest = bytes(16)

    @property
    def stored_index(self) -> int:
        """Index of the last entry in the state: in memory, every write counts as durable."""
        return self.applied_index

    @property
    def seen_index(self) -> int:
        """Index of the last entry that was applied."""
        return self.applied_index

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return n values for n keys."""
        return [self.get(key) for key in keys]

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows of start <= key < end, ascending."""
        return self._read(start, end, limit=limit)

    def commit(
        self,
        mutations: Mapping[bytes, bytes | None],
        *,
        index: int,
        digest: bytes,
        net: bool = False,
    ) -> None:
        """Write one entry's mutations with its index and digest."""
        for key, value in mutations.items() if net else ():
            if keyspace.is_task_index(key):
                assert (value is None) == (key in self._values), f"{key!r} is no net change"
        assert index == self.applied_index + 1, f"entry {index} after entry {self.applied_index}"
        assert len(digest) == len(self.digest), f"a digest of {len(digest)} bytes"
        for key, value in mutations.items():
            self._put(key, value)
        self.applied_index, self.digest = index, digest


class MemoryLog(_Rows):
    """A `LogStore`."""

    def scan(
        self, start: bytes, end: bytes, *, limit: int, bytes_max: int
    ) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows, about `bytes_max` bytes of them."""
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        for key, value in self._read(start, end, limit=limit):
            rows.append((key, value))
            size += len(key) + len(value)
            if size >= bytes_max:
                break
        return rows

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        *,
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
        sync: bool,
    ) -> None:
        """Apply the range deletes, then the puts."""
        del sync  # In memory, every write counts as durable.
        for start, end in delete_ranges:
            assert start <= end, f"range {start!r} to {end!r} is inverted"
            first, beyond = self._range(start, end)
            for key in self._keys[first:beyond]:
                del self._values[key]
            del self._keys[first:beyond]
        for key, value in puts:
            self._put(key, value)


class MemoryShard:
    """One shard's log and state."""

    def __init__(self) -> None:
        self.state = MemoryState()
        self.log = MemoryLog()

    def close(self) -> None:
        """Do nothing."""
