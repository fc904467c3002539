"""WAL writer: gathers what a node's shards write at the same time into one job of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from codeq_cluster.errors import StorageFailed
from codeq_cluster.storage.segments import Write
from codeq_cluster.storage.wal import SegmentFile, Wal

Done = Callable[[int, BaseException | None], None]
Synced = Callable[[BaseException | None], None]

ROW_OVERHEAD_BYTES = 16  # Of a row in a frame: lengths and tags, at most 5 bytes each.


class Executor(Protocol):
    """Runs one blocking call at a time away from the loop."""

    def run(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run `work` elsewhere, then `done(error or None)` on the loop."""

    def stop(self, within_s: float) -> bool:
        """Begin nothing more and call nobody back; return whether nothing is under way any more.

        Blocks until then, at most so many seconds; harmless when it has stopped.
        """


class Syncer(Protocol):
    """Makes what was written to a segment durable; one sync at a time."""

    @property
    def by_kernel(self) -> bool:
        """Return whether the kernel does it, and no thread of the node."""

    def sync(self, file: SegmentFile, done: Synced) -> None:
        """Sync elsewhere, then call `done(error or None)` on the loop, never before it returns.

        With an OSError, what is on disk is unknown.
        """

    def stop(self, within_s: float) -> bool:
        """Call nobody back any more; return whether no sync is under way any more.

        Blocks until then, at most so many seconds; harmless when it has stopped. As long as one is
        under way the file must stay open: its descriptor could become another file's.
        """


@dataclass(frozen=True, slots=True)
class _Asked:
    write: Write
    done: Done
    at: float


class WalWriter:
    """The loop's side of the write-ahead log; every method but `kept` belongs to the loop.

    One job is on its way at a time. What is asked for meanwhile shares the next one: shards that
    write together wait for one sync.

    Attributes:
        completed: Whoever asked for a write up to this job has been told.
    """

    def __init__(
        self,
        wal: Wal,
        *,
        executor: Executor,
        syncer: Syncer | None,
        call_soon: Callable[[Callable[[], None]], object],
        now: Callable[[], float],
        took: Callable[[int, float], None] = lambda _shard, _seconds: None,
    ) -> None:
        """Wrap a log that has begun.

        Args:
            wal: The node's.
            executor: Where the log waits for room on the disk.
            syncer: Waits for the disk to have a job; None when the operating system is enough.
            call_soon: Runs a call on the loop's next pass.
            now: Monotonic seconds.
            took: Told (shard, seconds) of every write.
        """
        self._wal = wal
        self._executor = executor
        self._syncer = syncer
        self._call_soon = call_soon
        self._now = now
        self._took = took
        self._asked: list[_Asked] = []
        self._job: list[_Asked] = []
        self._works = False
        self.completed = wal.seq

    @property
    def seq(self) -> int:
        """Return the last job that was begun."""
        return self._wal.seq

    def kept(self, shard: int, after: int) -> list[Write]:
        """Return what the disk holds of a shard's writes behind a job; blocks."""
        return self._wal.kept(shard, after)

    def write(self, write: Write, done: Done) -> None:
        """Make a write durable, then call `done(job, None)`; `done(job, error)` if it may not be.

        Never calls `done` before it returns.
        """
        self._asked.append(_Asked(write, done, self._now()))
        if not self._works:
            self._works = True
            # Groups whose turn is in the same pass of the loop share even the first job.
            self._call_soon(self._begin)

    def stop(self) -> None:
        """Begin nothing more; who waits is not told."""
        self._asked.clear()

    def _begin(self) -> None:
        self._job, self._asked = self._asked, []
        if not self._job:
            self._works = False
            return
        size = sum(_weight(asked.write) for asked in self._job)
        if self._wal.has_room(size):
            self._append(None)
        else:
            self._executor.run(lambda: self._wal.make_room(size), self._append)

    def _append(self, error: BaseException | None) -> None:
        if error is None:
            try:
                self._wal.append(self._wal.frame([asked.write for asked in self._job]))
            except StorageFailed as failure:
                error = failure
        if error is None and self._syncer is not None:
            self._syncer.sync(self._wal.file, self._synced)
        else:
            self._finished(error)

    def _synced(self, error: BaseException | None) -> None:
        if isinstance(error, OSError):
            error = self._wal.not_synced(error)
        self._finished(error)

    def _finished(self, error: BaseException | None) -> None:
        job, seq, now = self._job, self._wal.seq, self._now()
        if error is None:
            self._wal.synced()
        for asked in job:
            self._took(asked.write.shard, now - asked.at)
            asked.done(seq, error)
        self.completed = seq
        self._begin()


def _weight(write: Write) -> int:
    rows: Sequence[tuple[bytes, bytes]] = (*write.puts, *write.delete_ranges)
    return sum(map(len, chain.from_iterable(rows))) + ROW_OVERHEAD_BYTES * (len(rows) + 1)
