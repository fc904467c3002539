"""Window: the first live keys of one key range, kept in memory.

A queue's dead rows pile up at its head, and walking over them again for every claim is the
classic trap of log-structured stores. A window reads ahead once and remembers how far it has
read: below its edge it knows every live key, so the store is only asked for keys beyond it.
Memory is bounded: a window that grows past its maximum forgets its far half.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

KEYS_MAX = 1024  # x ~80 bytes = 80 KiB for a queue being served.
READ_AHEAD = 256

# Reads at most `limit` live keys of start <= key < end, ascending, and how far that reading is
# complete: the edge, which is `end` when nothing is left.
Read = Callable[[bytes, bytes, int], tuple[list[bytes], bytes]]


class Window:
    """The live keys of start <= key < edge, complete; beyond the edge the reader knows."""

    __slots__ = ("_edge", "_end", "_keys", "_read")

    def __init__(self, start: bytes, end: bytes, read: Read) -> None:
        self._keys: list[bytes] = []
        self._edge = start
        self._end = end
        self._read = read

    def add(self, key: bytes) -> None:
        """Take note of a key that is live now."""
        if key >= self._edge:
            return
        insort(self._keys, key)
        if len(self._keys) > KEYS_MAX:
            self._edge = self._keys[KEYS_MAX // 2]
            del self._keys[KEYS_MAX // 2 :]

    def remove(self, key: bytes) -> None:
        """Take note of a key that is dead now."""
        position = bisect_left(self._keys, key)
        if position < len(self._keys) and self._keys[position] == key:
            del self._keys[position]

    def first(self) -> bytes | None:
        """Return the first live key of the range, or None."""
        while not self._keys and self._edge < self._end:
            self._keys, self._edge = self._read(self._edge, self._end, READ_AHEAD)
        return self._keys[0] if self._keys else None

    def __iter__(self) -> Iterator[bytes]:
        """Yield every live key in order; the window must not change meanwhile."""
        position = 0
        while True:
            if position == len(self._keys):
                if self._edge >= self._end:
                    return
                more, self._edge = self._read(self._edge, self._end, READ_AHEAD)
                self._keys.extend(more)
                continue
            yield self._keys[position]
            position += 1
