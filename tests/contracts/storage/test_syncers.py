"""Syncers: kernel, thread and simulator report each sync once, and on the loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import platform
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from codeq_cluster.raft.io_adapters import DiskThread
from codeq_cluster.settings import LogSync
from codeq_cluster.storage.segment_files import OpenSegment, SegmentFiles
from codeq_cluster.storage.syncers import KernelSyncer, ThreadSyncer, syncer_of
from codeq_cluster.storage.wal import SegmentFile
from codeq_cluster.storage.wal_writer import Syncer
from tests.simulator.clock import SimClock, SimTimers
from tests.simulator.disk import SimExecutor, SimSegments

PATIENCE_S = 60.0
SYNC_S = 0.01
NAME = "segment-000000000001"


class Told:
    """Every reported outcome of a sync."""

    def __init__(self) -> None:
        self.outcomes: list[BaseException | None] = []
        self.once = asyncio.Event()

    def done(self, error: BaseException | None) -> None:
        """Note one outcome."""
        self.outcomes.append(error)
        self.once.set()


@dataclass(frozen=True)
class Way:
    """A syncer, and a segment to sync.

    Attributes:
        wait: Returns when an outcome is reported.
    """

    syncer: Syncer
    file: SegmentFile
    wait: Callable[[Told], Awaitable[None]]


@asynccontextmanager
async def simulated() -> AsyncIterator[Way]:
    """Yield the simulator's syncer."""
    clock = SimClock()
    file, _ = SimSegments(lambda: False).create(NAME, b"head", 100)

    async def wait(_told: Told) -> None:
        clock.run_until(clock.now + 2 * SYNC_S)

    yield Way(ThreadSyncer(SimExecutor(SimTimers(clock), lambda: SYNC_S)), file, wait)


async def told_on_the_loop(told: Told) -> None:
    """Let the loop run until an outcome is reported."""
    await asyncio.wait_for(told.once.wait(), PATIENCE_S)


@asynccontextmanager
async def real(path: Path, sync: LogSync) -> AsyncIterator[Way]:
    """Yield a node's syncer; the kernel's must not have fallen back on the thread."""
    loop = asyncio.get_running_loop()
    disk = DiskThread(loop)
    syncer = syncer_of(sync, disk, loop, loop.time)
    file, _ = SegmentFiles(path).create(NAME, b"head", 100)
    yield Way(syncer, file, told_on_the_loop)
    assert syncer.stop(PATIENCE_S)
    assert disk.stop(PATIENCE_S)
    assert sync is not LogSync.KERNEL or syncer.by_kernel
    file.close()


@pytest.fixture(params=["simulated", *LogSync])
async def way(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Way]:
    """Yield one of each kind."""
    kind = request.param
    async with simulated() if kind == "simulated" else real(tmp_path, LogSync(kind)) as one:
        yield one


async def test_a_sync_is_reported_once_and_never_synchronously(way: Way) -> None:
    """At every sync, the caller continues before the report."""
    for n in range(5):
        told = Told()
        way.file.write(10 * n, b"x" * 10)
        way.syncer.sync(way.file, told.done)
        assert [] == told.outcomes
        await way.wait(told)

        assert [None] == told.outcomes


async def test_the_next_sync_may_be_requested_where_one_is_reported(way: Way) -> None:
    """A job follows the one before it in the same way."""
    first, second = Told(), Told()

    def then(error: BaseException | None) -> None:
        first.done(error)
        way.syncer.sync(way.file, second.done)

    way.syncer.sync(way.file, then)
    await way.wait(first)
    await way.wait(second)

    assert ([None], [None]) == (first.outcomes, second.outcomes)


async def test_no_sync_is_reported_after_a_stop(way: Way) -> None:
    """The sync under way has ended when the stop returns, so the file may be closed."""
    told = Told()
    way.syncer.sync(way.file, told.done)
    assert way.syncer.stop(PATIENCE_S)
    assert way.syncer.stop(PATIENCE_S)
    for _ in range(10):
        await asyncio.sleep(0)

    assert [] == told.outcomes


async def test_a_thread_that_hangs_is_waited_for_as_long_as_was_said() -> None:
    """After that time a file may still be in use, and queued work never begins."""
    disk = DiskThread(asyncio.get_running_loop())
    hangs, goes_on = threading.Event(), threading.Event()
    done: list[object] = []

    def hang() -> None:
        hangs.set()
        assert goes_on.wait(PATIENCE_S)
        done.append("work")

    disk.run(hang, done.append)
    disk.run(lambda: done.append("work after the stop"), done.append)
    assert await asyncio.to_thread(hangs.wait, PATIENCE_S)
    assert not disk.stop(0.01)
    goes_on.set()

    assert disk.stop(PATIENCE_S)
    assert ["work"] == done


def no_such_machine(monkeypatch: pytest.MonkeyPatch, file: Path) -> OpenSegment:
    """Return a file on a machine whose system calls are unknown."""
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    return OpenSegment(os.open(file, os.O_RDWR | os.O_CREAT))


def no_such_file_system(_monkeypatch: pytest.MonkeyPatch, file: Path) -> OpenSegment:
    """Return a file that has no sync at all, so the thread fails too."""
    os.mkfifo(file)
    return OpenSegment(os.open(file, os.O_RDWR))


@pytest.mark.parametrize(
    ("refusing", "code"), [(no_such_machine, None), (no_such_file_system, errno.EINVAL)]
)
async def test_what_the_kernel_refuses_the_thread_does_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    refusing: Callable[[pytest.MonkeyPatch, Path], OpenSegment],
    code: int | None,
) -> None:
    """The disk decides each sync's outcome; one line of the log reports the change."""
    caplog.set_level(logging.INFO)
    disk = DiskThread(asyncio.get_running_loop())
    syncer = KernelSyncer(asyncio.get_running_loop(), otherwise=ThreadSyncer(disk))
    file = refusing(monkeypatch, tmp_path / "file")
    told: list[BaseException | None] = []
    for _ in range(3):
        one = Told()
        syncer.sync(file, one.done)
        await told_on_the_loop(one)
        told += one.outcomes
    assert syncer.stop(PATIENCE_S)
    file.close()

    assert not syncer.by_kernel
    assert [code] * 3 == [error.errno if isinstance(error, OSError) else error for error in told]
    assert 1 == caplog.text.count("the log is synced by a thread: the kernel refused")
