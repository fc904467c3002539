"""A group's behaviour without faults, and when a node stops, starts or transfers leadership."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.settings import RaftSettings
from codeq_cluster.wire.messages import pack
from tests.simulator.cluster import SHARD, SimCluster
from tests.simulator.scenes import Wiretap, propose, settled

ANSWER = 2


@pytest.mark.parametrize("node_ids", ["A", "AB", "ABC", "ABCDE"])
def test_a_cluster_of_any_size_elects_and_commits(node_ids: str) -> None:
    """The preferred node leads soon after the start, and every node applies everything."""
    cluster = SimCluster(node_ids, random=Random(2))
    cluster.start()

    seconds = cluster.run_until(lambda: cluster.leader() == "A")
    propose(cluster, 50)

    assert seconds < 0.5
    assert 50 == len(cluster.acknowledged)
    cluster.check_converged()


@pytest.mark.parametrize(
    "rules", [ALL_RULES, SafetySwitches(commit_at_once=False)], ids=["all rules", "without"]
)
def test_an_entry_is_acknowledged_after_one_flush_and_one_round_trip(rules: SafetySwitches) -> None:
    """Followers write while the leader does: 0.5 ms there, 1 ms of disk, 0.5 ms back."""
    cluster = settled(rules=rules)

    cluster.propose(b"one")
    cluster.run(0.0021)

    assert (rules == ALL_RULES) == (b"one" in cluster.acknowledged)


def test_a_leader_whose_peers_are_gone_stops_before_it_hears_anything() -> None:
    """Its callers learn it at once: no message will tell it, and no heartbeat is due yet."""
    cluster = settled()
    node = cluster.nodes["A"]
    inbox, led = node.group._replica.inbox, node.source.term
    # The answers to a heartbeat wait for the next one, and are on their way for a moment then.
    for _ in range(2000):
        if inbox.waiting:
            cluster.run(0.0001)
    silent = not inbox.waiting

    for peer in "BC":
        cluster.crash(peer)
    cluster.run(0.005)

    assert silent
    assert led is not None
    assert node.source.term is None


def waiting_at(
    waits: str, *, node_ids: str = "ABC", rules: SafetySwitches = ALL_RULES
) -> SimCluster:
    """Return a settled cluster with waiting callers on only these nodes."""
    cluster = settled(node_ids, rules=rules)
    for node_id, node in cluster.nodes.items():
        node.machine.waits = node_id in waits
    # Followers tell the leader in the answers of the next round.
    cluster.run(0.3)
    return cluster


def test_an_idle_group_says_nothing_but_its_heartbeats() -> None:
    """Each heartbeat costs two messages per follower, and no other turn happens."""
    cluster = settled()
    wire = Wiretap(cluster)

    cluster.run(10.0)

    heartbeats = 10_000 / RaftSettings().heartbeat_ms
    assert len(wire.sent) == pytest.approx(4 * heartbeats, rel=0.02)


def test_a_restart_applies_nothing_twice_and_skips_nothing() -> None:
    """The stored state names its index, and the log continues from there."""
    cluster = settled()
    propose(cluster, 40)

    for _ in range(5):
        for node_id in "BCA":
            cluster.crash(node_id)
            cluster.run(0.3)
            cluster.start(node_id)
            cluster.elect()
        propose(cluster, 5, prefix=f"r{len(cluster.acknowledged)}-")

    assert 65 == len(cluster.acknowledged)
    cluster.run(1.0)
    cluster.check_converged()


def test_a_status_names_the_digest_of_the_entry_it_names() -> None:
    """It does so even while the store is reopened with an earlier state than before."""
    cluster = settled()
    propose(cluster, 20)
    assert cluster.propose(b"not spilled yet")
    cluster.run(0.1)
    node = cluster.nodes["A"]
    shard = node.storage.shards[SHARD]
    before = node.group.status()
    assert shard.state.stored_index < before.applied_index
    node.group.pause(lambda _error: None)
    shard.withdraw()

    shard.reopen()

    during = node.group.status()
    assert shard.state.applied_index < before.applied_index
    assert (before.applied_index, before.digest) == (during.applied_index, during.digest)


def test_nothing_is_called_after_stop() -> None:
    """A flush in progress ends without a callback."""
    cluster = settled()
    cluster.flush_s = lambda: 0.1
    cluster.propose(b"late")
    cluster.run(0.05)
    node = cluster.nodes["A"]
    node.group.stop()
    sent = len(cluster.acknowledged)
    node.source.lead(99)
    node.group.wake()
    node.group.receive("B", {"t": 1})
    node.group.peer_down("B", refused=True)
    node.group.barrier(lambda _: pytest.fail("called after stop"))
    term = node.source.term

    cluster.run(1.0)

    assert term == node.source.term
    assert sent == len(cluster.acknowledged)


def test_a_disk_without_a_second_chance_stops_the_replica() -> None:
    """A group wired without a way to reopen its disk is stopped permanently."""
    cluster = settled()
    cluster.expect_fatal = True
    group = cluster.nodes["B"].group
    group._replica.events = replace(group._replica.events, on_storage_failed=None)
    cluster.disks["B"].full = True

    propose(cluster, 3)

    assert isinstance(cluster.nodes["B"].fatal, StorageFailed)
    assert 3 == len(cluster.acknowledged)


def test_a_damaged_log_refuses_to_start() -> None:
    """One flipped bit, and the node must be restored from its peers."""
    cluster = settled()
    propose(cluster, 5)
    cluster.crash("B")
    # This start brings the rows that were only in the write-ahead log into the database.
    cluster.start("B")
    cluster.crash("B")
    key = b"log/" + (3).to_bytes(8, "big")
    cluster.disks["B"].damage(key, lambda row: row[:-1] + bytes([row[-1] ^ 1]))

    with pytest.raises(DataDirectoryRefused, match="checksum"):
        cluster.start("B")


def test_a_stranger_is_not_heard() -> None:
    """Only voters' messages count, whatever a non-member sends."""
    cluster = settled()

    cluster.nodes["A"].group.receive("Z", pack({"t": 8, "i": 1, "s": 1, "e": 99}))
    cluster.run(0.1)

    status = cluster.nodes["A"].group.status()
    assert (1, 1) == (status.term, status.counters["stranger"])


def test_a_voter_that_lost_its_disk_is_kept_quiet() -> None:
    """The entries it needs are trimmed, so it gets only heartbeats until it has a snapshot."""
    cluster = settled(settings=RaftSettings(keep_entries=50, entries_in_flight_max=16))
    cluster.snapshot_arrives = lambda: False
    propose(cluster, 1000)
    cluster.run(1.1)  # The log is trimmed up to the stored state, once a second.
    cluster.crash("C")
    cluster.replace_disk("C")
    wire = Wiretap(cluster)

    cluster.start("C")
    cluster.run_until(lambda: cluster.knock("C"))
    propose(cluster, 1000, prefix="w")
    cluster.run(3.0)

    status = cluster.nodes["A"].group.status()
    assert status.is_leader
    assert status.counters["peer_out_of_reach"] > 10
    assert cluster.nodes["A"].group.acknowledges("C") is False
    assert cluster.nodes["A"].group.acknowledges("B")
    # Only the entries in flight before the first refusal arrived.
    assert sum(len(m["et"]) for m in wire.of(1, "A", "C")) < 20
    assert 2000 == len(cluster.acknowledged)


def test_a_leader_knows_who_acknowledges_and_whose_replica_is_out() -> None:
    """The link to a replica that is out still works, and a new leader cannot know at first."""
    cluster = settled()
    cluster.nodes["C"].group.pause(lambda _error: None)
    cluster.run(2.0)
    leader, heir = (cluster.nodes[node_id].group for node_id in "AB")
    assert (True, False) == (leader.acknowledges("B"), leader.acknowledges("C"))

    assert leader.transfer("B")
    cluster.run_until(lambda: cluster.leader() == "B")

    assert (None, None) == (leader.acknowledges("C"), heir.acknowledges("C"))
    cluster.run(2.0)
    assert (True, False) == (heir.acknowledges("A"), heir.acknowledges("C"))


def test_a_replica_that_is_out_knows_its_links() -> None:
    """Otherwise its node would report that healthy nodes cannot be reached."""
    cluster = settled()
    group = cluster.nodes["C"].group

    def connected() -> list[str]:
        return [peer.id for peer in group.status().peers if peer.connected]

    cluster.crash("B")
    group.pause(lambda _error: None)
    away = connected()
    cluster.start("B")

    assert (["A"], ["A", "B"]) == (away, connected())
