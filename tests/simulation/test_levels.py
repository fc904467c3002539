"""Levels: newer formats are used once every node knows them, in any order of events."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.errors import ReleaseTooOld
from tests.simulator.cluster import SimCluster
from tests.simulator.scenes import propose, settled

NEXT = LEVEL + 1


def run_release(cluster: SimCluster, node_id: str, level: int) -> None:
    """Restart a node with another release, and wait until the shard has recorded its level."""
    cluster.crash(node_id)
    cluster.levels[node_id] = level
    cluster.start(node_id)

    def known() -> bool:
        cluster.knock(node_id)
        member = cluster.members().of(node_id)
        return member is not None and member.level == level

    cluster.run_until(known)


def upgraded() -> SimCluster:
    """Return a cluster whose nodes all know the next formats and do not use them yet."""
    cluster = settled()
    for node_id in cluster.ids:
        run_release(cluster, node_id, NEXT)
    return cluster


def test_every_node_uses_the_raised_level() -> None:
    """It holds after a restart of all nodes too; a leader's first entry may then use the level."""
    cluster = upgraded()
    cluster.run_until(lambda: cluster.use(NEXT))
    propose(cluster, 10)
    for node_id in cluster.ids:
        cluster.crash(node_id)
        cluster.start(node_id)
    cluster.run(0.5)

    assert [NEXT] * 3 == [node.group.level for node in cluster.nodes.values()]


def test_one_node_of_an_earlier_release_holds_newer_formats_back() -> None:
    """It does so whether it is connected or not."""
    cluster = upgraded()
    run_release(cluster, "B", LEVEL)
    cluster.run(0.5)
    assert not cluster.use(NEXT)
    cluster.crash("B")
    cluster.run(0.5)

    assert not cluster.use(NEXT)
    assert LEVEL == cluster.members().level


def test_a_leader_never_lowers_the_level_or_exceeds_the_known_ones() -> None:
    """The leader enforces this for any request, from any node."""
    cluster = upgraded()
    cluster.run_until(lambda: cluster.use(NEXT))
    cluster.run(0.5)
    leader = cluster.leader()
    assert leader is not None
    group = cluster.nodes[leader].group
    for level, reason in ((LEVEL, "never lowered"), (NEXT + 1, "does not know")):
        wanted = replace(group.membership, level=level)
        with pytest.raises(ValueError, match=reason):
            group.change(wanted, lambda _done: None)

    assert NEXT == cluster.members().level


@pytest.mark.parametrize("persisted", [False, True], ids=["from its leader", "from its own log"])
def test_a_node_of_an_earlier_release_stops_before_it_could_misread(persisted: bool) -> None:
    """A node of an earlier release is started after the level was raised without it."""
    cluster = upgraded()
    cluster.crash("C")
    if persisted:
        cluster.start("C")
    cluster.run_until(lambda: cluster.use(NEXT))
    propose(cluster, 10)
    if persisted:
        cluster.crash("C")
    cluster.levels["C"] = LEVEL
    cluster.expect_fatal = True
    if persisted:
        with pytest.raises(ReleaseTooOld, match="start this node with the release"):
            cluster.start("C")
        return
    applied = len(cluster.values("A"))
    cluster.start("C")
    cluster.run_until(lambda: cluster.nodes["C"].fatal is not None)
    fatal = cluster.nodes["C"].fatal
    propose(cluster, 10, prefix="w")

    assert isinstance(fatal, ReleaseTooOld)
    assert f"formats of level {NEXT}, and this release knows those up to level {LEVEL}" in str(
        fatal
    )
    assert applied + 10 == len(cluster.values("A"))
