"""A replica whose state differs from the one its log makes: found, outvoted and replaced."""

from __future__ import annotations

import pytest

from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.testing.invariants import InvariantViolated
from codeq_cluster.testing.sim_cluster import SimCluster, SimNode
from codeq_cluster.testing.sim_scenes import Wiretap, propose, settled

DIVERGED = 10


def sound(cluster: SimCluster) -> bool:
    return not any(node.machine.corrupted for node in cluster.nodes.values())


def one_wrong_of_two() -> SimCluster:
    """Return two nodes that have just started, one of them wrong; the third is away."""
    cluster = settled()
    propose(cluster, 3)
    for node_id in "ABC":
        cluster.crash(node_id)
    cluster.start("A")
    cluster.start("B")
    cluster.nodes["B"].machine.corrupt()
    return cluster


def test_a_follower_whose_state_differs_is_made_anew() -> None:
    """The leader stays, its clients notice nothing, and the follower's log continues."""
    cluster = settled()
    propose(cluster, 3)
    term = cluster.nodes["A"].group.status().term
    cluster.nodes["B"].machine.corrupt()

    propose(cluster, 2, prefix="more")
    took_s = cluster.run_until(lambda: sound(cluster))

    assert took_s < 1.0
    assert 1 == cluster.reseeded
    assert 5 == len(cluster.acknowledged)
    assert ("A", term) == (cluster.leader(), cluster.nodes["A"].group.status().term)
    propose(cluster, 2, prefix="last")
    cluster.check_converged()


def test_a_leader_whose_state_differs_gives_up_and_is_made_anew() -> None:
    """Two others are equal: the leader is wrong, and no node fetches its state."""
    cluster = settled()
    propose(cluster, 3)
    cluster.nodes["A"].machine.corrupt()

    assert cluster.propose(b"shows it")
    cluster.run_until(lambda: cluster.leader() in ("B", "C"))
    cluster.run_until(lambda: sound(cluster))
    propose(cluster, 2, prefix="more")

    assert 1 == cluster.reseeded
    assert 5 <= len(cluster.acknowledged)
    cluster.run(10.0)
    cluster.check_converged()


def test_without_a_majority_nobody_says_who_is_right() -> None:
    """Two that differ serve nothing until the third is back; then the wrong one is replaced."""
    cluster = one_wrong_of_two()
    for number in range(20):
        cluster.propose(b"in vain%d" % number)
        cluster.run(0.5)

    assert cluster.leader() is None
    assert 3 == len(cluster.acknowledged)
    assert 0 == cluster.reseeded
    assert any(node.group.status().in_doubt for node in cluster.nodes.values())

    cluster.start("C")
    cluster.run_until(lambda: sound(cluster) and cluster.leader() is not None)
    propose(cluster, 2, prefix="more")

    assert 1 == cluster.reseeded
    assert not any(node.group.status().in_doubt for node in cluster.nodes.values())
    cluster.check_converged()


@pytest.mark.parametrize(
    ("rules", "spreads"),
    [(ALL_RULES, False), (SafetySwitches(majority_decides=False), True)],
    ids=["all rules", "without"],
)
def test_a_leader_is_not_right_because_it_leads(rules: SafetySwitches, spreads: bool) -> None:
    """Only a leader with a majority behind it can make a differing follower fetch its state."""
    cluster = settled(rules=rules)
    propose(cluster, 3)
    wire = Wiretap(cluster)
    cluster.nodes["A"].machine.corrupt()

    cluster.propose(b"shows it")
    cluster.run(3.0)

    told = wire.of(DIVERGED, "A", "B") + wire.of(DIVERGED, "A", "C")
    assert spreads == bool(told)
    assert spreads == (cluster.leader() is None)


@pytest.mark.parametrize(
    ("rules", "lost"),
    [(ALL_RULES, False), (SafetySwitches(keep_the_suffix=False), True)],
    ids=["all rules", "without"],
)
def test_what_was_acknowledged_beyond_the_snapshot_stays(rules: SafetySwitches, lost: bool) -> None:
    """The log was never wrong: entries that need this replica's copy are kept."""
    cluster = settled(rules=rules)
    propose(cluster, 3)
    cluster.snapshot_s = lambda: 0.3
    cluster.nodes["B"].machine.corrupt()
    cluster.propose(b"shows it")
    cluster.run_until(lambda: cluster.nodes["B"].reseeding)
    # Acknowledged only by A and B, while the older snapshot is being sent.
    cluster.cut("C", "AB")

    def story() -> None:
        cluster.run(0.35)
        propose(cluster, 3, prefix="between")
        cluster.run_until(lambda: sound(cluster))

    if lost:
        with pytest.raises(InvariantViolated, match=r"^W4 "):
            story()
        return
    story()
    assert 7 == len(cluster.acknowledged)
    cluster.crash("A")
    cluster.heal()
    cluster.run_until(lambda: cluster.leader() == "B")
    cluster.run(1.0)
    assert 7 == len(cluster.values("B"))


def test_a_replica_that_is_wrong_does_not_stand() -> None:
    """It knows that a majority works without it; its leader's request does not change that."""
    cluster = settled()
    propose(cluster, 3)
    cluster.snapshot_s = lambda: 30.0
    cluster.nodes["B"].machine.corrupt()
    propose(cluster, 2, prefix="more")
    cluster.run(1.0)
    assert cluster.nodes["B"].group.wanted_from > 0

    cluster.nodes["A"].group.transfer("B")
    cluster.run(1.0)
    assert "A" == cluster.leader()
    cluster.crash("A")
    cluster.run_until(lambda: cluster.leader() is not None)

    assert "C" == cluster.leader()
    assert cluster.propose(b"goes on")
    cluster.run(1.0)
    assert b"goes on" in cluster.acknowledged


def test_a_judgement_about_a_state_that_is_gone_is_ignored() -> None:
    """A message sent before the replica's state was replaced changes nothing."""
    cluster = settled()
    propose(cluster, 3)
    wire = Wiretap(cluster)
    cluster.nodes["B"].machine.corrupt()
    cluster.propose(b"shows it")
    cluster.run_until(lambda: sound(cluster))
    late = dict(wire.of(DIVERGED, "A", "B")[-1], s=10**6)
    cluster.run(1.0)
    stale = cluster.nodes["B"].group.status().counters["stale_diverged"]

    cluster.network.deliver(("A", "B"), late)
    cluster.run(1.0)

    assert 1 == cluster.reseeded
    assert 1 == cluster.snapshots
    assert 0 == cluster.nodes["B"].group.wanted_from
    assert stale + 1 == cluster.nodes["B"].group.status().counters["stale_diverged"]


def test_a_state_in_doubt_is_not_lent() -> None:
    """A follower that is behind waits until a majority decides."""
    cluster = one_wrong_of_two()

    def leading() -> list[SimNode]:
        return [node for node in cluster.nodes.values() if node.group.status().is_leader]

    cluster.run_until(lambda: any(n.group.status().in_doubt for n in leading()))

    assert leading()
    assert not any(node.group.lends for node in leading())
    cluster.start("C")
    cluster.run_until(lambda: sound(cluster) and cluster.leader() is not None)
    assert [True] == [node.group.lends for node in leading()]


def test_five_nodes_outvote_two() -> None:
    """Both are replaced, one after the other or at once."""
    cluster = settled("ABCDE")
    propose(cluster, 3)
    cluster.nodes["B"].machine.corrupt()
    cluster.nodes["A"].machine.corrupt()
    cluster.propose(b"shows it")
    cluster.run_until(lambda: sound(cluster) and cluster.leader() is not None)
    propose(cluster, 2, prefix="more")

    assert 2 == cluster.reseeded
    cluster.check_converged()
