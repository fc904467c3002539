"""Window: the first live keys of one key range, kept in memory.

Deleted rows pile up at the head of a queue. Walking over them for every claim is a known cost of
log-structured stores. A window reads ahead once and remembers how far it has read, its edge. It
knows every live key below the edge, so it asks the store only for keys beyond.

Memory is bounded: a window above its maximum drops its far half, and windows whose common budget is
used up keep few keys each.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

KEYS_MAX = 1024  # x ~100 bytes = 100 KiB for a queue being served.
KEYS_MIN = 16  # Kept when the budget is used up; also the first read's size, doubled from there.
READ_AHEAD = 256

# Reads at most `limit` live keys of start <= key < end, ascending. Also returns the edge, up to
# which this read is complete: `end` if nothing is left.
Read = Callable[[bytes, bytes, int], tuple[list[bytes], bytes]]


class KeyBudget:
    """The number of keys that several windows may keep together.

    Attributes:
        left: May be below zero by `KEYS_MIN` a window.
    """

    __slots__ = ("left",)

    def __init__(self, most: int) -> None:
        self.left = most

    @property
    def of_each(self) -> int:
        """Return how many keys one window may keep now."""
        return KEYS_MAX if self.left > 0 else KEYS_MIN


class Window:
    """All live keys of start <= key < edge; keys beyond the edge are read on demand.

    Args:
        end: The key after the last one.
        budget: Shared with other windows; None gives the window its own.
        empty: The range has no live key now, so nothing need be read.
    """

    __slots__ = ("_ahead", "_budget", "_edge", "_end", "_keys", "_read")

    def __init__(
        self,
        start: bytes,
        end: bytes,
        read: Read,
        *,
        budget: KeyBudget | None = None,
        empty: bool = False,
    ) -> None:
        self._keys: list[bytes] = []
        self._edge = end if empty else start
        self._end = end
        self._read = read
        self._budget = budget or KeyBudget(KEYS_MAX)
        self._ahead = KEYS_MIN

    def add(self, key: bytes) -> bool:
        """Add a key that became live; return whether it may be the first one now."""
        if key >= self._edge:
            return not self._keys
        keys, budget = self._keys, self._budget
        insort(keys, key)
        budget.left -= 1
        if len(keys) > KEYS_MIN and len(keys) > budget.of_each:
            kept = len(keys) // 2
            self._edge = keys[kept]
            budget.left += len(keys) - kept
            del keys[kept:]
        return keys[0] is key

    def remove(self, key: bytes) -> None:
        """Remove a key that is dead now."""
        position = bisect_left(self._keys, key)
        if position < len(self._keys) and self._keys[position] == key:
            del self._keys[position]
            self._budget.left += 1

    def close(self) -> None:
        """Return the window's keys to the budget; the window must not be used afterwards."""
        self._budget.left += len(self._keys)
        self._keys.clear()

    @property
    def known(self) -> bool:
        """Return whether `first` needs no read."""
        return bool(self._keys) or self._edge >= self._end

    def first(self) -> bytes | None:
        """Return the first live key of the range, or None."""
        while not self._keys and self._edge < self._end:
            self._read_on()
        return self._keys[0] if self._keys else None

    def head(self, count: int) -> list[bytes]:
        """Return the first live keys of the range, at most `count`."""
        while len(self._keys) < count and self._edge < self._end:
            self._read_on()
        return self._keys[:count]

    def __iter__(self) -> Iterator[bytes]:
        """Yield every live key in order; the window must not change meanwhile."""
        position = 0
        while True:
            if position == len(self._keys):
                if self._edge >= self._end:
                    return
                self._read_on()
                continue
            yield self._keys[position]
            position += 1

    def _read_on(self) -> None:
        more, self._edge = self._read(self._edge, self._end, min(self._ahead, self._budget.of_each))
        self._keys += more
        self._budget.left -= len(more)
        # A queue that keeps being served is worth longer reads.
        self._ahead = min(2 * self._ahead, READ_AHEAD)
