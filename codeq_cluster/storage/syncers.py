"""Syncers: the ways in which a node waits until the disk has its write-ahead log."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from codeq_cluster.settings import LogSync
from codeq_cluster.storage.kernel_aio import KernelAio
from codeq_cluster.storage.segment_files import OpenSegment
from codeq_cluster.storage.wal import SegmentFile
from codeq_cluster.storage.wal_writer import Executor, Synced, Syncer

log = logging.getLogger(__name__)

# One sync in this many takes the way not in use, so that its present cost is known.
TRY_EVERY = 64
# The medians of this many syncs are compared, so that one hiccup of the disk decides nothing.
COMPARED = 5
# The kernel's way takes a third of the CPU, so the thread must be clearly faster to be chosen.
SLOWER_MAX = 1.5


class Readers(Protocol):
    """The event loop's watch on descriptors."""

    def add_reader(self, fd: int, callback: Callable[[], None]) -> object:
        """Call `callback` whenever `fd` is readable."""

    def remove_reader(self, fd: int) -> object:
        """Stop calling back for `fd`."""


class ThreadSyncer:
    """Hands each sync to the thread that waits for the disk; implements `wal_writer.Syncer`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def by_kernel(self) -> bool:
        """Return whether the kernel syncs: it never does here."""
        return False

    def sync(self, file: SegmentFile, done: Synced) -> None:
        """Sync in the thread, then call `done` on the loop."""
        self._executor.run(file.sync, done)

    def stop(self, within_s: float) -> bool:
        """Stop calling back; return whether the thread has ended its work."""
        return self._executor.stop(within_s)


class KernelSyncer:
    """Lets the kernel sync; implements `wal_writer.Syncer` for segments that are files.

    When the kernel refuses a sync request, the disk has not been asked, so no data is in doubt.
    From then on the other syncer does the work, beginning with the refused sync.

    Args:
        readers: The loop's watch on descriptors.
        otherwise: Syncs when the kernel does not.
    """

    def __init__(self, readers: Readers, *, otherwise: Syncer) -> None:
        self._readers = readers
        self._otherwise = otherwise
        self._aio: KernelAio | None = None
        self._done: Synced | None = None
        self._refused = False

    @property
    def by_kernel(self) -> bool:
        """Return whether the kernel syncs, as far as is known."""
        return not self._refused

    def sync(self, file: SegmentFile, done: Synced) -> None:
        """Begin a sync in the kernel, and call `done` on the loop when it has ended."""
        assert isinstance(file, OpenSegment), "the kernel syncs files"
        if not self._refused:
            try:
                (self._aio or self._open()).submit(file.fd)
            except OSError as error:
                self._give_up(error)
            else:
                self._done = done
                return
        self._otherwise.sync(file, done)

    def stop(self, within_s: float) -> bool:
        """Stop calling back; return False if a sync is still under way."""
        if self._refused:
            return self._otherwise.stop(within_s)
        return self._close(within_s)

    def _open(self) -> KernelAio:
        """Open the kernel's side with the first sync: earlier steps of a start can fail."""
        self._aio = aio = KernelAio()
        self._readers.add_reader(aio.fileno(), self._ready)
        return aio

    def _give_up(self, error: OSError) -> None:
        self._refused = True
        log.info(
            "the log is synced by a thread: the kernel refused",
            extra={"error": str(error), "setting": "store.sync"},
        )
        closed = self._close(0)
        assert closed, "a sync that was refused is not under way"

    def _close(self, within_s: float) -> bool:
        self._done = None
        aio, self._aio = self._aio, None
        if aio is None:
            return True
        self._readers.remove_reader(aio.fileno())
        return aio.close(within_s)

    def _ready(self) -> None:
        assert self._aio is not None, "the descriptor is watched as long as it is open"
        error: OSError | None = None
        try:
            if not self._aio.done():
                return
        except OSError as failure:
            error = failure
        done, self._done = self._done, None
        assert done is not None, "a sync that ended was asked for"
        done(error)


class AdaptiveSyncer:
    """Syncs by the kernel, or by the thread while that is clearly faster; a `wal_writer.Syncer`.

    Which is faster depends on the machine and its load. The kernel's worker stays on the core that
    asked it, and waits there behind every busy process; a thread moves to another core.

    Args:
        by_kernel: The way that takes less CPU.
        by_thread: The other way.
        now: Monotonic seconds.
    """

    def __init__(self, by_kernel: Syncer, by_thread: Syncer, *, now: Callable[[], float]) -> None:
        self._ways: dict[bool, Syncer] = {True: by_kernel, False: by_thread}
        self._took: dict[bool, deque[float]] = {way: deque(maxlen=COMPARED) for way in self._ways}
        self._typical: dict[bool, float] = {}  # Seconds of a way that was taken.
        self._prefers_kernel = True
        self._since_tried = 0
        self._now = now

    @property
    def by_kernel(self) -> bool:
        """Return whether the kernel does most syncs now."""
        return self._prefers_kernel and self._ways[True].by_kernel

    def sync(self, file: SegmentFile, done: Synced) -> None:
        """Sync one way or the other, then call `done` on the loop."""
        way = self._prefers_kernel
        self._since_tried += 1
        if self._since_tried >= TRY_EVERY:
            self._since_tried = 0
            way = not way
        began = self._now()

        def ended(error: BaseException | None) -> None:
            took, typical = self._took[way], self._typical
            took.append(self._now() - began)
            # The median; of an even number, the lower of the two in the middle.
            typical[way] = sorted(took)[(len(took) - 1) // 2]
            if len(typical) == len(self._ways):
                self._prefers_kernel = typical[True] <= SLOWER_MAX * typical[False]
            done(error)

        self._ways[way].sync(file, ended)

    def stop(self, within_s: float) -> bool:
        """Stop calling back; return False if a sync is still under way."""
        until = self._now() + within_s
        stopped = [way.stop(max(0.0, until - self._now())) for way in self._ways.values()]
        return all(stopped)


def syncer_of(
    sync: LogSync, executor: Executor, readers: Readers, now: Callable[[], float]
) -> Syncer:
    """Return the syncer that the settings name."""
    by_thread = ThreadSyncer(executor)
    if sync is LogSync.THREAD:
        return by_thread
    by_kernel = KernelSyncer(readers, otherwise=by_thread)
    return by_kernel if sync is LogSync.KERNEL else AdaptiveSyncer(by_kernel, by_thread, now=now)
