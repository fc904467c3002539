"""Simulated broker: a state machine that keeps a list, and the source of unique values."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from hashlib import blake2b

from codeq_cluster.testing.sim_disk import SimDisk

_META = b"state"
_ROW = b"value/"
_ROW_END = b"value0"
_WRONG = b"no entry's"
_HEAD = struct.Struct(">Q16s")
_INDEX = struct.Struct(">Q")

Applied = Callable[[int, int, bytes | None], None]


class SimMachine:
    """Appends every payload to a list; state, index and digest are one write, never synced here."""

    def __init__(self, disk: SimDisk, applied: Applied) -> None:
        self._disk = disk
        self._applied = applied
        self.load()

    def load(self) -> None:
        """Read the state from the disk."""
        meta = self._disk.get(_META)
        self._index: int = 1
        self._digest = bytes(16)
        if meta is not None:
            self._index, self._digest = _HEAD.unpack(meta)
        rows = self._disk.scan(_ROW, _ROW_END, limit=2**31, bytes_max=2**31)
        self.values = [value for _, value in rows]

    def rows(self) -> list[tuple[bytes, bytes]]:
        """Return the state as it is stored."""
        head = (_META, _HEAD.pack(self._index, self._digest))
        return [head, *self._disk.scan(_ROW, _ROW_END, limit=2**31, bytes_max=2**31)]

    def corrupt(self) -> None:
        """Make the state another than the entries make, on disk and in memory."""
        self._digest = blake2b(self._digest + _WRONG, digest_size=16).digest()
        self.values.insert(0, _WRONG)
        head = (_META, _HEAD.pack(self._index, self._digest))
        self._disk.write([head, (_ROW + _INDEX.pack(0), _WRONG)], sync=False)

    @property
    def corrupted(self) -> bool:
        """Tell whether the state is what `corrupt` made of it."""
        return _WRONG in self.values[:1]

    @property
    def applied_index(self) -> int:
        """Index of the last entry in the list's history."""
        return self._index

    @property
    def digest(self) -> bytes:
        """Running hash over all entries."""
        return self._digest

    def apply(self, index: int, term: int, payload: bytes | None) -> None:
        """Append the payload."""
        assert index == self._index + 1, f"entry {index} after {self._index}"
        text = _INDEX.pack(term) + (payload or b"")
        self._digest = blake2b(self._digest + text, digest_size=16).digest()
        self._index = index
        puts = [(_META, _HEAD.pack(index, self._digest))]
        if payload is not None:
            self.values.append(payload)
            puts.append((_ROW + _INDEX.pack(index), payload))
        self._disk.write(puts, sync=False)
        self._applied(index, term, payload)


class SimSource:
    """Hands over values while its node leads, and learns which were applied in its own term."""

    def __init__(self, acknowledged: Callable[[bytes, int], None]) -> None:
        self._acknowledged = acknowledged
        self._queue: deque[bytes] = deque()
        self._outstanding: set[bytes] = set()
        self.term: int | None = None
        self.leader: str | None = None

    def propose(self, value: bytes) -> bool:
        """Queue a value; False when this node does not lead."""
        if self.term is None:
            return False
        self._queue.append(value)
        return True

    def take(self) -> bytes | None:
        """Hand over the next value."""
        assert self.term is not None, "asked without leading"
        if not self._queue:
            return None
        value = self._queue.popleft()
        self._outstanding.add(value)
        return value

    def lead(self, term: int) -> None:
        """Start proposing."""
        self.term = term
        self.leader = None

    def follow(self, leader: str | None) -> None:
        """Stop proposing; what is outstanding is unknown from here on."""
        self.term = None
        self.leader = leader
        self._queue.clear()
        self._outstanding.clear()

    def applied(self, index: int, term: int, payload: bytes | None) -> None:
        """Acknowledge a value to its client."""
        if payload in self._outstanding and term == self.term:
            self._outstanding.remove(payload)
            self._acknowledged(payload, index)
