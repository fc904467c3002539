"""Buffer: rows that are not in the database yet, and reads that merge both."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import compress
from operator import is_
from typing import Final

from codeq_cluster.key_order import KeyOrder

Rows = list[tuple[bytes, bytes]]
_is_deleted = partial(is_, None)
ROW_OVERHEAD_BYTES = 64  # About one dictionary entry and its two objects.


class Missing:
    """The type of `MISSING`."""


MISSING: Final = Missing()


def _none(_key: bytes) -> bool:
    return False


class RowBuffer:
    """Range deletes, then puts and deletes of rows; the newest of a key wins.

    A transient row that was put and deleted here leaves nothing behind, because the database has
    none to delete.

    Attributes:
        rows: The newest value of every key written; None for deleted.
        ranges: Half-open key ranges deleted before the rows were written.
        size: Approximate memory, in bytes.
    """

    __slots__ = (
        "_is_transient",
        "_order",
        "_stored",
        "ranges",
        "rows",
        "size",
    )

    def __init__(self, is_transient: Callable[[bytes], bool] = _none) -> None:
        """Start empty.

        Args:
            is_transient: Tells the keys whose rows often come and go. An update puts such a row
                only where there is none.
        """
        self.rows: dict[bytes, bytes | None] = {}
        self.ranges: list[tuple[bytes, bytes]] = []
        self.size = 0
        self._is_transient = is_transient
        # Keys that the database may have a row of. They can be put and deleted here again. Without
        # that second delete, the database's row would come back.
        self._stored: set[bytes] = set()
        self._order = KeyOrder(self.rows)

    def __bool__(self) -> bool:
        return bool(self.rows or self.ranges)

    def get(self, key: bytes) -> bytes | Missing | None:
        """Return the newest value, None for deleted, or MISSING when only the database knows."""
        value = self.rows.get(key, MISSING)
        if value is MISSING and self.ranges and self._deleted(key):
            return None
        return value

    def update(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Put rows; None deletes; transient rows are put only where there is none."""
        here, stored = self.rows, self._stored
        gone: list[bytes] = []  # Deleted keys that leave nothing behind.
        for key in compress(rows, map(_is_deleted, rows.values())):
            is_only_here = here.get(key) is not None and key not in stored
            if is_only_here and self._is_transient(key):
                gone.append(key)
            else:
                stored.add(key)
        before = len(here)
        here.update(rows)
        self._order.added += len(here) - before
        values = filter(None, rows.values())
        self.size += sum(map(len, rows)) + sum(map(len, values)) + ROW_OVERHEAD_BYTES * len(rows)
        for key in gone:
            del here[key]
            self.size -= 2 * (len(key) + ROW_OVERHEAD_BYTES)

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], ranges: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """Delete the ranges, then put the rows."""
        for start, end in ranges:
            for key in [key for key in self.rows if start <= key < end]:
                del self.rows[key]
            self.ranges.append((start, end))
            self.size += len(start) + len(end) + ROW_OVERHEAD_BYTES
        for key, value in puts:
            self.rows[key] = value
            self._order.added += 1
            self.size += len(key) + len(value) + ROW_OVERHEAD_BYTES

    def over(
        self, stored: Iterable[tuple[bytes, bytes]], start: bytes, end: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows of start <= key < end, ascending, one by one.

        Args:
            stored: The database's rows of that range, ascending.
        """
        own = self._order.between(start, end)
        kept = ((key, value) for key, value in stored if self.get(key) is MISSING)
        mine = ((key, value) for key in own if (value := self.rows[key]) is not None)
        return heapq.merge(kept, mine)

    def _deleted(self, key: bytes) -> bool:
        return any(start <= key < end for start, end in self.ranges)

    def merged(self, page: Rows, start: bytes, edge: bytes) -> Rows:
        """Return all rows of start <= key < edge, ascending.

        Args:
            page: The database's rows of that range, ascending.
        """
        own = self._order.between(start, edge)
        if not own and not self.ranges:
            return page
        rows: dict[bytes, bytes | None] = {
            key: value for key, value in page if not (self.ranges and self._deleted(key))
        }
        rows.update((key, self.rows[key]) for key in own)
        return sorted((key, value) for key, value in rows.items() if value is not None)
