"""A replica whose state differs from the one its log produces is found, outvoted and replaced."""

from __future__ import annotations

import pytest

from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from tests.simulator.cluster import SimCluster
from tests.simulator.invariants import InvariantViolated
from tests.simulator.scenes import Wiretap, propose, settled

DIVERGED = 10


def sound(cluster: SimCluster) -> bool:
    return not any(node.machine.corrupted for node in cluster.nodes.values())


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
    # Only A and B acknowledge this, while the older snapshot is still being sent.
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
