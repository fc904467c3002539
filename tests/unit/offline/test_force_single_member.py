"""Recovery: the last node with the data becomes a cluster of one node, from any state."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.offline.force_single_member import survivor
from codeq_cluster.offline.inspect import Stand, stopped_node
from codeq_cluster.raft.journal import Journal
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.buffer import RowBuffer
from codeq_cluster.storage.directory import DataDirectory, open_directory
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from codeq_cluster.storage.segments import Write
from codeq_cluster.storage.shard import write_log_rows
from codeq_cluster.storage.wal import Wal
from tests.fakes.spilled_shard import put_log


def opened(path: Path) -> DataDirectory:
    return open_directory(path, cluster_id="c", node_id="n1", shards=1)


def members_of(directory: DataDirectory) -> Membership:
    """Return the group's members by the log on disk, loaded and flushed as at a start."""
    settings = StoreSettings()
    store = RocksShard(directory.shard_path(0), settings=settings, cache=new_cache(settings))
    try:
        journal = Journal(store.log, cache_bytes_max=1024)
        journal.load(applied=store.state.applied_index, bootstrap=directory.bootstrap)
        flush = journal.flush()
        put_log(store, flush.puts, delete_ranges=flush.delete_ranges)
        return journal.memberships.newest[1]
    finally:
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the directory of one of three stopped nodes."""
    with opened(tmp_path) as directory:
        three = tuple(Member(id=f"n{n}", data=n) for n in (2, 3))
        directory.note_bootstrap(Membership(members=(Member(id="n1", data=directory.data), *three)))
        assert ("n1", "n2", "n3") == members_of(directory).voters
    return tmp_path


def recover(path: Path) -> None:
    with survivor(path) as node:
        node.recover()


def test_recovery_leaves_one_member(path: Path) -> None:
    """A repetition changes nothing."""
    for _ in range(2):
        recover(path)

        with opened(path) as directory:
            found = members_of(directory)
            assert (Member(id="n1", data=directory.data),) == found.members
            assert (2, 3) == found.past


def stands(path: Path) -> list[Stand]:
    with stopped_node(path) as node:
        return list(node.stands())


def contents(path: Path) -> dict[Path, tuple[int, bytes]]:
    """Return each file below a directory with its time of writing and content."""
    files = (each for each in path.rglob("*") if each.is_file())
    return {each: (each.stat().st_mtime_ns, each.read_bytes()) for each in files}


def test_looking_changes_nothing(path: Path) -> None:
    """Not a byte changes, neither of the membership nor of RocksDB's own files."""
    before = contents(path)

    found = stands(path)

    assert [Stand(shard=0, applied=1, last=1, voters=("n1", "n2", "n3"))] == found
    assert before == contents(path)
    recover(path)
    assert [Stand(shard=0, applied=1, last=2, voters=("n1",))] == stands(path)


def test_the_state_shown_is_the_one_a_start_would_continue_with(path: Path) -> None:
    """A crash may have interrupted the swap for a snapshot at any of its steps."""
    shard = path / "shard-0"
    shard.rename(path / "shard-0.incoming")
    (path / "shard-0.ready").touch()
    coming = stands(path)
    (path / "shard-0.incoming").rename(path / "shard-0.old")
    lost = stands(path)

    assert 1 == len(coming)
    assert lost == coming
    assert not shard.exists()


def test_a_snapshot_that_was_coming_in_does_not_undo_it(path: Path) -> None:
    """A crash has interrupted its swap, which the next start would otherwise complete."""
    shutil.copytree(path / "shard-0", path / "shard-0.incoming")
    (path / "shard-0.ready").touch()

    recover(path)

    with opened(path) as directory:
        assert ("n1",) == members_of(directory).voters


def cut_off(path: Path, *, term: int) -> None:
    """Leave the directory as after a power cut, with each term up to this one in the logs.

    RocksDB's own log has lost what it had in the middle.
    """
    settings = StoreSettings()
    with opened(path) as directory:
        shard = directory.shard_path(0)
        store = RocksShard(shard, settings=settings, cache=new_cache(settings))
        journal = Journal(store.log, cache_bytes_max=1024)
        journal.load(applied=store.state.applied_index, bootstrap=directory.bootstrap)
        wal = Wal(directory.segments)
        wal.begin(store.mark)
        directory.note_wal(begun=True)
        for each in range(1, term + 1):
            journal.setCurrentTerm(each, None)
            flush = journal.flush()
            assert 0 == wal.append([Write(0, flush.delete_ranges, flush.puts)])
            rows = RowBuffer()
            rows.write(flush.puts, flush.delete_ranges)
            write_log_rows(store, rows, mark=wal.seq)
            journal.flushed()
        wal.close()
        # A close would bring the rows of RocksDB's log into its tables.
        shutil.copytree(shard, path / "cut")
        store.close()
    shutil.rmtree(shard)
    (path / "cut").rename(shard)
    own = max(shard.glob("*.log"), key=lambda file: file.stat().st_size)
    content = bytearray(own.read_bytes())
    middle = slice(2 * len(content) // 5, 3 * len(content) // 5)
    content[middle] = bytes(middle.stop - middle.start)
    own.write_bytes(content)


def test_recovery_continues_after_the_newest_promise_that_a_power_cut_left(path: Path) -> None:
    """RocksDB lost it with its unsynced log; the write-ahead log has it."""
    cut_off(path, term=9)
    recover(path)

    with stopped_node(path) as node:
        [summary] = node.summaries()
        assert 10 == summary.vote_term


@pytest.mark.parametrize("lost", ["CURRENT", "*"])
def test_looking_at_a_damaged_shard_makes_nothing_in_its_place(path: Path, lost: str) -> None:
    """The remains may be the last copy of the data."""
    for file in (path / "shard-0").glob(lost):
        file.unlink()
    left = {each.name for each in (path / "shard-0").iterdir()}

    for _ in range(2):
        with pytest.raises(StorageFailed, match="reading shard-0"):
            stands(path)
        with pytest.raises(DataDirectoryRefused, match="shard-0 cannot be opened"):
            recover(path)

    after = {each.name for each in (path / "shard-0").iterdir()}
    assert left <= after
    assert "CURRENT" not in after
