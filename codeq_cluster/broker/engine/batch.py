"""Batch: the content of one log entry, from the first decision until the entry is applied."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from codeq_cluster.codec import keyspace
from codeq_cluster.core.changes import Change
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.core.task import Task
from codeq_cluster.errors import CodeqError, OutcomeUnknown

log = logging.getLogger(__name__)

ROW_OVERHEAD_BYTES = 16  # A row's CBOR heads and RocksDB's overhead.


class OutcomeSlot(Protocol):
    """The receiver of a caller's outcomes: a future, or the answer to another node's call."""

    def done(self) -> bool:
        """Return whether the caller has stopped waiting."""

    def set_result(self, result: list[Outcome], /) -> None:
        """Give the caller its outcomes."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Give the caller an error in place of the outcomes."""


class _NoCaller:
    """Takes the outcomes of operations that nobody waits for."""

    def done(self) -> bool:
        """Return that nobody waits."""
        return True

    def set_result(self, result: list[Outcome], /) -> None:
        """Do nothing."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Do nothing."""


NO_CALLER = _NoCaller()


@dataclass(slots=True)
class Waiting:
    """One caller and the outcomes it gets when the batch is applied.

    Attributes:
        since: Ordinal of the first batch with rows of this caller; None if it has none.
    """

    place: OutcomeSlot
    outcomes: list[Outcome]
    since: int | None


@dataclass(slots=True)
class Batch:
    """Decisions that become durable together, in the order they were made.

    Attributes:
        ordinal: Counts the batches of one leadership; with the term it identifies the entry.
        rows: The entry's mutations, net: a later decision's row replaces an earlier one's, and an
            index row that was removed and added again is left out.
        cancelled: The keys of those index rows.
        tasks: The newest state of every changed task; None if it is deleted.
        operations: Operations whose callers wait for this batch.
        rows_bytes: Estimate of the entry's size, never too low.
        payload: The encoded entry, once taken.
        clock_ms: The clock of its last decision, once taken.
        seq: The last sequence number drawn by then.
        taken_at: When the group took it, seconds of the loop's clock.
    """

    ordinal: int
    rows: dict[bytes, bytes | None] = field(default_factory=dict)
    cancelled: list[bytes] = field(default_factory=list)
    tasks: dict[str, Task | None] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    operations: int = 0
    rows_bytes: int = 0
    payload: bytes = b""
    clock_ms: int = 0
    seq: int = 0
    taken_at: float = 0.0

    def add_rows(self, rows: dict[bytes, bytes | None], *, rows_bytes: int) -> None:
        """Append one decision, whose own rows are net."""
        own = self.rows
        twice = [key for key in rows if key in own and keyspace.is_task_index(key)] if own else []
        own.update(rows)
        for key in twice:
            # Put and deleted, or deleted and put: in the store nothing changes.
            del own[key]
        self.cancelled += twice
        self.rows_bytes += rows_bytes

    def adopt(self, other: Batch) -> None:
        """Let the callers of a batch without rows wait for this batch."""
        assert not other.rows, "a batch with rows is an entry of its own"
        self.waiting += other.waiting
        self.operations += other.operations

    def release(self, finished: Callable[[list[Outcome]], list[Outcome]]) -> None:
        """Answer every waiting caller with its outcomes passed through `finished`."""
        for waiting in self.waiting:
            if not waiting.place.done():
                try:
                    waiting.place.set_result(finished(waiting.outcomes))
                except Exception:
                    # This runs while an entry is applied, and the replica and the other callers
                    # must go on.
                    log.exception("an answer cannot be given")
                    error = OutcomeUnknown("it is done, and its answer cannot be given")
                    if not waiting.place.done():
                        waiting.place.set_exception(error)

    def fail(self, error_of: Callable[[Waiting], CodeqError]) -> None:
        """Fail every waiting caller with its own error."""
        for waiting in self.waiting:
            if not waiting.place.done():
                waiting.place.set_exception(error_of(waiting))


def weigh(rows: Mapping[bytes, bytes | None]) -> int:
    """Return the estimated bytes of the rows in an entry, never too low."""
    values = filter(None, rows.values())
    return sum(map(len, rows)) + sum(map(len, values)) + ROW_OVERHEAD_BYTES * len(rows)
