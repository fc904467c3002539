"""Applied: how far each shard's state had come when the process ended, however it ended.

The rows of a state wait in memory, so a killed process leaves a database that is behind. The log
has what is missing, and these numbers say how much of it was applied: a node that starts again
applies that much at once, and shows nobody an older state than before.

Written to mapped memory at every entry, never synced: the operating system keeps it over the death
of the process. After a power cut a number may be old, which costs no more than a wait for a leader.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_SLOT = struct.Struct("=QQ")  # The index and its complement: a slot that was torn does not fit.
_ALL = 2**64 - 1


class AppliedFile:
    """The numbers of a node's shards in one small file."""

    def __init__(self, path: Path, *, shards: int) -> None:
        """Open the file, or make it.

        Raises:
            OSError: The disk refused.
        """
        size = shards * _SLOT.size
        with path.open("ab") as file:
            file.truncate(max(size, file.tell()))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)

    def note(self, shard: int, index: int) -> None:
        """Note that the state has reached an entry."""
        _SLOT.pack_into(self._map, shard * _SLOT.size, index, index ^ _ALL)

    def of(self, shard: int) -> int:
        """Return the last entry noted; 0 when that is not known."""
        index, complement = _SLOT.unpack_from(self._map, shard * _SLOT.size)
        return int(index) if index ^ _ALL == complement else 0

    def close(self) -> None:
        """Close the file."""
        self._map.close()
