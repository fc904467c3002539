"""A node's storage from start to start: acknowledged writes survive whatever ended the last."""

from __future__ import annotations

from random import Random

import pytest

from codeq_cluster.errors import StorageFailed
from tests.unit.storage.sim_node import SimNode


@pytest.mark.parametrize("planned", [True, False])
def test_a_shard_that_wrote_nothing_for_long_opens_after_any_number_of_starts(
    *, planned: bool
) -> None:
    """Each start begins a segment, which must not look like a gap to a shard without writes."""
    node = SimNode()
    node.start()
    assert node.write(0, (b"log/0", b"a")) is None
    for n in range(5):
        assert node.write(1, (b"log/%d" % n, b"b")) is None
    if planned:
        node.storage.stop()
    for _ in range(3):
        node.kill()
        node.start()

    assert {b"log/0": b"a"} == node.rows(0)
    assert {b"log/%d" % n: b"b" for n in range(5)} == node.rows(1)


@pytest.mark.parametrize("late", ["commit", "trim"])
def test_a_shard_that_wrote_nothing_for_long_opens_after_rows_that_come_without_a_write(
    late: str,
) -> None:
    """The segments that its database was told of are gone: what it has of them stays said."""
    node = SimNode(segment_bytes=2000)
    node.start()
    assert node.write(0, (b"log/1", b"a"), (b"log/2", b"b")) is None
    for n in range(30):
        assert node.write(1, (b"log/%02d" % n, b"x" * 50_000)) is None
    node.run(5)
    shard = node.shard(0)
    if late == "commit":
        shard.state.commit({b"a": b"1"}, index=2, digest=bytes(16))
    else:
        shard.log.forget([(b"log/1", b"log/2")], [])
    node.run(2)
    node.kill()
    node.start()

    assert b"b" == node.rows(0)[b"log/2"]


def test_a_full_disk_fails_writes_and_acknowledged_ones_stay() -> None:
    """The shard that got the error is reopened, and continues from the log."""
    for seed in range(10):
        node = SimNode(shards=1, seed=seed)
        node.start()
        assert node.write(0, (b"log/0", b"a")) is None
        node.disks[0].full = True
        assert isinstance(node.write(0, (b"log/1", b"b")), StorageFailed)
        node.disks[0].full = False
        node.shard(0).withdraw()
        node.shard(0).reopen()
        shown = node.rows(0)
        assert b"a" == shown[b"log/0"]
        assert node.write(0, (b"log/2", b"c")) is None
        node.lose_power()
        node.start()

        # The failed write may be in the log or not, but that no longer changes.
        assert {**shown, b"log/2": b"c"} == node.rows(0)


def test_a_sync_that_fails_fails_every_write_that_waited_for_it() -> None:
    """A failed sync is reported to every write of its job, and the log continues after it."""
    node = SimNode()
    node.start()
    told = node.begin(0, (b"log/0", b"a")), node.begin(1, (b"log/0", b"b"))
    node.run(node.flush_s / 2)
    assert [[], []] == [each() for each in told]
    node.disks[0].full = True
    node.run(1.0)
    node.disks[0].full = False

    for each in told:
        [error] = each()
        assert isinstance(error, StorageFailed)
        assert "syncing the write-ahead log: No space left" in str(error)
    assert node.write(1, (b"log/1", b"c")) is None


def test_a_write_that_the_disk_has_not_answered_is_pending() -> None:
    """Each has a number of its own, and none is left once it is answered."""
    node = SimNode()
    node.start()
    assert 0 == node.storage.pending()
    seen = set()
    for number in range(3):
        node.flush_s = 10.0
        node.begin(number % 2, (b"log/%d" % number, b"row"))
        node.run(1.0)
        seen.add(node.storage.pending())
        node.run(10.0)
        assert 0 == node.storage.pending()

    assert 3 == len(seen - {0})


def test_failures_in_a_row_lose_nothing_that_was_acknowledged_between_and_after() -> None:
    """Each failure leaves a segment of its own; recovery after a power cut reads across them."""
    for seed in range(10):
        node = SimNode(shards=2, seed=seed)
        node.start()
        shown: dict[bytes, bytes] = {}
        for n in range(3):
            assert node.write(1, (b"log/%d" % n, b"well")) is None
            node.disks[0].full = True
            assert node.write(0, (b"log/failed%d" % n, b"x")) is not None
            node.disks[0].full = False
            node.shard(0).withdraw()
            node.shard(0).reopen()
            assert node.write(0, (b"log/%d" % n, b"again")) is None
            shown = node.rows(0)
        node.lose_power()
        node.start()

        assert shown == node.rows(0)
        assert set(shown) >= {b"log/0", b"log/1", b"log/2"}
        assert {b"log/%d" % n: b"well" for n in range(3)} == node.rows(1)


def test_a_shard_is_reopened_while_another_is_written() -> None:
    """The job in progress has no write of the reopened shard."""
    node = SimNode()
    node.start()
    assert node.write(0, (b"log/0", b"a")) is None
    told = node.begin(1, (b"log/0", b"b"))
    node.run(0.0005)
    assert [] == told()
    node.shard(0).withdraw()
    node.shard(0).reopen()
    node.run(1.0)
    assert [None] == told()
    node.lose_power()
    node.start()

    assert {b"log/0": b"a"} == node.rows(0)
    assert {b"log/0": b"b"} == node.rows(1)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_snapshot_takes_the_place_of_writes_that_are_in_the_log(*, goes_on: bool) -> None:
    """No older write comes back at the next start; later writes do."""
    node = SimNode()
    node.start()
    assert node.write(1, (b"log/0", b"other")) is None
    told = node.begin(0, (b"log/8", b"before"), (b"log/9", b"before"))
    node.run(0.01)
    assert [None] == told()
    node.databases[0].incoming = node.databases[0].state_rows()
    node.shard(0).replace([(b"log/7", b"snapshot")], index=1)
    assert {b"log/7": b"snapshot"} == node.rows(0)
    if goes_on:
        assert node.write(0, (b"log/8", b"after")) is None
    node.lose_power()
    node.start()

    after = {b"log/8": b"after"} if goes_on else {}
    assert {b"log/7": b"snapshot", **after} == node.rows(0)
    assert {b"log/0": b"other"} == node.rows(1)


def test_a_power_cut_at_any_moment_keeps_acknowledged_writes() -> None:
    """The cut may come while rows are spilled, segments begun or deleted, or databases synced."""
    for seed in range(40):
        node, random = SimNode(segment_bytes=1, seed=seed), Random(seed)
        acknowledged: list[dict[bytes, bytes]] = [{}, {}]
        for life in range(4):
            node.start()
            for shard in (0, 1):
                assert acknowledged[shard].items() <= node.rows(shard).items(), (seed, life)
            for n in range(random.randint(1, 12)):
                shard = random.randrange(2)
                row = (b"log/%d-%d" % (life, n), bytes([n]) * random.choice([10, 90_000]))
                told = node.begin(shard, row)
                for _ in range(100):
                    node.run(0.001)
                    if told():
                        break
                assert [None] == told()
                acknowledged[shard][row[0]] = row[1]
                node.run(random.choice([0.0, 0.01, 0.3]))
            node.run(random.random() / 2)
            node.lose_power()
