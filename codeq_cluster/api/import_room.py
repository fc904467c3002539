"""Import room: how many parts of imports are in the memory of one node at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from codeq_cluster.errors import Overloaded

AT_ONCE = 4  # Each is in memory a few times while it is read and decoded.


class ImportRoom:
    """Counts them."""

    def __init__(self) -> None:
        self._free = AT_ONCE

    @contextmanager
    def one(self) -> Iterator[None]:
        """Have room for one until the end of the block; raises Overloaded."""
        if not self._free:
            raise Overloaded("the room for imports")
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1
