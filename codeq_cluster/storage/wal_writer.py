"""WAL writer: gathers the simultaneous writes of a node's shards into one job of the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Protocol

from msgspec import Struct

from codeq_cluster.errors import StorageFailed
from codeq_cluster.forwarded import forwarded
from codeq_cluster.storage.segments import Write
from codeq_cluster.storage.wal import SegmentFile, Wal

Done = Callable[[int, BaseException | None], None]
Synced = Callable[[BaseException | None], None]


class Executor(Protocol):
    """Runs one blocking call at a time away from the loop."""

    def run(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run `work` elsewhere, then `done(error or None)` on the loop."""

    def stop(self, within_s: float) -> bool:
        """Begin no more work and call nobody back; return whether all work has ended.

        Blocks until then, but at most `within_s` seconds; harmless when it has stopped already.
        """


class Syncer(Protocol):
    """Makes the writes to a segment durable; one sync at a time."""

    @property
    def by_kernel(self) -> bool:
        """Return whether the kernel syncs, rather than a thread of the node."""

    def sync(self, file: SegmentFile, done: Synced) -> None:
        """Sync elsewhere, then call `done(error or None)` on the loop, never before this returns.

        After an OSError the content of the disk is unknown.
        """

    def stop(self, within_s: float) -> bool:
        """Stop calling back; return False if a sync is still under way.

        Blocks until none is, but at most `within_s` seconds; harmless when it has stopped already.
        While a sync is under way the file must stay open, because another file could get its
        descriptor.
        """


_write_of = attrgetter("write")


class _Asked(Struct, frozen=True):
    write: Write
    done: Done
    at: float


class WalWriter:
    """The loop's side of the write-ahead log; every method but `kept` belongs to the loop.

    One job is under way at a time, and the requests made meanwhile share the next one. Shards that
    write together thus wait for one sync.

    Attributes:
        seq: The number of the last job that was begun.
        completed: Every write up to this job has been reported to its caller.
    """

    seq: int = forwarded("_wal.seq")

    def __init__(
        self,
        wal: Wal,
        *,
        executor: Executor,
        syncer: Syncer | None,
        call_last: Callable[[Callable[[], None]], object],
        now: Callable[[], float],
        on_synced: Callable[[float, int], None] = lambda _seconds, _shard: None,
    ) -> None:
        """Wrap a log that has begun.

        Args:
            executor: Runs the calls that wait for room on the disk.
            syncer: Waits until the disk has a job; None when the operating system is enough.
            call_last: Runs a call at the end of the loop's pass.
            now: Monotonic seconds.
            on_synced: Called with (seconds, shard) of every write, once it is durable or failed.
        """
        self._wal = wal
        self._executor = executor
        self._syncer = syncer
        self._call_last = call_last
        self._now = now
        self._on_synced = on_synced
        self._asked: list[_Asked] = []
        self._job: list[_Asked] = []
        self._works = False
        self.completed = wal.seq

    @property
    def pending(self) -> int:
        """Return the number of the job that is under way; 0 for none."""
        return self.completed + 1 if self._works else 0

    def kept(self, shard: int, after: int) -> list[Write]:
        """Return a shard's writes on disk after a job; blocks."""
        return self._wal.kept(shard, after)

    def write(self, write: Write, done: Done) -> None:
        """Make a write durable, then call `done(job, None)`; `done(job, error)` if it may not be.

        `done` is never called before this returns.
        """
        self._asked.append(_Asked(write, done, self._now()))
        if not self._works:
            self._works = True
            # Groups that take their turn in the same pass of the loop share even the first job.
            self._call_last(self._begin)

    def stop(self) -> None:
        """Begin no more jobs; callers that wait get no answer."""
        self._asked.clear()

    def _begin(self) -> None:
        self._job, self._asked = self._asked, []
        if self._job:
            self._append(None)
        else:
            self._works = False

    def _append(self, error: BaseException | None) -> None:
        wal = self._wal
        if error is None:
            try:
                needed = wal.append(list(map(_write_of, self._job)))
            except StorageFailed as failure:
                error = failure
            else:
                if needed:
                    self._executor.run(partial(wal.make_room, needed), self._append)
                    return
        if error is None and self._syncer is not None:
            assert wal.file is not None, "a job was written"
            self._syncer.sync(wal.file, self._finished)
        else:
            self._finished(error)

    def _finished(self, error: BaseException | None) -> None:
        wal, job, now = self._wal, self._job, self._now()
        seq = wal.seq
        if error is None:
            wal.durable = seq
        elif isinstance(error, OSError):
            error = wal.not_synced(error)
        for asked in job:
            self._on_synced(now - asked.at, asked.write.shard)
            asked.done(seq, error)
        self.completed = seq
        self._works = bool(self._asked)
        if self._works:
            self._begin()
