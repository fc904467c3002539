"""Check: a directory may be set aside while its shards name two others that hold the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.offline.check import examined
from codeq_cluster.offline.force_single_member import survivor
from codeq_cluster.raft.journal import Journal
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.directory import DataDirectory, open_directory
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from tests.fakes.spilled_shard import put_log

SHARDS = 2
NO_PEERS = "this node has no peers: nobody else holds what it holds"
UNKNOWN = "it cannot be read whether this node has peers that hold the same"


def write(directory: DataDirectory, change: Callable[[Journal], None]) -> None:
    """Load each shard's log as at a start, change it, and make it durable."""
    settings = StoreSettings()
    for shard in range(SHARDS):
        path = directory.shard_path(shard)
        store = RocksShard(path, settings=settings, cache=new_cache(settings))
        try:
            journal = Journal(store.log, cache_bytes_max=1024)
            journal.load(applied=store.state.applied_index, bootstrap=directory.bootstrap)
            change(journal)
            flush = journal.flush()
            put_log(store, flush.puts, delete_ranges=flush.delete_ranges)
        finally:
            store.close()


def founded(path: Path, *others: str, then: Callable[[Journal], None] = lambda _: None) -> None:
    """Make a stopped node's directory, of a cluster that began with n1 and the others."""
    with open_directory(path, cluster_id="c", node_id="n1", shards=SHARDS) as directory:
        me = Member(id="n1", data=directory.data)
        peers = (Member(id=each, data=n) for n, each in enumerate(others, 2))
        directory.note_bootstrap(Membership(members=(me, *peers)))
        write(directory, then)


def grow(journal: Journal) -> None:
    """Add n2 and n3, which vote."""
    before = journal.memberships.newest[1]
    journal.name_members(before.with_member(Member(id="n2")).with_member(Member(id="n3")))


def damage(path: Path, *shards: int) -> None:
    for shard in shards:
        (path / f"shard-{shard}" / "CURRENT").unlink()


def risks(path: Path) -> tuple[str, ...]:
    with examined(path) as found:
        assert found.damages
        return found.risks


@pytest.mark.parametrize(("damaged", "expected"), [((1,), ()), ((0, 1), (UNKNOWN,))])
def test_a_node_of_three_may_go_if_one_shard_says_so(
    tmp_path: Path, damaged: tuple[int, ...], expected: tuple[str, ...]
) -> None:
    """A shard whose log names nobody has the members that began it."""
    founded(tmp_path, "n2", "n3")

    damage(tmp_path, *damaged)

    assert expected == risks(tmp_path)


@pytest.mark.parametrize(("damaged", "risk"), [((1,), NO_PEERS), ((0, 1), UNKNOWN)])
def test_the_last_of_three_stays(tmp_path: Path, damaged: tuple[int, ...], risk: str) -> None:
    """The cluster that it began with is gone, so it proves nothing about other copies."""
    founded(tmp_path, "n2", "n3")
    with survivor(tmp_path) as node:
        node.recover()

    damage(tmp_path, *damaged)

    assert (risk,) == risks(tmp_path)


@pytest.mark.parametrize(("damaged", "expected"), [((1,), ()), ((0, 1), (UNKNOWN,))])
def test_a_node_that_began_alone_may_go_once_it_has_peers(
    tmp_path: Path, damaged: tuple[int, ...], expected: tuple[str, ...]
) -> None:
    """Nodes that joined later hold the same."""
    founded(tmp_path, then=grow)

    damage(tmp_path, *damaged)

    assert expected == risks(tmp_path)
