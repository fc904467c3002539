"""A group's behaviour without faults, and when a node stops, starts or hands over."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.settings import RaftSettings
from codeq_cluster.testing.sim_cluster import SimCluster
from codeq_cluster.testing.sim_scenes import Wiretap, propose, settled
from codeq_cluster.wire.messages import pack

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


def test_followers_learn_a_commit_without_waiting_for_a_heartbeat() -> None:
    """A leader announces the commit within 20 ms if no entry does; the message needs no answer."""
    cluster = waiting_at("")

    cluster.propose(b"one")
    cluster.run(0.01)
    before = [b"one" in cluster.values(node_id) for node_id in "ABC"]
    cluster.run(0.015)

    assert before == [True, False, False]
    assert all(b"one" in cluster.values(node_id) for node_id in "ABC")


def test_a_follower_that_was_away_catches_up_without_waiting_for_heartbeats() -> None:
    """It gets the next entries when it has acknowledged the last, without a pause."""
    small = RaftSettings(append_bytes_max=64)
    cluster = settled(settings=small)
    cluster.crash("C")
    propose(cluster, 400, prefix="a value of some length ")
    cluster.run(2.0)
    cluster.start("C")

    cluster.run(0.6)

    assert len(cluster.values("C")) == 400


def test_a_follower_where_somebody_waits_learns_a_commit_at_once() -> None:
    """Half a millisecond after the leader; a follower without waiting callers learns it later."""
    cluster = waiting_at("C")

    cluster.propose(b"one")
    cluster.run(0.0032)

    assert [b"one" in cluster.values(node_id) for node_id in "ABC"] == [True, False, True]


@pytest.mark.parametrize(
    "rules", [ALL_RULES, SafetySwitches(tell_committed_only=False)], ids=["all rules", "without"]
)
def test_what_no_majority_holds_is_announced_to_nobody(rules: SafetySwitches) -> None:
    """A follower in the minority has the entry, waits for its commit and does not apply it."""
    cluster = waiting_at("B", node_ids="ABCDE", rules=rules)
    cluster.cut("AB", "CDE")

    cluster.propose(b"one")
    cluster.run(0.05)

    assert cluster.nodes["B"].group.status().log_last == cluster.nodes["A"].group.status().log_last
    assert (rules == ALL_RULES) == (b"one" not in cluster.values("B"))


def test_the_release_before_is_not_told_that_somebody_waits() -> None:
    """It would refuse the whole answer, and works without the new field."""
    wires = {}
    for level in (1, 2):
        cluster = waiting_at("BC", level=level)
        wires[level] = Wiretap(cluster)
        cluster.propose(b"one")
        cluster.run(0.05)

    assert not any("w" in answer for answer in wires[1].of(ANSWER, "B", "A"))
    assert any("w" in answer for answer in wires[2].of(ANSWER, "B", "A"))


def waiting_at(
    waits: str, *, node_ids: str = "ABC", rules: SafetySwitches = ALL_RULES, level: int = LEVEL
) -> SimCluster:
    """Return a settled cluster with waiting callers on only these nodes."""
    cluster = settled(node_ids, rules=rules, level=level)
    for node_id, node in cluster.nodes.items():
        node.machine.waits = node_id in waits
    # The answers of one round report it.
    cluster.run(0.3)
    return cluster


def test_an_idle_group_says_nothing_but_its_heartbeats() -> None:
    """Two messages a follower and heartbeat, and no other turn."""
    cluster = settled()
    wire = Wiretap(cluster)

    cluster.run(10.0)

    heartbeats = 10_000 / RaftSettings().heartbeat_ms
    assert len(wire.sent) == pytest.approx(4 * heartbeats, rel=0.02)


def test_a_killed_leader_is_replaced_in_a_tenth_of_a_second() -> None:
    """A follower starts an election as soon as its connection is refused."""
    cluster = settled()
    propose(cluster, 5)

    cluster.crash("A", refused=True)
    seconds = cluster.run_until(lambda: cluster.leader() is not None)

    assert seconds < 0.3


def test_a_silent_leader_is_replaced_within_two_election_timeouts() -> None:
    """No connection is refused; only the silence shows it."""
    cluster = settled()

    cluster.crash("A", refused=False)
    seconds = cluster.run_until(lambda: cluster.leader() is not None)

    assert seconds < 2.5 * RaftSettings().election_ms / 1000


def test_a_node_cut_off_knows_no_leader() -> None:
    """Its source is told so, and learns of the leader again when the node is back."""
    cluster = settled()

    cluster.cut("C", "AB")
    cluster.run(3.0)
    alone = cluster.nodes["C"].group.status().leader, cluster.nodes["C"].source.leader
    cluster.heal()
    cluster.run(0.2)

    assert (None, None) == alone
    assert "A" == cluster.nodes["C"].source.leader


def test_a_leader_whose_peers_are_gone_steps_down_at_once() -> None:
    """Refused links to a majority are proof, so it need not wait for its fallback time."""
    cluster = settled()

    cluster.crash("B")
    cluster.crash("C")
    cluster.run(0.01)

    assert not cluster.nodes["A"].group.status().is_leader


def test_leadership_returns_to_the_preferred_node() -> None:
    """A few seconds after it is back and caught up; no value is lost by it."""
    cluster = settled()
    cluster.crash("A")
    cluster.elect()
    propose(cluster, 20)
    cluster.start("A")

    seconds = cluster.run_until(lambda: cluster.leader() == "A")

    assert 4.0 < seconds < 7.0
    propose(cluster, 5, prefix="w")
    assert 25 == len(cluster.acknowledged)
    cluster.check_converged()


def test_a_transfer_takes_a_few_round_trips() -> None:
    """A planned stop hands over, and no client waits for an election."""
    cluster = settled()
    propose(cluster, 5)

    assert cluster.nodes["A"].group.transfer("C")
    seconds = cluster.run_until(lambda: cluster.leader() == "C")

    assert seconds < 0.05


def test_a_transfer_to_nobody_in_particular_finds_a_peer() -> None:
    """The peer with most of the log is asked."""
    cluster = settled()
    cluster.cut("C", "AB")
    propose(cluster, 5)

    assert cluster.nodes["A"].group.transfer(None)
    cluster.run_until(lambda: cluster.leader() == "B")


def test_a_transfer_that_is_under_way_is_one_to_whoever_it_goes_to() -> None:
    """A node that leaves waits for the current transfer and starts no other."""
    cluster = settled()
    group = cluster.nodes["A"].group

    assert group.transfer("C")

    assert group.transfer(None)
    assert group.transfer("C")
    assert not group.transfer("B")


def test_a_transfer_that_fails_ends_the_pause() -> None:
    """Half a second later the leader accepts entries again."""
    cluster = settled()
    cluster.cut("C", "AB")

    assert cluster.nodes["A"].group.transfer("C")
    cluster.propose(b"patient")
    cluster.run(0.4)
    early = b"patient" in cluster.acknowledged
    cluster.run(0.2)

    assert not early
    assert b"patient" in cluster.acknowledged


def test_a_transfer_that_is_heard_too_late_deposes_nobody() -> None:
    """The peer was paused meanwhile; the next message shows that its leader has continued."""
    cluster = settled()
    propose(cluster, 5)
    let_go = stand_still(cluster, "C")
    assert cluster.nodes["A"].group.transfer("C")
    cluster.run(0.8)
    propose(cluster, 1, prefix="after")

    let_go()
    cluster.run(0.5)
    propose(cluster, 1, prefix="again")

    assert cluster.leader() == "A"
    assert cluster.nodes["C"].group.status().term == 1


def test_a_transfer_to_a_voter_that_was_removed_meanwhile_deposes_nobody() -> None:
    """It gets no more messages, not even that of its removal."""
    cluster = settled("ABCDE")
    propose(cluster, 5)
    let_go = stand_still(cluster, "C")
    assert cluster.nodes["A"].group.transfer("C")
    cluster.run(0.8)
    cluster.run_until(lambda: cluster.dismiss("C"))
    cluster.run_until(lambda: "C" not in cluster.members().voters)
    cluster.run(0.2)

    let_go()
    cluster.run(1.0)

    assert cluster.leader() == "A"
    assert cluster.nodes["A"].group.status().term == 1


def stand_still(cluster: SimCluster, node_id: str) -> Callable[[], None]:
    """Hold a node's messages back, as the kernel does for a stopped process.

    Returns:
        A function that resumes the node, which then receives all of them at once.
    """
    receives, kept = cluster.network.receivers[node_id], []
    cluster.network.receivers[node_id] = lambda source, message: kept.append((source, message))

    def go_on() -> None:
        cluster.network.receivers[node_id] = receives
        for source, message in kept:
            receives(source, message)

    return go_on


def test_a_follower_refuses_a_transfer() -> None:
    """Only the leader can hand over, and only to a peer it reaches."""
    cluster = settled()

    assert not cluster.nodes["B"].group.transfer("C")
    assert not cluster.nodes["A"].group.transfer("A")


def test_a_barrier_is_one_round_however_many_wait() -> None:
    """A hundred reads at once cost one heartbeat."""
    cluster = settled()
    wire = Wiretap(cluster)
    answers: list[bool] = []

    for _ in range(100):
        cluster.nodes["A"].group.barrier(answers.append)
    cluster.run(0.01)

    assert [True] * 100 == answers
    assert len(wire.of(1, "A", "B")) == 1


def test_a_barrier_on_a_follower_fails() -> None:
    """It does not lead, so it can prove nothing."""
    cluster = settled()
    answers: list[bool] = []

    cluster.nodes["B"].group.barrier(answers.append)
    cluster.run(0.01)

    assert [False] == answers


def test_a_barrier_does_not_count_answers_that_were_under_way() -> None:
    """Answers to earlier messages prove nothing about the time after the question."""
    cluster = settled()
    held = {peer: cluster.network.hold((peer, "A")) for peer in "BC"}
    cluster.run(0.15)
    old = {peer: list(messages) for peer, messages in held.items()}
    answers: list[bool] = []

    cluster.nodes["A"].group.barrier(answers.append)
    cluster.run(0.001)
    for peer, messages in old.items():
        for message in messages:
            cluster.network.deliver((peer, "A"), message)
    cluster.run(0.01)

    assert [] == answers


def test_a_restart_applies_nothing_twice_and_skips_nothing() -> None:
    """The state names its index; the log continues from there."""
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


def test_the_log_is_trimmed_to_what_every_voter_holds() -> None:
    """With all voters there it stays short; while one is away no entry it needs is trimmed."""
    settings = RaftSettings(keep_entries=50, cache_bytes_max=2000, entries_in_flight_max=64)
    cluster = settled(settings=settings)
    propose(cluster, 1000)
    shared = [cluster.nodes[node_id].group.status().log_first for node_id in "ABC"]
    cluster.crash("C")
    propose(cluster, 1000, prefix="w")
    kept = cluster.nodes["A"].group.status().log_first
    cluster.start("C")
    cluster.run(3.0)

    assert min(shared) > 500
    assert kept < 1003
    cluster.check_converged()
    assert cluster.nodes["C"].group.status().log_first > 1000


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


def test_a_failed_flush_takes_the_replica_out_until_its_disk_is_read_anew() -> None:
    """The content of the disk is unknown until then, so the replica promises nothing."""
    cluster = settled()
    wire = Wiretap(cluster)
    cluster.outage_s = lambda: 5.0
    cluster.disks["B"].full = True
    propose(cluster, 3)
    answers = len(wire.of(ANSWER, "B", "A"))
    propose(cluster, 3, prefix="more")

    assert 1 == cluster.outages
    assert not cluster.nodes["B"].group.running
    assert answers == len(wire.of(ANSWER, "B", "A"))
    assert 6 == len(cluster.acknowledged)

    cluster.run(6.0)

    assert cluster.nodes["B"].group.running
    cluster.check_converged()


def test_a_leader_whose_disk_is_full_gives_up_its_place() -> None:
    """It asks its best peer to lead, so no client waits until its silence is noticed."""
    cluster = settled()
    propose(cluster, 3)
    cluster.disks["A"].full = True
    cluster.outage_s = lambda: 5.0

    assert cluster.propose(b"first refused")
    took_s = cluster.run_until(lambda: cluster.leader() in ("B", "C"))
    propose(cluster, 3, prefix="more")

    assert took_s < cluster.settings.election_ms / 1000 / 2
    assert not cluster.nodes["A"].group.status().is_leader
    assert cluster.nodes["A"].source.term is None
    assert 6 <= len(cluster.acknowledged)
    cluster.run(8.0)
    cluster.check_converged()


def test_nobody_hands_over_to_a_node_that_is_out() -> None:
    """It is connected and preferred but silent: asking it would make clients wait."""
    cluster = settled()
    cluster.disks["A"].full = True
    cluster.outage_s = lambda: 60.0
    assert cluster.propose(b"first refused")
    cluster.run_until(lambda: cluster.leader() in ("B", "C"))
    leader = cluster.leader()
    assert leader is not None

    cluster.run(30.0)

    assert leader == cluster.leader()
    assert 0 == cluster.nodes[leader].group.status().counters.get("handover_failed", 0)


def test_a_disk_without_a_second_chance_stops_the_replica() -> None:
    """A group wired without a way to reopen its disk is stopped permanently."""
    cluster = settled()
    cluster.expect_fatal = True
    cluster.nodes["B"].group._on_storage_failed = None
    cluster.disks["B"].full = True

    propose(cluster, 3)

    assert isinstance(cluster.nodes["B"].fatal, StorageFailed)
    assert 3 == len(cluster.acknowledged)


def test_a_group_that_is_out_answers_who_asks_it() -> None:
    """A read is refused at once and does not wait for the disk."""
    cluster = settled()
    cluster.disks["A"].full = True
    cluster.outage_s = lambda: 60.0
    assert cluster.propose(b"first refused")
    cluster.run(0.5)
    answers: list[bool] = []

    cluster.nodes["A"].group.barrier(answers.append)

    assert [False] == answers
    assert not cluster.nodes["A"].group.transfer("B")
    assert cluster.nodes["A"].group.status().leader is None


def test_a_damaged_log_refuses_to_start() -> None:
    """One flipped bit, and the node must be restored from its peers."""
    cluster = settled()
    propose(cluster, 5)
    cluster.crash("B")
    cluster.start("B")  # The rows that were only in the write-ahead log are in the database now.
    cluster.crash("B")
    key = b"log/" + (3).to_bytes(8, "big")
    cluster.disks["B"].damage(key, lambda row: row[:-1] + bytes([row[-1] ^ 1]))

    with pytest.raises(DataDirectoryRefused, match="checksum"):
        cluster.start("B")


def test_a_source_hears_of_every_change() -> None:
    """A deposed leader's source stops; its followers' sources know the new leader."""
    cluster = settled()
    assert [None, "A", "A"] == [cluster.nodes[n].source.leader for n in "ABC"]
    cluster.cut("A", "BC")
    cluster.run_until(lambda: cluster.leader() in ("B", "C"))
    new = cluster.leader()
    cluster.heal()
    cluster.run(0.5)

    assert cluster.nodes["A"].source.term is None
    assert new == cluster.nodes["A"].source.leader


def test_a_stranger_is_not_heard() -> None:
    """Only voters count, whatever others send."""
    cluster = settled()

    cluster.nodes["A"].group.receive("Z", pack({"t": 8, "i": 1, "s": 1, "e": 99}))
    cluster.run(0.1)

    status = cluster.nodes["A"].group.status()
    assert (1, 1) == (status.term, status.counters["stranger"])


def test_a_voter_that_lost_its_disk_is_kept_quiet() -> None:
    """Entries it needs are trimmed: until it has a snapshot it gets only heartbeats."""
    cluster = settled(settings=RaftSettings(keep_entries=50, entries_in_flight_max=16))
    cluster.snapshot_arrives = lambda: False
    propose(cluster, 1000)
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
    assert cluster.nodes["A"].group.out_of_reach("C")
    assert not cluster.nodes["A"].group.out_of_reach("B")
    # Only the entries in flight before the first refusal arrived.
    assert sum(len(m["et"]) for m in wire.of(1, "A", "C")) < 20
    assert 2000 == len(cluster.acknowledged)
