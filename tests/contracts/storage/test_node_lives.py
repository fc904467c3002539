"""Lives of a node's storage on real files: killed, stopped, and started from what remains."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from random import Random

import pytest

from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.offline.check import examined
from codeq_cluster.offline.force_single_member import survivor
from codeq_cluster.offline.inspect import stopped_node
from codeq_cluster.settings import LogSync
from codeq_cluster.storage import node_storage
from codeq_cluster.storage.node_storage import NodeStorage
from codeq_cluster.storage.segment_files import OpenSegment

from . import storage_process
from .storage_process import row_of, storage_of, stored_rows, write

SHARDS = 3
PROGRAM = Path(storage_process.__file__)
LIVES = 6
ROWS = 30
PATIENCE_S = 60.0


def killed(path: Path, *, after: int, sync: LogSync) -> dict[int, int]:
    """Run the program, kill it after this many durable rows; return the last row by shard."""
    acknowledged: dict[int, int] = {}
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(path), str(SHARDS), sync],
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        for count, line in enumerate(program.stdout, 1):
            shard, number = map(int, line.split())
            acknowledged[shard] = number
            if count == after:
                program.kill()
        # Lines that were printed before the kill count, even if they are read after it.
    assert -signal.SIGKILL == program.returncode
    return acknowledged


def has_wal(path: Path) -> bool:
    """Return whether the directory records that it has a write-ahead log."""
    recorded: bool = json.loads((path / "node.json").read_text())["hasWal"]
    return recorded


async def test_what_a_killed_process_acknowledged_is_there_at_the_next_start(
    tmp_path: Path,
) -> None:
    """Over many lives, killed at any moment, no row is lost and no trimmed row returns alone."""
    path, random = tmp_path / "data", Random(7)
    # The syncer may change from start to start.
    for _, sync in zip(range(LIVES), cycle(LogSync), strict=False):
        acknowledged = killed(path, after=random.randint(1, 600), sync=sync)
        assert has_wal(path)
        async with storage_of(path, shards=SHARDS, planned=False) as storage:
            for shard in range(SHARDS):
                rows, state = stored_rows(storage, shard), storage.shards[shard].state
                numbers = [int.from_bytes(key[4:], "big") for key in rows]

                assert max(numbers, default=1) >= acknowledged.get(shard, 1)
                assert dict(map(row_of, numbers)) == rows
                assert list(range(min(numbers, default=0), max(numbers, default=-1) + 1)) == numbers
                assert state.applied_index <= max(numbers, default=1)
                assert min(numbers, default=2) <= state.applied_index + 1


async def filled(path: Path, *, planned: bool) -> None:
    """Make a directory of two shards, one of which has a row."""
    async with storage_of(path, shards=2, planned=planned) as storage:
        await write(storage, 0, row_of(2))


async def test_a_planned_stop_leaves_every_row_in_the_databases(tmp_path: Path) -> None:
    """Another release need not read this one's write-ahead log: there is none."""
    path = tmp_path / "data"
    await filled(path, planned=True)

    assert not has_wal(path)
    assert not list((path / "wal").glob("segment-*"))
    async with storage_of(path, shards=2, planned=False) as storage:
        assert has_wal(path)
        assert dict([row_of(2)]) == stored_rows(storage, 0)


@pytest.mark.parametrize("sync", LogSync)
async def test_a_stop_while_a_sync_is_under_way_is_a_planned_one(
    tmp_path: Path, sync: LogSync
) -> None:
    """Acknowledged rows are there; the write in progress gets no report."""
    path = tmp_path / "data"
    told: list[BaseException | None] = []
    async with storage_of(path, shards=2, planned=True, sync=sync) as storage:
        await write(storage, 0, row_of(2))
        storage.shards[1].log.write([row_of(2)], [], told.append)
        # The job begins in the next pass of the loop.
        await asyncio.sleep(0)
        assert storage._writer.seq > storage._writer.completed
    await asyncio.sleep(0)

    assert [] == told
    assert not has_wal(path)
    async with storage_of(path, shards=2, planned=False, sync=sync) as storage:
        assert dict([row_of(2)]) == stored_rows(storage, 0)


async def test_a_stop_does_not_wait_for_ever_for_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log stays, and its file stays open for the sync that may still come."""
    monkeypatch.setattr(node_storage, "_STOP_S", 0.01)
    path, hangs, goes_on = tmp_path / "data", threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        assert goes_on.wait(PATIENCE_S)

    async with storage_of(path, shards=2, planned=False) as storage:
        await write(storage, 0, row_of(2))
        storage._executor.run(hang, lambda _error: None)
        assert await asyncio.to_thread(hangs.wait, PATIENCE_S)
        storage.stop()
        file = storage._wal.file
        assert isinstance(file, OpenSegment)
        os.fstat(file.fd)
        goes_on.set()

    assert "the disk does not answer" in caplog.text
    assert has_wal(path)
    async with storage_of(path, shards=2, planned=False) as storage:
        assert dict([row_of(2)]) == stored_rows(storage, 0)


@pytest.mark.parametrize("left", [1, 2])
async def test_a_planned_stop_that_was_cut_off_is_no_loss(tmp_path: Path, left: int) -> None:
    """The log counts until its end is recorded; after that, left-over segments do not."""
    path = tmp_path / "data"
    await filled(path, planned=False)
    kept = {file: file.read_bytes() for file in (path / "wal").glob("segment-*")}
    identity = (path / "node.json").read_text()
    async with storage_of(path, shards=2, planned=True):
        pass
    for file, content in kept.items():
        file.write_bytes(content)
    if left == 2:
        (path / "node.json").write_text(identity)

    async with storage_of(path, shards=2, planned=False) as storage:
        assert dict([row_of(2)]) == stored_rows(storage, 0)
        await write(storage, 1, row_of(2))
    async with storage_of(path, shards=2, planned=False) as storage:
        assert stored_rows(storage, 0) == stored_rows(storage, 1) == dict([row_of(2)])


async def spilled(storage: NodeStorage) -> None:
    """Write rows to the first shard, each in a batch of its own for the database."""
    for number in range(2, ROWS + 2):
        await write(storage, 0, row_of(number))
        assert storage._spiller.spill_all()


async def released(storage: NodeStorage) -> None:
    """Sync the rows of the first shard, and delete their segment."""
    await spilled(storage)
    for number in range(8):
        await write(storage, 1, (row_of(number)[0], bytes(2**16)))
    upto = storage._writer.completed
    for shard in storage.shards:
        assert shard.spill(seq=upto)
        shard.sync()
    storage._wal.release(upto)


async def stopped(storage: NodeStorage) -> None:
    """Stop as planned."""
    await spilled(storage)
    storage.stop()


async def cut_off(path: Path, story: Callable[[NodeStorage], Awaitable[None]]) -> Path:
    """Return the directory as it is after the story, with RocksDB's logs; a close ends them."""
    async with storage_of(path / "open", shards=2, planned=False) as storage:
        await story(storage)
        return shutil.copytree(path / "open", path / "data")


def own_log(path: Path) -> Path:
    """Return the log that RocksDB itself has of the shard with rows."""
    return max((path / "shard-0").glob("*.log"), key=lambda file: file.stat().st_size)


def lose_pages(file: Path, first: float, last: float) -> None:
    """Fill a part of the file, by fractions of its length, with zeros."""
    content = bytearray(file.read_bytes())
    lost = slice(int(first * len(content)), int(last * len(content)))
    content[lost] = bytes(lost.stop - lost.start)
    file.write_bytes(content)


def damages(path: Path) -> tuple[str, ...]:
    """Return the findings of `repair`."""
    with examined(path) as found:
        return found.damages


def logged(path: Path) -> dict[bytes, bytes]:
    """Return the rows of the log that `inspect` and `cluster recover` show."""
    with stopped_node(path) as node:
        return dict(node._shards[0].log_rows(b"log/", b"log0"))


@pytest.mark.parametrize(("first", "last"), [(0.0, 1.0), (0.4, 0.5), (0.7, 1.0)])
async def test_pages_that_a_power_cut_took_from_a_database_are_no_loss(
    tmp_path: Path, first: float, last: float
) -> None:
    """Unsynced pages reach the disk in any order; the write-ahead log has all of their rows."""
    path = await cut_off(tmp_path, spilled)
    rows = dict(map(row_of, range(2, ROWS + 2)))
    before = damages(path)
    lose_pages(own_log(path), first, last)

    assert before == damages(path)
    assert rows == logged(path)
    async with storage_of(path, shards=2, planned=False) as storage:
        assert rows == stored_rows(storage, 0)


@pytest.mark.parametrize("story", [released, stopped])
async def test_rows_that_only_a_damaged_database_had_are_missed(
    tmp_path: Path, story: Callable[[NodeStorage], Awaitable[None]]
) -> None:
    """No write-ahead log has them: each look and start refuses the shard, and deletes nothing."""
    path = await cut_off(tmp_path, story)
    own = own_log(path)
    lose_pages(own, 0.4, 0.5)
    left = own.read_bytes()

    for _ in range(2):
        with pytest.raises(StorageFailed, match=r"reading shard-0: .*Corruption"):
            logged(path)
        assert any("shard-0" in line and "Corruption" in line for line in damages(path))
        with pytest.raises(DataDirectoryRefused, match=r"shard-0 cannot be opened: .*Corruption"):
            async with storage_of(path, shards=2, planned=False):
                pass
        with (
            pytest.raises(DataDirectoryRefused, match=r"shard-0 cannot be opened: .*Corruption"),
            survivor(path),
        ):
            pass
    assert left == own.read_bytes()


def lose(segment: Path) -> None:
    """Delete the segment."""
    segment.unlink()


def cut_head(segment: Path) -> None:
    """Leave a few bytes of the segment."""
    segment.write_bytes(segment.read_bytes()[:5])


def flip_first_job(segment: Path) -> None:
    """Change a byte of the first of several jobs."""
    content = bytearray(segment.read_bytes())
    content[content.index(b"log/") + 20] ^= 0x5A
    segment.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lose, "the write-ahead log is gone"),
        (cut_head, "is damaged: no header"),
        (flip_first_job, "is damaged, one behind it is whole"),
    ],
)
async def test_a_damaged_write_ahead_log_is_refused_by_name(
    tmp_path: Path, damage: Callable[[Path], None], text: str
) -> None:
    """A start, `inspect` and `repair` refuse it, because nothing else here has its rows."""
    path = tmp_path / "data"
    async with storage_of(path, shards=2, planned=False) as storage:
        for number in (2, 3, 4):
            await write(storage, 0, row_of(number))
    [segment] = (path / "wal").glob("segment-*")
    damage(segment)

    with pytest.raises(DataDirectoryRefused, match=text):
        async with storage_of(path, shards=2, planned=False):
            pass
    with pytest.raises(StorageFailed, match=text), stopped_node(path):
        pass
    with examined(path) as found:
        assert any(text in line for line in found.damages)
