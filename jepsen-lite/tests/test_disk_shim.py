"""The disk shim: each fault strikes a sync through the kernel as it strikes one on a thread."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codeq_cluster.settings import LogSync
from jepsen_lite.disk import Disk, DiskFault
from jepsen_lite.running import HOME
from jepsen_lite.shims import shim

pytestmark = pytest.mark.needs("gcc")

PROGRAM = Path(__file__).with_name("synced_writer.py")


class Written:
    """A process that writes to a disk with faults.

    Attributes:
        disk: Its disk.
        file: The file it writes.
    """

    def __init__(self, disk: Disk, file: Path, process: subprocess.Popen[str]) -> None:
        self.disk = disk
        self.file = file
        self._process = process

    def append(self, line: str) -> None:
        """Make it write a line without a sync."""
        assert "written" == self._answer("+" + line)

    def sync(self, line: str = "") -> tuple[int, int]:
        """Make it write a line and sync; return the error, 0 for none, and the loop's turns."""
        error, turns = map(int, self._answer(line).split())
        return error, turns

    def _answer(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def end(self) -> int:
        """Close its input; return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait()

    def lose_power(self) -> str:
        """Cut its power; return the remaining content of the file."""
        self._process.kill()
        self._process.wait()
        self.disk.cut_power()
        return self.file.read_text()


@contextmanager
def writing(path: Path, way: LogSync) -> Iterator[Written]:
    """Run a writer on a new disk."""
    disk = Disk(path / "data", path / "disk")
    (path / "data").mkdir()
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(path / "data" / "wal"), way],
        env={
            **os.environ,
            "PYTHONPATH": str(HOME.parent),
            **disk.environment,
            "LD_PRELOAD": str(shim("disk")),
        },
        cwd=HOME.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Written(disk, path / "data" / "wal" / "segment-1", process)
        finally:
            process.kill()


@pytest.fixture(params=LogSync)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Written]:
    """Yield a writer that has synced a line: one syncs through the kernel, one on a thread."""
    with writing(tmp_path, request.param) as found:
        error, _ = found.sync("one")
        assert not error
        yield found


def test_a_power_cut_takes_only_unsynced_lines(written: Written) -> None:
    """A power cut takes only unsynced lines, and the shim saw every sync."""
    before = written.disk.syncs
    assert 0 == written.sync("two")[0]
    written.append("three")

    assert before + 1 == written.disk.syncs
    assert "head\none\ntwo\n" == written.lose_power()


def test_a_disk_that_lies_loses_what_it_said_was_synced(written: Written) -> None:
    """After a power cut, the lines that a lying disk confirmed are gone."""
    written.disk.fault(DiskFault.LIE)
    assert 0 == written.sync("two")[0]

    assert 1 == written.disk.struck
    assert "head\none\n" == written.lose_power()


@pytest.mark.parametrize(
    ("fault", "code"), [(DiskFault.ERROR, errno.EIO), (DiskFault.FULL, errno.ENOSPC)]
)
def test_a_disk_that_refuses_a_sync_is_heard_of(
    written: Written, fault: DiskFault, code: int
) -> None:
    """The writer gets the disk's own error, and the refused line is not durable."""
    written.append("two")
    written.disk.fault(fault)
    refused, _ = written.sync()
    written.disk.fault(DiskFault.NONE)

    assert code == refused
    assert 1 == written.disk.struck
    assert "head\none\n" == written.lose_power()


def test_a_slow_disk_delays_only_the_caller_of_the_sync(written: Written) -> None:
    """The event loop keeps turning until the sync is reported, and the process can exit."""
    written.disk.fault(DiskFault.SLOW, delay_ms=500)
    error, turns = written.sync("two")

    assert 0 == error
    assert turns > 2
    assert 1 == written.disk.struck
    assert 0 == written.end()
