"""RocksShard on its disk: restarts, torn tails, damage and a second process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rocksdict import Rdict, WriteBatch, WriteOptions

from codeq_cluster.errors import DataDirectoryRefused, StorageDamaged, StorageFailed
from codeq_cluster.storage.rocks import RocksShard
from tests.fakes.spilled_shard import put_log
from tests.harness.small_disk import small_disk

from .conftest import open_rocks

DIGEST = bytes(range(16))
ENTRIES = (b"0", b":")  # The keys of entries, without the rows that the shard keeps for itself.


def die_while_open(path: Path, story: str) -> None:
    """Run `story` on `shard`, an open store, in a process that is killed at the end."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from codeq_cluster.settings import StoreSettings\n"
        "from codeq_cluster.storage.rocks import RocksShard\n"
        "from codeq_cluster.storage.rocks_options import new_cache\n"
        "settings = StoreSettings(memtable_bytes=2**16)\n"
        "shard = RocksShard(Path(sys.argv[1]), settings=settings, cache=new_cache(settings))\n"
        f"{story}"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert -signal.SIGKILL == ended.returncode


# A spill: rows of state and log in one write.
SPILL = (
    "    shard.write(rows={b'%d' % index: b'x' * 100}, index=index, digest=bytes(range(16)),\n"
    "        delete_ranges=(), log_rows={b'%d' % index: b'y' * 100}, mark=index, wait=True)\n"
)
FILL = f"for index in range(2, 7):\n{SPILL}    shard.sync()\n"


def write_ahead_log(path: Path) -> Path:
    """Return the newest write-ahead log with any content."""
    return max(file for file in path.glob("*.log") if file.stat().st_size)


def filled(path: Path) -> RocksShard:
    """Return an open shard with five entries in the state and five rows in the log."""
    shard = open_rocks(path)
    for index in range(2, 7):
        spill(shard, index, b"x" * 100)
        shard.sync()
    return shard


def spill(shard: RocksShard, index: int, value: bytes) -> None:
    """Write an entry's row to the state and one to the log, together."""
    shard.write(
        rows={b"%d" % index: value},
        index=index,
        digest=DIGEST,
        delete_ranges=(),
        log_rows={b"%d" % index: b"y" * 100},
        mark=index,
        wait=True,
    )


class Watched:
    """A database that records which calls reach the disk."""

    def __init__(self, database: Rdict) -> None:
        self.calls: list[tuple[str, bool]] = []
        self._database = database

    def write(self, batch: WriteBatch, options: WriteOptions) -> None:
        """Write, and record whether that syncs."""
        self.calls.append(("write", options.sync))
        self._database.write(batch, options)

    def flush_wal(self, *, sync: bool) -> None:
        """Sync, and record it."""
        self.calls.append(("flush_wal", sync))
        self._database.flush_wal(sync=sync)


def test_a_write_never_syncs_itself(tmp_path: Path) -> None:
    """The disk is waited for after the write, in a call that lets other threads run.

    rocksdict holds the interpreter's lock during a write. With the sync in the write, a disk that
    takes 1.5 s would stop the node's loop for that long at every entry.
    """
    shard = open_rocks(tmp_path / "shard-0")
    watched = Watched(shard._db)
    database, shard._db = shard._db, watched  # type: ignore[assignment]
    spill(shard, 2, b"x")
    shard.sync()
    spill(shard, 3, b"x")

    assert [("write", False), ("flush_wal", True), ("write", False)] == watched.calls
    shard._db = database
    shard.close()


def test_a_look_at_the_numbers_writes_nothing(tmp_path: Path) -> None:
    """Rows in memory stay there, and no file is added."""
    shard = filled(tmp_path / "s")
    before = shard.properties()
    after = shard.properties()

    assert before["memtable_bytes"] == after["memtable_bytes"] > 0
    assert [] == list((tmp_path / "s").glob("*.sst"))
    shard.close()


def test_a_restart_finds_everything(tmp_path: Path) -> None:
    """Rows, index and digest survive a close, even while old references to the store exist."""
    closed = filled(tmp_path / "s")
    closed.close()
    shard = open_rocks(tmp_path / "s")

    assert (6, 6) == (shard.state.applied_index, shard.mark)
    assert DIGEST == shard.state.digest
    assert b"x" * 100 == shard.state.get(b"6")
    assert 5 == len(shard.log.scan(*ENTRIES, limit=99, bytes_max=9999))
    shard.close()


def test_a_sync_carries_every_write_before_it(tmp_path: Path) -> None:
    """A process killed after a sync loses nothing of either family."""
    die_while_open(
        tmp_path / "s",
        f"for index in range(2, 2002):\n{SPILL}shard.sync()\n",
    )
    shard = open_rocks(tmp_path / "s")

    keys = [b"%d" % index for index in range(2, 2002)]
    assert (2001, 2001) == (shard.state.applied_index, shard.mark)
    assert [b"x" * 100] * 2000 == shard.state.get_many(keys)
    assert {b"y" * 100} == {shard.log.get(key) for key in keys}
    shard.close()


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_tail_loses_its_own_write_only(tmp_path: Path, cut: int) -> None:
    """Only the half-written last record is lost, with its rows of state and log alike."""
    die_while_open(tmp_path / "s", FILL)
    wal = write_ahead_log(tmp_path / "s")
    os.truncate(wal, wal.stat().st_size - cut)
    shard = open_rocks(tmp_path / "s")

    assert (5, 5) == (shard.state.applied_index, shard.mark)
    assert [b"2", b"3", b"4", b"5"] == [key for key, _ in shard.state.scan(*ENTRIES, 99)]
    assert 4 == len(shard.log.scan(*ENTRIES, limit=99, bytes_max=9999))
    shard.close()


def test_damage_in_the_middle_of_the_log_is_not_skipped(tmp_path: Path) -> None:
    """Acknowledged writes that cannot be read refuse the start, in one line that says so."""
    die_while_open(tmp_path / "s", FILL)
    wal = write_ahead_log(tmp_path / "s")
    damaged = bytearray(wal.read_bytes())
    damaged[200] ^= 0xFF
    wal.write_bytes(damaged)

    with pytest.raises(DataDirectoryRefused, match="cannot be opened") as refused:
        open_rocks(tmp_path / "s")
    assert "\n" not in str(refused.value)
    assert "in use" not in str(refused.value)


def test_damage_in_a_table_is_reported_by_any_read(tmp_path: Path) -> None:
    """The read fails as damage, and the owner of the shard is notified."""
    shard = filled(tmp_path / "s")
    put_log(shard, [(b"9%d" % n, os.urandom(5000)) for n in range(10, 20)])
    shard.close()
    table = max((tmp_path / "s").glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0x5A
    table.write_bytes(content)
    shard = open_rocks(tmp_path / "s")
    met: list[StorageDamaged] = []
    shard.log.on_damage = met.append

    with pytest.raises(StorageDamaged, match="Corruption") as raised:
        shard.log.scan(b"", b"\xff", limit=99, bytes_max=2**20)

    assert met == [raised.value]
    shard.close()


def test_a_directory_without_its_table_of_contents_is_refused(tmp_path: Path) -> None:
    """A CURRENT file that names no manifest is damage."""
    filled(tmp_path / "s").close()
    (tmp_path / "s" / "CURRENT").write_text("MANIFEST-999999\n")

    with pytest.raises(DataDirectoryRefused, match="cannot be opened"):
        open_rocks(tmp_path / "s")


def test_a_directory_opens_once(tmp_path: Path) -> None:
    """A second opening, here or in another process, fails because the directory is in use."""
    shard = open_rocks(tmp_path / "s")
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from codeq_cluster.settings import StoreSettings\n"
        "from codeq_cluster.storage.rocks import RocksShard\n"
        "from codeq_cluster.storage.rocks_options import new_cache\n"
        "settings = StoreSettings()\n"
        "RocksShard(Path(sys.argv[1]), settings=settings, cache=new_cache(settings))\n"
    )
    with pytest.raises(DataDirectoryRefused, match="is in use by another process"):
        open_rocks(tmp_path / "s")
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")],
        check=False,
        capture_output=True,
        text=True,
    )

    assert 1 == ended.returncode
    assert "is in use by another process" in ended.stderr
    shard.close()


def test_a_closed_store_fails_and_does_not_answer(tmp_path: Path) -> None:
    """A late reader or writer gets an error, not an empty answer."""
    shard = filled(tmp_path / "s")
    shard.close()

    with pytest.raises(StorageFailed):
        shard.state.get(b"2")
    with pytest.raises(StorageFailed):
        shard.state.scan(b"", b"\xff", 9)
    with pytest.raises(StorageFailed):
        spill(shard, 7, b"x")
    assert (6, 6) == (shard.state.applied_index, shard.mark)


def filled_up(shard: RocksShard) -> int:
    """Write entries until one is refused; return its number."""
    for index in range(7, 10_000):
        try:
            spill(shard, index, os.urandom(10_000))
            shard.sync()
        except StorageFailed:
            return index
    raise AssertionError("a disk of any size")


@pytest.mark.parametrize("leave_bytes", [2**17, 2**18, 400_000, 700_000])
def test_reopening_survives_a_full_disk(tmp_path: Path, leave_bytes: int) -> None:
    """Every synced write is there; until the reopening each write fails, even with room.

    Either the log or a flush may hit the end of the disk; after a failed flush RocksDB would make
    writes wait. The write that failed is there with all its rows or none.
    """
    with small_disk(tmp_path / "disk", size_mib=16, pid=os.getpid) as disk:
        path = disk.path / "s"
        shard = filled(path)
        disk.fill(leave_bytes=leave_bytes)
        written = filled_up(shard)
        disk.free()
        with pytest.raises(StorageFailed):
            spill(shard, written, b"x")
        state, log = shard.state, shard.log

        shard.reopen()

        assert (state, log) == (shard.state, shard.log)
        last = state.applied_index
        assert last in (written - 1, written)
        assert last == shard.mark
        assert written > 8
        for rows in (state, log):
            there = [rows.get(b"%d" % index) is not None for index in range(2, last + 2)]
            assert [*[True] * (last - 1), False] == there
        put_log(shard, [(b"late", b"z")])
        spill(shard, last + 1, b"x")
        shard.close()
        again = open_rocks(path)
        assert (b"z", b"x") == (again.log.get(b"late"), again.state.get(b"%d" % (last + 1)))
        again.close()


def test_a_store_that_cannot_be_reopened_stays_closed_until_it_can(tmp_path: Path) -> None:
    """Reads fail instead of giving wrong answers, and the next try finds every row."""
    path = tmp_path / "s"
    shard = filled(path)
    current = path / "CURRENT"
    held = current.read_bytes()
    current.write_bytes(b"MANIFEST-999999\n")

    with pytest.raises(DataDirectoryRefused, match="cannot be opened"):
        shard.reopen()
    with pytest.raises(StorageFailed):
        shard.state.get(b"2")
    assert {} == shard.properties()
    current.write_bytes(held)
    shard.reopen()

    assert b"x" * 100 == shard.state.get(b"2")
    shard.close()


def test_the_engines_health_is_readable(tmp_path: Path) -> None:
    """Every number is present and plausible."""
    shard = filled(tmp_path / "s")
    properties = shard.properties()

    assert {
        "level0_files",
        "pending_compaction_bytes",
        "write_stopped",
        "delayed_write_rate",
        "memtable_bytes",
        "block_cache_bytes",
        "live_sst_bytes",
        "keys",
    } <= set(properties)
    assert properties["keys"] >= 10
    assert properties["memtable_bytes"] > 0
    assert all(value >= 0 for value in properties.values())
    shard.close()
