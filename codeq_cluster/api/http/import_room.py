"""Import room: the bound on parts of imports that one node holds in memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from codeq_cluster.errors import Overloaded

AT_ONCE = 4  # Reading and decoding hold several copies of each part.


class ImportRoom:
    """Counts the parts in memory."""

    def __init__(self) -> None:
        self._free = AT_ONCE

    @contextmanager
    def one(self) -> Iterator[None]:
        """Reserve room for one part until the end of the block; raises Overloaded."""
        if not self._free:
            raise Overloaded("the room for imports")
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1
