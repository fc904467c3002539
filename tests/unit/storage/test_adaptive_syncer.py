"""Adaptive syncer: the log is synced by the faster way, and by the kernel when in doubt."""

from __future__ import annotations

from codeq_cluster.storage.syncers import COMPARED, SLOWER_MAX, TRY_EVERY, AdaptiveSyncer
from codeq_cluster.storage.wal import SegmentFile
from codeq_cluster.storage.wal_writer import Synced
from tests.simulator.disk import SimSegments

KERNEL_S, THREAD_S = 0.001, 0.002


class Clock:
    """Seconds that advance when a sync takes them."""

    def __init__(self) -> None:
        self.now = 0.0


class Way:
    """Syncs that take a given time."""

    by_kernel = True

    def __init__(self, clock: Clock, took_s: float) -> None:
        self.clock = clock
        self.took_s = took_s
        self.synced = 0
        self.stopped_within: float | None = None

    def sync(self, file: SegmentFile, done: Synced) -> None:
        """Take that time."""
        del file
        self.clock.now += self.took_s
        self.synced += 1
        done(None)

    def stop(self, within_s: float) -> bool:
        """Take that time to stop; fail if the bound is shorter."""
        self.stopped_within = within_s
        self.clock.now += self.took_s
        return self.took_s <= within_s


class Both:
    """A syncer and its two ways."""

    def __init__(self) -> None:
        clock = Clock()
        self.kernel, self.thread = Way(clock, KERNEL_S), Way(clock, THREAD_S)
        self.syncer = AdaptiveSyncer(self.kernel, self.thread, now=lambda: clock.now)
        self._file, _ = SimSegments(lambda: False).create("segment", b"head", 100)

    def sync(self, times: int) -> tuple[int, int]:
        """Sync this many times; return how many the kernel and the thread did."""
        before = self.kernel.synced, self.thread.synced
        outcomes: list[BaseException | None] = []
        for _ in range(times):
            self.syncer.sync(self._file, outcomes.append)

        assert [None] * times == outcomes
        return self.kernel.synced - before[0], self.thread.synced - before[1]


def test_the_kernel_syncs_and_the_thread_is_tried_now_and_then() -> None:
    """One sync in many measures the way that is not in use."""
    both = Both()

    assert (4 * TRY_EVERY - 4, 4) == both.sync(4 * TRY_EVERY)
    assert both.syncer.by_kernel


def test_a_thread_that_is_clearly_faster_takes_over() -> None:
    """Where other processes keep all cores busy, the thread wins; the kernel is still measured."""
    both = Both()
    both.kernel.took_s = SLOWER_MAX * THREAD_S + 0.001
    both.sync(TRY_EVERY)

    assert not both.syncer.by_kernel
    assert (4, 4 * TRY_EVERY - 4) == both.sync(4 * TRY_EVERY)


def test_a_thread_that_is_hardly_faster_does_not() -> None:
    """The thread takes three times the CPU, so a small gain is not enough."""
    both = Both()
    both.kernel.took_s = SLOWER_MAX * THREAD_S
    both.sync(TRY_EVERY)

    assert both.syncer.by_kernel


def test_the_kernel_takes_over_again_once_it_is_as_fast() -> None:
    """The kernel returns when the load has gone."""
    both = Both()
    both.kernel.took_s = 10 * THREAD_S
    both.sync(TRY_EVERY)
    both.kernel.took_s = THREAD_S
    both.sync(COMPARED * TRY_EVERY)

    assert both.syncer.by_kernel


def test_a_hiccup_of_the_disk_decides_nothing() -> None:
    """One slow sync among several does not move the median."""
    both = Both()
    both.sync(2 * TRY_EVERY)
    both.kernel.took_s = 1.0
    both.sync(COMPARED // 2)

    assert both.syncer.by_kernel


def test_both_ways_are_stopped_within_the_time_for_one() -> None:
    """The time that the first way takes to stop is taken from the second."""
    both = Both()

    assert both.syncer.stop(KERNEL_S + THREAD_S + 0.001)
    assert not both.syncer.stop(KERNEL_S + THREAD_S / 2)
    assert both.thread.stopped_within is not None
    assert both.thread.stopped_within < THREAD_S
