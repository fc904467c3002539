"""Membership: nodes join, leave and lose their disks while values are committed."""

from __future__ import annotations

from random import Random

import pytest

from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.settings import RaftSettings
from tests.simulator.cluster import SimCluster
from tests.simulator.scenes import propose, settled

VOTE_REQUEST = 3


def let_in(cluster: SimCluster, node_id: str) -> None:
    """Have a running node register until it is a member on its data."""

    def is_member() -> bool:
        return cluster.is_let_in(node_id) or (cluster.knock(node_id) and False)

    cluster.run_until(is_member)


def voters(cluster: SimCluster) -> set[str]:
    return set(cluster.members().voters)


def add(cluster: SimCluster, node_id: str) -> None:
    """Let a new node join, and wait until it votes."""
    cluster.add(node_id)
    cluster.start(node_id)
    cluster.run_until(lambda: cluster.expect(node_id))
    let_in(cluster, node_id)
    cluster.run_until(lambda: node_id in voters(cluster))


def lose_disk(cluster: SimCluster, node_id: str) -> None:
    """Restart a node with an empty disk."""
    cluster.crash(node_id)
    cluster.replace_disk(node_id)
    cluster.start(node_id)


def test_a_node_that_lost_its_disk_does_not_campaign_by_an_older_membership_in_its_log() -> None:
    """An entry of an older membership reaches its log before the one that makes it a learner."""
    cluster = settled(settings=RaftSettings(append_bytes_max=2000, entry_bytes_max=1000))
    assert cluster.expect("D")
    propose(cluster, 5)
    cluster.cut("B", "AC")
    for number in range(40):
        cluster.propose(b"%03d" % number + b"x" * 400)
    cluster.run_until(lambda: len(cluster.acknowledged) == 45)
    lose_disk(cluster, "C")
    cluster.run_until(lambda: cluster.knock("C"))
    held = cluster.nodes["B"].group.status().log_last
    while cluster.nodes["C"].group.status().log_last < held:
        cluster.run(0.0005)
    copied = cluster.nodes["C"].group
    listed = copied.membership.of("C")

    assert listed is not None
    assert listed.voter
    assert not copied.status().voting
    cluster.crash("A")
    cluster.heal()
    cluster.run(10.0)

    assert cluster.leader() is None
    cluster.start("A")
    cluster.run_until(lambda: cluster.leader() is not None)
    propose(cluster, 3, prefix="again")
    cluster.run(1.0)
    assert 48 == len(cluster.values("A"))


def test_a_node_that_lost_its_disk_comes_back_as_a_learner() -> None:
    """The leader counts only entries it has received since."""
    cluster = settled()
    propose(cluster, 200)
    lose_disk(cluster, "C")
    leader = cluster.nodes["A"].group
    assert "C" in voters(cluster)

    let_in(cluster, "C")

    [seen] = [peer for peer in leader.status().peers if peer.id == "C"]
    assert seen.match_index <= cluster.nodes["C"].group.status().log_last
    cluster.run_until(lambda: "C" in voters(cluster))
    propose(cluster, 1, prefix="w")
    cluster.run(0.5)
    cluster.check_converged()


def test_a_node_that_lost_its_disk_gets_a_snapshot_with_the_members_in_it() -> None:
    """The entries it needs are trimmed; then only the snapshot has the membership."""
    cluster = settled(settings=RaftSettings(keep_entries=50, log_entries_max=400))
    add(cluster, "D")
    for number in range(10):
        propose(cluster, 100, prefix=f"r{number}/")
    assert cluster.nodes["A"].group.status().log_first > 300
    lose_disk(cluster, "C")

    let_in(cluster, "C")
    cluster.run_until(lambda: "C" in cluster.nodes["C"].group.membership.voters)

    assert cluster.snapshots >= 1
    assert set("ABCD") == set(cluster.nodes["C"].group.membership.voters)
    cluster.crash("C")
    cluster.start("C")
    assert set("ABCD") == set(cluster.nodes["C"].group.membership.voters)
    cluster.run(1.0)
    cluster.check_converged()


def test_a_leader_does_not_remove_itself() -> None:
    """It transfers its leadership first."""
    cluster = settled()
    group = cluster.nodes["A"].group

    with pytest.raises(ValueError, match="transfer its leadership"):
        group.change(group.membership.without("A"), print)


def test_a_change_is_one_voter_more_or_less() -> None:
    """A new voter must have been a learner before."""
    cluster = settled("ABCDE")
    group = cluster.nodes["A"].group

    with pytest.raises(ValueError, match="one voter"):
        group.change(group.membership.without("D").without("E"), print)
    with pytest.raises(ValueError, match="learner"):
        group.change(group.membership.with_member(Member(id="F", data=77)), print)


def test_a_lost_disk_that_comes_back_is_still_of_use() -> None:
    """While the third is away, the empty one may not join: the first two commit everything."""
    cluster = settled()
    cluster.crash("C", refused=False)
    disk, data = cluster.disks["B"], cluster.members().of("B")
    assert data is not None
    cluster.crash("B", refused=False)
    cluster.replace_disk("B")
    cluster.start("B")
    assert "A" == cluster.leader()

    assert not cluster.knock("B")
    cluster.crash("B")
    cluster.disks["B"], cluster.data["B"] = disk, data.data
    cluster.start("B")

    cluster.elect()
    propose(cluster, 3)


def test_a_group_that_nobody_bootstrapped_waits() -> None:
    """No vote and no leader until the bootstrap; then it works as usual."""
    cluster = SimCluster("ABC", random=Random(3))
    bootstrap, cluster.bootstrap = cluster.bootstrap, Membership()
    cluster.start()
    cluster.run(10.0)
    assert cluster.leader() is None

    for node in cluster.nodes.values():
        node.group.bootstrap(bootstrap)
    cluster.elect()
    for node_id in "ABC":
        cluster.crash(node_id)
    cluster.start()

    cluster.elect()
    propose(cluster, 3)
