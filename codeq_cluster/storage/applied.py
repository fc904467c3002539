"""Applied: how far each shard's state had come when the process ended, however it ended.

The newest rows of a state are in memory only, so a killed process leaves a database that is behind.
The log has the missing entries, and these numbers say how many of them were applied. A restarted
node applies as many at once, so it shows nobody an older state than before.

The numbers are written to mapped memory at every entry and never synced: the operating system keeps
them when the process dies. After a power cut a number may be old, and then the node only waits for
a leader.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

_SLOT = struct.Struct("=QQ")  # The index and its complement, so that a torn slot is recognised.
_ALL = 2**64 - 1


class AppliedFile:
    """The applied indexes of a node's shards, in one small file."""

    def __init__(self, path: Path, *, shards: int) -> None:
        """Open the file, or create it; raises OSError."""
        size = shards * _SLOT.size
        path.touch()
        with path.open("r+b") as file:
            # A note into a hole would end the process on a full disk, with a signal and no word.
            os.posix_fallocate(file.fileno(), 0, size)
            self._map = mmap.mmap(file.fileno(), size)

    def note(self, shard: int, index: int) -> None:
        """Note that the state has reached an entry."""
        _SLOT.pack_into(self._map, shard * _SLOT.size, index, index ^ _ALL)

    def of(self, shard: int) -> int:
        """Return the last entry noted; 0 when none is known."""
        index, complement = _SLOT.unpack_from(self._map, shard * _SLOT.size)
        return int(index) if index ^ _ALL == complement else 0

    def close(self) -> None:
        """Close the file."""
        self._map.close()
