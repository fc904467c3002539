"""Batch: what one log entry will carry, while it is being decided and until it is applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.core.task import Task
from codeq_cluster.errors import CodeqError

ROW_OVERHEAD_BYTES = 16  # CBOR heads and RocksDB's own, a row.


class Place(Protocol):
    """Where a caller's outcomes go: a future of its own, or the answer to another node's call."""

    def done(self) -> bool:
        """Return whether nobody waits any more."""

    def set_result(self, result: list[Outcome], /) -> None:
        """Take the outcomes."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Take what is known instead."""


@dataclass(slots=True)
class Waiting:
    """One caller and the outcomes it gets when the batch is applied.

    Attributes:
        since: Ordinal of the first batch with rows of this caller; None when it has none.
    """

    place: Place
    outcomes: list[Outcome]
    since: int | None


@dataclass(slots=True)
class Batch:
    """Decisions that become durable together, in the order they were made.

    Attributes:
        ordinal: Counts the batches of one reign; with the term it names the entry.
        rows: The entry's mutations; a later decision's row replaces an earlier one's.
        tasks: The newest state of every task changed; None when it is gone.
        operations: Decided for those who wait here.
        rows_bytes: About what the entry weighs, at most.
        payload: The entry it was handed over as.
        clock_ms: Of its last decision, once it is handed over.
        seq: The last sequence number drawn by then.
        taken_at: When it was handed over, seconds of the loop's clock.
    """

    ordinal: int
    rows: dict[bytes, bytes | None] = field(default_factory=dict)
    tasks: dict[str, Task | None] = field(default_factory=dict)
    changes: list[TaskChange] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    operations: int = 0
    rows_bytes: int = 0
    payload: bytes = b""
    clock_ms: int = 0
    seq: int = 0
    taken_at: float = 0.0

    def add_rows(
        self, rows: dict[bytes, bytes | None], changes: Sequence[TaskChange], *, rows_bytes: int
    ) -> None:
        """Append one decision."""
        self.rows.update(rows)
        self.changes.extend(changes)
        self.rows_bytes += rows_bytes

    def adopt(self, other: Batch) -> None:
        """Answer those who wait in a batch without rows together with this one."""
        assert not other.rows, "a batch with rows is an entry of its own"
        self.waiting += other.waiting
        self.operations += other.operations

    def release(self, finished: Callable[[list[Outcome]], list[Outcome]]) -> None:
        """Answer everybody who waits, by what `finished` makes of the outcomes."""
        for waiting in self.waiting:
            if not waiting.place.done():
                waiting.place.set_result(finished(waiting.outcomes))

    def fail(self, error_of: Callable[[Waiting], CodeqError]) -> None:
        """Tell everybody who waits what is known of their outcome."""
        for waiting in self.waiting:
            if not waiting.place.done():
                waiting.place.set_exception(error_of(waiting))


def weigh(rows: Mapping[bytes, bytes | None]) -> int:
    """Return about how many bytes the rows take in an entry, never less."""
    values = filter(None, rows.values())
    return sum(map(len, rows)) + sum(map(len, values)) + ROW_OVERHEAD_BYTES * len(rows)
