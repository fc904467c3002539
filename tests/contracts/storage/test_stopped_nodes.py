"""Directories of stopped nodes: read unchanged, and made completely or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import TASK_PREFIX
from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.storage.directory import new_directory, open_directory, stopped_directory
from codeq_cluster.storage.stored_shard import StoredShard, read_place
from tests.contracts.storage.conftest import open_rocks
from tests.fakes.spilled_shard import SpilledShard, put, put_log


class Crashed(Exception):
    """The error with which a test ends a block."""


def test_rows_that_are_in_the_write_ahead_log_alone_are_read(tmp_path: Path) -> None:
    """A killed node has not written its memtable, and reading does not write it either."""
    shard = open_rocks(tmp_path / "shard-0")
    state = SpilledShard(shard).state
    state.commit({b"a": b"1", b"b": b"2"}, index=2, digest=b"d" * 16)
    put_log(shard, [(b"log/1", b"x"), (b"vote", b"v")])
    shard.checkpoint(tmp_path / "copy")
    state.commit({b"a": None}, index=3, digest=b"e" * 16)
    with StoredShard(tmp_path / "copy") as stored:
        assert (2, b"d" * 16) == (stored.index, stored.digest)
        assert [(b"a", b"1")] == list(stored.rows(b"a", b"b"))
        assert [(b"a", b"1"), (b"b", b"2")] == list(stored.rows(b"a", b"c"))
        assert b"2" == stored.get(b"b")
        assert stored.get(b"c") is None
        assert [(b"log/1", b"x")] == list(stored.log_rows(b"log/", b"log0"))
        assert b"v" == stored.log_get(b"vote")
    shard.close()


def test_a_row_that_no_codec_reads_is_spilled_and_copied_like_its_neighbours(
    tmp_path: Path,
) -> None:
    """Spill and snapshot move bytes: the damaged record arrives as it is, and the others too."""
    shard = open_rocks(tmp_path / "shard-0")
    rows = {keyspace.task(name): name.encode() for name in ("a", "b", "c")}
    rows[keyspace.task("b")] = b"\x07 no record"
    SpilledShard(shard).state.commit(rows, index=2, digest=b"d" * 16)
    put_log(shard, [(b"log/1", b"\x07 no entry"), (b"log/2", b"x")])
    shard.checkpoint(tmp_path / "copy")
    shard.close()
    with pytest.raises(records.RecordInvalid):
        records.decode_task(rows[keyspace.task("b")])
    with StoredShard(tmp_path / "copy") as stored:
        assert sorted(rows.items()) == list(stored.rows(*keyspace.prefix_range(TASK_PREFIX)))
        assert [b"\x07 no entry", b"x"] == [row for _, row in stored.log_rows(b"log/", b"log0")]
    place = read_place(
        tmp_path / "copy", log_at=lambda _get, _rows, _index: (1, b""), every_row=True
    )
    assert 2 == place.index


def test_a_directory_without_a_shard_cannot_be_read(tmp_path: Path) -> None:
    """An empty directory is refused, and so is a missing one."""
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(StorageFailed, match=f"reading {path.name}"):
            StoredShard(path)


def test_a_state_is_filled_and_then_of_an_entry(tmp_path: Path) -> None:
    """Entries can follow that entry, even in the node that opens the directory next."""
    shard = open_rocks(tmp_path / "shard-0")
    put(shard, {b"a": b"1"})
    assert 1 == shard.state.applied_index
    put(shard, {}, index=40, digest=b"d" * 16)
    SpilledShard(shard).state.commit({b"b": b"2"}, index=41, digest=b"e" * 16)
    shard.close()
    shard = open_rocks(tmp_path / "shard-0")

    assert (41, b"e" * 16) == (shard.state.applied_index, shard.state.digest)
    assert [(b"a", b"1"), (b"b", b"2")] == shard.state.scan(b"a", b"c", 9)
    shard.close()


def test_a_directory_is_a_nodes_from_the_end_on(tmp_path: Path) -> None:
    """Before its end, nodes refuse the directory, and so does a second attempt."""
    path = tmp_path / "data"

    def make(*, crash: bool) -> None:
        with new_directory(path, cluster_id="c", node_id="n1", shards=2) as path_of:
            for shard in range(2):
                open_rocks(path_of(shard)).close()
            if crash:
                raise Crashed

    with pytest.raises(Crashed):
        make(crash=True)
    for attempt in (
        lambda: open_directory(path, cluster_id="c", node_id="n1", shards=2),
        lambda: make(crash=False),
    ):
        with pytest.raises(DataDirectoryRefused, match=r"not empty: .* for a restore empty it"):
            attempt()
    path.rename(tmp_path / "aside")
    make(crash=False)
    with open_directory(path, cluster_id="c", node_id="n1", shards=2) as directory:
        assert directory.bootstrap is None
        with pytest.raises(DataDirectoryRefused, match="in use by another process"):
            make(crash=False)


def test_a_running_nodes_directory_is_not_looked_into(tmp_path: Path) -> None:
    """A directory being read cannot be started, and other directories are refused."""
    path = tmp_path / "data"
    with (
        open_directory(path, cluster_id="c", node_id="n1", shards=1),
        pytest.raises(DataDirectoryRefused, match="in use by another process"),
        stopped_directory(path),
    ):
        pass
    with stopped_directory(path) as identity:
        assert ("c", "n1", 1) == (identity.cluster_id, identity.node_id, identity.shards)
        with pytest.raises(DataDirectoryRefused, match="in use by another process"):
            open_directory(path, cluster_id="c", node_id="n1", shards=1)
    (tmp_path / "LOCK").touch()
    for other in (tmp_path, tmp_path / "none"):
        with (
            pytest.raises(DataDirectoryRefused, match="is no data directory"),
            stopped_directory(other),
        ):
            pass
