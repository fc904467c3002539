"""Key order: the keys of a dictionary in order, for reads of ranges."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import Any

from msgspec import Struct

# A read scans up to this many unordered keys, which takes 10 us; with more, it may sort them first.
UNORDERED_MAX = 512


class KeyOrder(Struct):
    """The keys of rows that change beside it; whoever only writes does not pay for the order.

    Attributes:
        rows: By key.
        added: At most so many of the last keys of the rows are not in order yet. Whoever puts rows
            adds how many they are, or only those whose keys are new.
        patience: Reads sort once they have scanned more than this multiple of all rows. A higher
            value suits rows that are removed soon.
        looked: How many unordered keys reads have scanned since the last sort.
        ordered: The other keys in order; some may be gone, or be there twice.
    """

    rows: dict[bytes, Any]
    patience: int = 0
    added: int = 0
    looked: int = 0
    ordered: list[bytes] = []

    def between(self, start: bytes, end: bytes) -> list[bytes]:
        """Return the keys of start <= key < end, ascending."""
        rows, ordered = self.rows, self.ordered
        if self.added > UNORDERED_MAX:
            self.looked += min(self.added, len(rows))
            if self.looked > self.patience * len(rows):
                self._order()
        within = ordered[bisect_left(ordered, start) : bisect_left(ordered, end)]
        found = {key for key in within if key in rows}
        found.update(key for key in islice(reversed(rows), self.added) if start <= key < end)
        return sorted(found)

    def _order(self) -> None:
        rows, ordered = self.rows, self.ordered
        ordered += islice(reversed(rows), self.added)
        if len(ordered) > 2 * len(rows):
            ordered[:] = rows
        ordered.sort()
        self.added = self.looked = 0
