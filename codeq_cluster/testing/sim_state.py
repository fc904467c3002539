"""Simulated state: a shard's broker state on the simulated disk that its log is on too."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from codeq_cluster.testing.sim_disk import SimDisk

_ROW = b"state/"
_END = b"state0"  # One past every key that starts with `state/`.
# Before every row of a family: their keys are never empty.
_HEAD_KEY = _ROW
_HEAD = struct.Struct(">Q16s")


class SimState:
    """A `StateStore`.

    An entry's rows, its index and the digest are one write that is not synced: what a power cut
    takes of them, the log gives back.
    """

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.load()

    def load(self) -> None:
        """Read from the disk how far the state is."""
        head = self._disk.get(_HEAD_KEY)
        self.applied_index, self.digest = (1, bytes(16)) if head is None else _HEAD.unpack(head)

    def rows(self) -> list[tuple[bytes, bytes]]:
        """Return the state as it is stored."""
        return self._disk.scan(_ROW, _END, limit=2**31, bytes_max=2**62)

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        return self._disk.get(_ROW + key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return n values for n keys."""
        return [self._disk.get(_ROW + key) for key in keys]

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows of start <= key < end, ascending."""
        rows = self._disk.scan(_ROW + start, _ROW + end, limit=limit, bytes_max=2**62)
        return [(key[len(_ROW) :], value) for key, value in rows]

    def commit(self, mutations: Mapping[bytes, bytes | None], *, index: int, digest: bytes) -> None:
        """Write one entry's mutations with its index and digest."""
        assert index == self.applied_index + 1, f"entry {index} after entry {self.applied_index}"
        puts = [(_ROW + key, value) for key, value in mutations.items() if value is not None]
        puts.append((_HEAD_KEY, _HEAD.pack(index, digest)))
        deletes = [_ROW + key for key, value in mutations.items() if value is None]
        self._disk.write(puts, deletes=deletes, sync=False)
        self.applied_index, self.digest = index, digest
