"""The spiller: a database that stalls or fails delays only its own shard, and loses no row."""

from __future__ import annotations

import pytest

from codeq_cluster.storage.spiller import SPILL_BYTES, SPILL_ROWS, SPILL_S
from tests.unit.storage.sim_node import SimNode

ROW = (b"log/1", b"x" * 1000)
HELD_BYTES = 5_000
DIGEST = bytes(range(16))


def started(*, segment_bytes: int = 2**20, seed: int = 0) -> SimNode:
    """Return a node of two shards that each hold up to five kilobytes of rows in memory."""
    node = SimNode(segment_bytes=segment_bytes, held_bytes=HELD_BYTES, seed=seed)
    node.start()
    return node


def rows(count: int) -> list[tuple[bytes, bytes]]:
    """Return rows of a kilobyte."""
    return [(b"log/%03d" % n, b"x" * 1000) for n in range(count)]


def stored(node: SimNode, shard: int) -> set[bytes]:
    """Return the keys of a log that the database has."""
    found = node.databases[shard].log.scan(b"log/", b"log0", limit=1000, bytes_max=2**30)
    return {key for key, _ in found}


def test_rows_reach_the_database_soon_and_unasked() -> None:
    """Acknowledged rows wait in memory for a second at most."""
    node = started()
    for shard in (0, 1):
        told = node.begin(shard, ROW)
        node.run(0.01)
        assert [None] == told()
        assert set() == stored(node, shard)

    node.run(SPILL_S + 0.1)

    assert stored(node, 0) == stored(node, 1) == {b"log/1"}
    assert node.shard(0).size == node.shard(1).size == 0


def test_many_small_rows_are_spilled_before_they_are_a_long_write() -> None:
    """A row of no size takes the database as long as another one."""
    node = SimNode()
    node.start()
    few = [(b"log/%05d" % n, b"") for n in range(SPILL_ROWS - 1)]
    node.begin(0, *few)
    node.run(0.01)
    assert 0 < node.shard(0).size < SPILL_BYTES

    node.begin(0, (b"log/one", b""))
    node.run(0.01)

    assert 0 == node.shard(0).size
    assert {*dict(few), b"log/one"} == set(node.rows(0))


def test_shards_are_spilled_in_turn() -> None:
    """The loop spills a few shards at a time, so that a request waits less."""
    node = started()
    node.begin(0, ROW)
    node.begin(1, ROW)
    spilled: list[int] = []
    for _ in range(10):
        before = sum(bool(stored(node, shard)) for shard in (0, 1))
        node.run(SPILL_S / 10)
        spilled.append(sum(bool(stored(node, shard)) for shard in (0, 1)) - before)

    assert [0] * 8 + [1, 1] == sorted(spilled)


def test_log_and_state_are_spilled_as_of_one_moment() -> None:
    """A database never has a state without the log that led to it."""
    node = started()
    node.begin(0, ROW)
    node.run(0.01)
    node.shard(0).state.commit({b"a": b"1"}, index=2, digest=DIGEST)
    assert (2, 1) == (node.shard(0).state.applied_index, node.shard(0).state.stored_index)

    node.run(0.3)

    assert 2 == node.shard(0).state.stored_index
    assert b"1" == node.databases[0].state.get(b"a")
    assert {b"log/1"} == stored(node, 0)


def test_a_stalled_database_is_tried_again_and_the_log_goes_on() -> None:
    """An acknowledgement needs only the write-ahead log, not the database."""
    node = started()
    node.databases[0].stalled = True
    for row in rows(3):
        assert node.write(0, row) is None
    assert set() == stored(node, 0)
    assert dict(rows(3)) == node.rows(0)

    node.databases[0].stalled = False
    node.run(0.5)

    assert set(dict(rows(3))) == stored(node, 0)
    assert [] == node.failed


def test_a_stalled_database_blocks_no_other_shard() -> None:
    """Other shards are written and spilled meanwhile."""
    node = started()
    node.databases[0].stalled = True
    assert node.write(0, ROW) is None
    assert node.write(1, ROW) is None

    assert (set(), {b"log/1"}) == (stored(node, 0), stored(node, 1))


def test_a_shard_whose_memory_is_full_waits_and_is_let_go() -> None:
    """Its write is durable, and is acknowledged once the database has taken the rows."""
    node = started()
    node.databases[0].stalled = True
    assert node.write(0, *rows(4)) is None
    told = node.begin(0, ROW)
    node.run(5.0)
    assert [] == told()
    assert node.write(1, ROW) is None

    node.databases[0].stalled = False
    node.run(0.5)

    assert [None] == told()
    assert node.write(0, ROW) is None


def test_no_more_than_its_bound_waits_in_memory_however_fast_it_comes() -> None:
    """At most one write exceeds the bound; the bound does not wait for a pass of the spiller."""
    node = started()
    node.databases[0].stalled = True
    acknowledged = 0
    for row in rows(30):
        told = node.begin(0, row)
        node.run(0.003)
        acknowledged += told() == [None]
        if not told():
            break

    assert 4 == acknowledged
    assert node.shard(0).size < HELD_BYTES + 2_000


def test_a_database_that_stalls_for_a_minute_has_failed() -> None:
    """The failure is reported once, and the held write has ended, so the replica can step back."""
    node = started()
    node.databases[0].stalled = True
    assert node.write(0, *rows(4)) is None
    told = node.begin(0, ROW)
    node.run(59.0)
    assert ([], []) == (told(), node.failed)

    node.run(5.0)

    assert [(0, "RocksDB waits for a flush or a compaction in vain")] == node.failed
    assert [None] == told()


def test_a_database_that_fails_is_reported_once_and_goes_on_from_the_log() -> None:
    """Every acknowledged row is there after the database was reopened."""
    node = started()
    node.disks[1].full = True
    for row in rows(3):
        assert node.write(1, row) is None
    assert [(1, "no space left")] == node.failed

    node.disks[1].full = False
    node.shard(1).withdraw()
    node.shard(1).reopen()

    assert dict(rows(3)) == node.rows(1)
    assert set(dict(rows(3))) == stored(node, 1)
    assert node.write(1, (b"log/9", b"more")) is None
    assert {*dict(rows(3)), b"log/9"} == stored(node, 1)
    assert 1 == len(node.failed)


def big(count: int) -> list[tuple[bytes, bytes]]:
    """Return rows, three of which fill a segment."""
    return [(b"log/%03d" % n, b"x" * 100_000) for n in range(count)]


def test_segments_are_deleted_when_every_database_has_them_on_disk() -> None:
    """No segment goes before every database has synced; after that a crash loses nothing."""
    node = started(segment_bytes=1)
    segments = node.disks[0].segments
    node.databases[1].stalled = True
    assert node.write(1, ROW) is None
    for row in big(9):
        assert node.write(0, row) is None
    assert len(segments.names()) > 3

    node.databases[1].stalled = False
    node.run(4.0)  # A round of spills for what was written before the stall, and one for the rest.
    assert 1 == len(segments.names())
    node.lose_power()
    node.start()

    assert dict(big(9)) == node.rows(0)
    assert dict([ROW]) == node.rows(1)


def test_no_segment_is_deleted_after_a_sync_that_failed() -> None:
    """The database has failed: its disk is read again, and the log has the rest."""
    node = started(segment_bytes=1)
    segments = node.disks[0].segments
    node.databases[1].refuses_syncs = True
    for row in big(9):
        assert node.write(1, row) is None
    assert [(1, "syncing: Input/output error")] == node.failed
    assert segments.names()[0].endswith("1")

    node.databases[1].refuses_syncs = False
    node.shard(1).withdraw()
    node.shard(1).reopen()
    assert node.write(0, ROW) is None
    node.run(1.0)
    node.lose_power()
    node.start()

    assert dict(big(9)) == node.rows(1)
    assert 1 == len(segments.names())


@pytest.mark.parametrize("seed", range(5))
def test_a_database_that_refused_a_write_keeps_its_segments(seed: int) -> None:
    """It may show the rows that it refused, and its next sync succeeds without them."""
    node = started(segment_bytes=1, seed=seed)
    node.databases[1].stalled = True
    first, last = rows(2)
    assert node.write(1, first) is None
    for row in big(9):
        assert node.write(0, row) is None
    assert node.write(1, last) is None
    node.databases[1].stalled = False
    node.disks[1].full = True
    node.flush_s = 1.0
    node.run(0.5)
    assert [(1, "no space left")] == node.failed
    node.disks[1].full = False
    node.run(3.0)

    node.shard(1).withdraw()
    node.shard(1).reopen()

    assert dict([first, last]) == node.rows(1)


def test_a_shard_that_is_being_reopened_keeps_its_segments() -> None:
    """A sync between its opening and its reading of the log proves nothing."""
    node = started(segment_bytes=1)
    segments = node.disks[0].segments
    assert node.write(0, ROW) is None
    node.shard(0).withdraw()
    for row in big(9):
        assert node.write(1, row) is None
    assert len(segments.names()) > 3

    node.shard(0).reopen()
    assert node.write(1, ROW) is None
    node.run(1.0)

    assert 1 == len(segments.names())
    assert dict([ROW]) == node.rows(0)


@pytest.mark.parametrize("seed", range(5))
def test_a_segment_outlives_a_database_that_loses_rows_while_the_disks_are_waited_for(
    seed: int,
) -> None:
    """The wait began with a complete database; the reopened one lacks the unsynced rows."""
    node = started(segment_bytes=1, seed=seed)
    segments = node.disks[0].segments
    *before, last = big(3)
    for row in before:
        assert node.write(0, row) is None
    told = node.begin(0, last)
    node.run(0.02)
    node.flush_s = 5.0
    node.run(0.5)
    assert [None] == told()
    assert 2 == len(segments.names())
    assert set(dict(big(3))) == stored(node, 0)
    node.shard(0).withdraw()
    node.databases[0].reopen()
    node.run(6.0)

    node.shard(0).reopen()

    assert dict(big(3)) == node.rows(0)
