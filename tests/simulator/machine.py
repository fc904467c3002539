"""Simulated broker: a state machine that keeps a list, and the source of unique values."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from hashlib import blake2b

from codeq_cluster.storage.shard import Shard
from tests.simulator.database import SimDatabase

_ROW = b"value/"
_ROW_END = b"value0"
_WRONG = b"no entry's"
_INDEX = struct.Struct(">Q")

Applied = Callable[[int, int, bytes | None], None]


class SimMachine:
    """Appends every payload to a list, in the state of a shard.

    Attributes:
        waits: Whether somebody waits for the list to grow; None: after every other entry.
    """

    def __init__(self, shard: Shard, database: SimDatabase, applied: Applied) -> None:
        self._shard = shard
        self._store = shard.state
        self._database = database
        self._applied = applied
        self.waits: bool | None = None
        self.load()

    def load(self) -> None:
        """Read the state from the store."""
        rows = self._store.scan(_ROW, _ROW_END, 2**31)
        self.values = [value for _, value in rows]

    def corrupt(self) -> None:
        """Make the state differ from the log's, on disk and in memory."""
        self.values.insert(0, _WRONG)
        self._shard.spill()
        self._database.write(
            rows={_ROW + _INDEX.pack(0): _WRONG},
            index=self.applied_index,
            digest=_next(self.digest, _WRONG),
            delete_ranges=(),
            log_rows={},
            mark=self._database.mark,
        )
        self._store.load()

    @property
    def corrupted(self) -> bool:
        """Return whether the state is the one that `corrupt` made."""
        return _WRONG in self.values[:1]

    @property
    def applied_index(self) -> int:
        """Index of the last entry in the list's history."""
        return self._store.applied_index

    @property
    def stored_index(self) -> int:
        """Index of the last entry in the database's state."""
        return self._store.stored_index

    @property
    def seen_index(self) -> int:
        """Index of the last entry that is known to have been applied."""
        return self._store.seen_index

    @property
    def digest(self) -> bytes:
        """Running hash over all entries."""
        return self._store.digest

    @property
    def awaited(self) -> bool:
        """Return whether somebody waits for the list to grow."""
        return self.applied_index % 2 == 0 if self.waits is None else self.waits

    def apply(self, index: int, term: int, payload: bytes | None) -> None:
        """Append the payload."""
        digest = _next(self.digest, _INDEX.pack(term) + (payload or b""))
        rows: dict[bytes, bytes | None] = {}
        if payload is not None:
            self.values.append(payload)
            rows[_ROW + _INDEX.pack(index)] = payload
        self._store.commit(rows, index=index, digest=digest)
        self._applied(index, term, payload)


def _next(digest: bytes, text: bytes) -> bytes:
    return blake2b(digest + text, digest_size=16).digest()


class SimSource:
    """Proposes values while its node leads, and learns which were applied in its own term."""

    def __init__(self, acknowledged: Callable[[bytes, int], None]) -> None:
        self._acknowledged = acknowledged
        self._queue: deque[bytes] = deque()
        self._outstanding: set[bytes] = set()
        self.term: int | None = None
        self.leader: str | None = None

    def propose(self, value: bytes) -> bool:
        """Queue a value; False if this node does not lead."""
        if self.term is None:
            return False
        self._queue.append(value)
        return True

    def take(self) -> bytes | None:
        """Return the next value."""
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
        """Stop proposing; the outcome of outstanding values is unknown from here on."""
        self.term = None
        self.leader = leader
        self._queue.clear()
        self._outstanding.clear()

    def applied(self, index: int, term: int, payload: bytes | None) -> None:
        """Acknowledge a value to its client."""
        if payload in self._outstanding and term == self.term:
            self._outstanding.remove(payload)
            self._acknowledged(payload, index)
