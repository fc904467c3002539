"""LRU: a bounded table that forgets idle entries, the least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_LOOKS = 2  # Old entries checked for each new one, so that idle ones cannot pile up.


class LruTable(Generic[K, V]):
    """Entries by key, made on first use.

    Args:
        idle: Returns whether an entry equals a new one, so that it can be forgotten.
        entries_max: Beyond it the least recently used one goes, idle or not.
    """

    def __init__(self, *, idle: Callable[[V], bool], entries_max: int) -> None:
        self._idle = idle
        self._entries_max = entries_max
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def of(self, key: K, make: Callable[[], V]) -> V:
        """Return the entry of a key; make one if there is none."""
        entries = self._entries
        entry = entries.get(key)
        if entry is not None:
            entries.move_to_end(key)
            return entry
        self._forget()
        entry = entries[key] = make()
        return entry

    def _forget(self) -> None:
        entries = self._entries
        for _ in range(_LOOKS):
            if not entries:
                return
            oldest = next(iter(entries))
            if self._idle(entries[oldest]):
                del entries[oldest]
            else:
                # Move a checked entry back, so that one long-lived entry hides no others.
                entries.move_to_end(oldest)
        if len(entries) >= self._entries_max:
            entries.popitem(last=False)
