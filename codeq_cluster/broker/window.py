"""Window: the first live keys of one key range, kept in memory.

A queue's dead rows pile up at its head, and walking over them again for every claim is the
classic trap of log-structured stores. A window reads ahead once and remembers how far it has
read: below its edge it knows every live key, so the store is only asked for keys beyond it.
Memory is bounded: a window that grows past its maximum forgets its far half, and windows that share
a budget keep few keys each while it is used up.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

KEYS_MAX = 1024  # x ~100 bytes = 100 KiB for a queue being served.
KEYS_MIN = 16  # Kept by a window whose budget is used up, read at first, and doubled from there.
READ_AHEAD = 256

# Reads at most `limit` live keys of start <= key < end, ascending, and how far that reading is
# complete: the edge, which is `end` when nothing is left.
Read = Callable[[bytes, bytes, int], tuple[list[bytes], bytes]]


class KeyBudget:
    """How many keys some windows may keep together.

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
    """The live keys of start <= key < edge, complete; beyond the edge the reader knows.

    Args:
        start: The first key.
        end: The key behind the last.
        read: See `Read`.
        budget: Shared with other windows; none for one of its own.
        empty: Nothing is in the range now, so nothing need be read.
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

    def add(self, key: bytes) -> None:
        """Take note of a key that is live now."""
        if key >= self._edge:
            return
        keys, budget = self._keys, self._budget
        insort(keys, key)
        budget.left -= 1
        if len(keys) > KEYS_MIN and len(keys) > budget.of_each:
            kept = len(keys) // 2
            self._edge = keys[kept]
            budget.left += len(keys) - kept
            del keys[kept:]

    def remove(self, key: bytes) -> None:
        """Take note of a key that is dead now."""
        position = bisect_left(self._keys, key)
        if position < len(self._keys) and self._keys[position] == key:
            del self._keys[position]
            self._budget.left += 1

    def close(self) -> None:
        """Give its keys back to the budget; the window is not used again."""
        self._budget.left += len(self._keys)
        self._keys.clear()

    @property
    def known(self) -> bool:
        """Return whether `first` is answered without reading."""
        return bool(self._keys) or self._edge >= self._end

    def first(self) -> bytes | None:
        """Return the first live key of the range, or None."""
        while not self._keys and self._edge < self._end:
            self._read_on()
        return self._keys[0] if self._keys else None

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
        # A queue that is served on and on is worth longer readings.
        self._ahead = min(2 * self._ahead, READ_AHEAD)
