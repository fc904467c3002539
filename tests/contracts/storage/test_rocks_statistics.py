"""RocksDB's statistics: the numbers parsed from its texts agree with those of its properties."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_statistics import (
    FamilyStatistics,
    LevelStatistics,
    family_statistics,
)
from tests.fakes.spilled_shard import SpilledShard

from .conftest import open_rocks

ROWS = 2000  # So many rows of 300 bytes fill several of the small memtables.
# RocksDB keeps one level in reserve, so the sixth is the highest that it may fill.
BOTTOM = 6


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[RocksShard]:
    """Yield a shard with compacted files in its state, and some newer ones."""
    made = open_rocks(tmp_path / "shard-0")
    _write(made, range(2, ROWS))
    made.state.family.flush(wait=True)
    made.state.family.compact_range(None, None)
    _write(made, range(ROWS, ROWS + 100))
    made.state.family.flush(wait=True)
    yield made
    made.close()


def _write(shard: RocksShard, indexes: range) -> None:
    state = SpilledShard(shard).state
    for index in indexes:
        row = {b"%08d" % (index % 500): os.urandom(300)}
        state.commit(row, index=index, digest=bytes(16))


def _state(shard: RocksShard) -> FamilyStatistics:
    state, _ = shard.family_statistics()
    return state


def _level(shard: RocksShard, number: int) -> LevelStatistics:
    (found,) = [level for level in _state(shard).levels if level.level == number]
    return found


def test_each_level_has_the_files_and_bytes_that_it_has(shard: RocksShard) -> None:
    """Numbers and sizes equal those in the list of live files."""
    levels = _state(shard).levels
    # RocksDB lists the files of both families; those of the log have its mark alone.
    live = [file for file in shard.state.family.live_files() if file["start_key"] != b"wal"]

    assert {("state", 0), ("state", BOTTOM)} == {(level.family, level.level) for level in levels}
    for level in levels:
        sizes = [file["size"] for file in live if file["level"] == level.level]
        assert len(sizes) == level.files
        assert pytest.approx(sum(sizes), rel=0.01) == level.size_bytes


def test_read_amplification_is_the_runs_a_lookup_may_search(shard: RocksShard) -> None:
    """Every file of level 0 counts, and one run of the level below."""
    files = shard.state.family.property_int_value("rocksdb.num-files-at-level0")

    assert files
    assert files == _level(shard, 0).read_amplification
    assert 1 == _level(shard, BOTTOM).read_amplification


def test_write_amplification_is_written_bytes_per_incoming_byte(shard: RocksShard) -> None:
    """A flush writes each byte once; a compaction writes fewer, as it drops overwritten rows."""
    first, last = _level(shard, 0), _level(shard, BOTTOM)

    assert 1.0 == first.write_amplification
    assert 0 < last.write_amplification <= 1.0


def test_reads_of_files_are_counted_where_they_happen(shard: RocksShard) -> None:
    """A lookup below level 0 reads a block there once; then the block is in the cache."""
    key = b"%08d" % (ROWS % 500 + 200)
    before = _level(shard, BOTTOM).file_reads
    shard.state.get(key)
    once = _level(shard, BOTTOM).file_reads
    shard.state.get(key)

    assert once > before
    assert once == _level(shard, BOTTOM).file_reads


def test_flushes_and_compactions_are_counted_with_their_bytes(shard: RocksShard) -> None:
    """The written bytes include those of the files."""
    before = shard.counters()
    _write(shard, range(ROWS + 100, ROWS + 200))
    shard.state.family.flush(wait=True)
    flushed = shard.counters()
    shard.state.family.compact_range(None, None)
    compacted = shard.counters()

    assert before["flushes"] + 1 == flushed["flushes"]
    assert flushed["flush_written_bytes"] > before["flush_written_bytes"]
    assert flushed["flush_seconds"] > before["flush_seconds"]
    assert flushed["written_bytes"] - before["written_bytes"] > 100 * 300
    assert flushed["wal_written_bytes"] > before["wal_written_bytes"]
    assert flushed["compactions"] + 1 == compacted["compactions"]
    assert compacted["compaction_read_bytes"] > flushed["compaction_read_bytes"]
    assert compacted["compaction_written_bytes"] > flushed["compaction_written_bytes"]
    assert flushed["flushes"] == compacted["flushes"]


def test_lookups_and_the_cache_are_counted(shard: RocksShard) -> None:
    """A block that is read again comes from the cache."""
    key = b"%08d" % (ROWS % 500 + 200)
    shard.state.get(key)
    before = shard.counters()
    shard.state.get(key)
    after = shard.counters()

    assert before["keys_read"] + 1 == after["keys_read"]
    assert after["block_cache_hits"] > before["block_cache_hits"]
    assert before["block_cache_misses"] == after["block_cache_misses"]


def test_the_counts_begin_again_with_an_opening(shard: RocksShard) -> None:
    """A closed directory has no levels, and a reopened one starts at zero."""
    flushes = shard.counters()["flushes"]
    shard.close()
    closed = shard.family_statistics()
    shard.reopen()

    assert flushes
    assert [] == closed
    assert 0 == shard.counters()["flushes"]
    assert _level(shard, BOTTOM).files


def test_stalls_are_counted_by_kind() -> None:
    """RocksDB counts a stall whether the write waited or was refused."""
    text = (
        "Write Stall (count): l0-file-count-limit-delays: 2, l0-file-count-limit-stops: 1, "
        "memtable-limit-delays: 1, memtable-limit-stops: 0, total-delays: 3, total-stops: 1\n"
    )

    assert {"delay": 3, "stop": 1} == family_statistics(text, family="state").stalls
