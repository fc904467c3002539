"""Groups at rest: they say nothing, and their time-outs, reads and terms are as if they did."""

from __future__ import annotations

from collections import Counter

import pytest

from codeq_cluster.codec import levels
from codeq_cluster.raft.messages import Append
from codeq_cluster.raft.messages import Beat as BeatMessage
from codeq_cluster.settings import RaftSettings
from tests.simulator.cluster import SimCluster
from tests.simulator.network import NetworkFaults
from tests.simulator.scenes import Wiretap, propose, settled, settled_brokers

APPEND, BEAT = (kind.__struct_config__.tag for kind in (Append, BeatMessage))
QUIET_S = 30.0
# Twice the time-out, a round of votes, and the time that pre-votes may be refused meanwhile.
ELECTED_S = 2.5
FALLBACK_S = 1.5


def at_rest(node_ids: str = "ABC", *, level: int = levels.LEVEL) -> SimCluster:
    """Return a cluster whose leader A had something to say a while ago."""
    cluster = settled(node_ids, level=level, rests=True)
    propose(cluster, 3)
    cluster.run(QUIET_S)
    return cluster


def resting(cluster: SimCluster) -> bool:
    """Return whether the leader's group is at rest."""
    leader = cluster.leader()
    assert leader is not None
    return cluster.nodes[leader].group.rests_in is not None


def kinds(cluster: SimCluster, seconds: float) -> Counter[object]:
    """Return the messages of all nodes during a time, by kind."""
    wire = Wiretap(cluster)
    cluster.run(seconds)
    return Counter(message["t"] for _, _, message in wire.sent)


@pytest.mark.parametrize("node_ids", ["A", "ABC", "ABCDE"])
def test_a_group_without_work_says_nothing(node_ids: str) -> None:
    """Its leader's node beats ten times a second to each peer, which answers with its own beats."""
    cluster = at_rest(node_ids)

    said = kinds(cluster, 10.0)

    assert resting(cluster)
    assert {1} == {node.group.status().term for node in cluster.nodes.values()}
    assert Counter({BEAT: 2 * 100 * (len(node_ids) - 1)}) == said


def test_a_leader_at_rest_knows_that_its_peers_answer() -> None:
    """They answer its node's beats, so they count as nodes that answer."""
    cluster = at_rest()
    leader = cluster.nodes["A"].group

    heard = set()
    for _ in range(300):
        cluster.run(0.01)
        heard |= {leader.acknowledges("B"), leader.acknowledges("C")}

    assert resting(cluster)
    assert {True} == heard


def test_a_group_of_an_earlier_release_never_rests() -> None:
    """A member that does not know beats would miss its leader."""
    cluster = at_rest(level=levels.RESTS_FROM - 1)

    said = kinds(cluster, 10.0)

    assert not resting(cluster)
    assert 0 == said[BEAT] < said[APPEND]


def test_an_entry_ends_the_rest_and_loses_no_time() -> None:
    """It is committed after one flush and one round trip, in the same term; then all rest again."""
    cluster = at_rest()

    cluster.propose(b"late")
    cluster.run(0.0021)
    acknowledged = b"late" in cluster.acknowledged
    cluster.run(0.3)
    applied = [cluster.values(node_id)[-1] for node_id in "ABC"]
    cluster.run(2.0)

    assert acknowledged
    assert [b"late"] * 3 == applied
    assert resting(cluster)
    assert 1 == cluster.nodes["A"].group.status().term


def test_a_read_of_a_group_at_rest_asks_a_majority() -> None:
    """A beat is no proof for a read: a leader that is cut off confirms none."""
    cluster = at_rest()
    said: list[bool] = []

    cluster.nodes["A"].group.barrier(said.append)
    cluster.run(0.01)
    confirmed = list(said)
    cluster.run(2.0)
    rested = resting(cluster)
    cluster.cut("A", "BC")
    cluster.nodes["A"].group.barrier(said.append)
    cluster.run(ELECTED_S + FALLBACK_S)

    assert [True] == confirmed
    assert rested
    assert [True, False] == said


@pytest.mark.parametrize("refused", [True, False], ids=["its death is noticed", "it falls silent"])
def test_a_dead_leader_is_replaced_in_the_usual_time(refused: bool) -> None:
    """Followers without a timer of their own get one from the instant of the last beat."""
    cluster = at_rest()

    cluster.crash("A", refused=refused)
    seconds = cluster.run_until(lambda: cluster.leader() in ("B", "C"))

    assert seconds < (0.5 if refused else ELECTED_S)
    propose(cluster, 1, prefix="next")
    assert b"next0" in cluster.acknowledged


@pytest.mark.parametrize(
    "cut",
    [
        {("A", "B"), ("A", "C"), ("B", "A"), ("C", "A")},
        {("B", "A"), ("C", "A")},
        {("A", "B"), ("A", "C")},
    ],
    ids=["both ways", "it hears nobody", "nobody hears it"],
)
def test_a_leader_without_a_majority_steps_down(cut: set[tuple[str, str]]) -> None:
    """It does so within its time-out, and no other node led before in the same term."""
    cluster = at_rest()

    cluster.network.cut = cut
    seconds = cluster.run_until(lambda: not cluster.nodes["A"].group.status().is_leader)
    cluster.heal()
    cluster.run(ELECTED_S + 8.0)

    assert seconds < FALLBACK_S + 0.5
    assert "A" == cluster.leader()
    assert resting(cluster)


@pytest.mark.parametrize("refused", [True, False], ids=["its death is noticed", "it falls silent"])
def test_a_follower_that_is_away_keeps_the_others_awake(refused: bool) -> None:
    """The leader goes on with heartbeats, and the group rests once the follower has caught up."""
    cluster = at_rest()

    cluster.crash("C", refused=refused)
    cluster.run(1.0)
    awake = kinds(cluster, 5.0)
    rested = resting(cluster)
    cluster.start("C")
    cluster.run(3.0)

    assert not rested
    assert 0 == awake[BEAT]
    assert awake[APPEND] > 40
    assert resting(cluster)
    assert 1 == cluster.nodes["A"].group.status().term
    assert "A" == cluster.nodes["C"].group.status().leader


def test_a_follower_whose_replica_is_paused_keeps_the_others_awake() -> None:
    """Its node beats on and refuses the group, which is no answer to a heartbeat."""
    cluster = at_rest()

    cluster.nodes["B"].group.pause(lambda _failed: None)
    cluster.run(1.0)
    awake = kinds(cluster, 5.0)
    begun = cluster.nodes["A"].group.transfer("B")

    assert 0 == awake[BEAT]
    assert awake[APPEND] > 40
    assert not begun


def test_a_leader_whose_only_follower_is_paused_steps_down() -> None:
    """The follower's node, which refuses, does not keep it in office."""
    cluster = at_rest("AB")

    cluster.nodes["B"].group.pause(lambda _failed: None)
    seconds = cluster.run_until(lambda: not cluster.nodes["A"].group.status().is_leader)

    assert seconds < FALLBACK_S + 0.5


def test_a_follower_that_has_forgotten_its_leader_learns_of_it() -> None:
    """A replica that read its store again refuses the beat, so its leader sends a heartbeat."""
    cluster = at_rest()
    group = cluster.nodes["B"].group

    group.pause(lambda _failed: None)
    cluster.nodes["B"].machine.load()
    group.resume()
    forgotten = group.status().leader
    # Less than the time after which it would ask for pre-votes.
    cluster.run(0.25)

    assert forgotten is None
    assert "A" == group.status().leader
    assert 1 == group.status().term


def test_a_follower_that_once_differed_from_another_rests_again() -> None:
    """Only leaders are compared with, so it never hears that a former one was put right."""
    cluster = at_rest()

    cluster.crash("A")
    former = cluster.elect()
    cluster.start("A")
    cluster.run(1.0)
    cluster.nodes[former].machine.corrupt()
    propose(cluster, 1, prefix="doubted")
    # A leader that has served a snapshot holds more of its log for a minute.
    cluster.run(60.0 + QUIET_S)
    said = kinds(cluster, 10.0)

    assert 1 == cluster.reseeded
    assert "A" == cluster.leader()
    assert resting(cluster)
    assert 0 == said[APPEND]


def test_a_follower_that_differs_from_its_leader_does_not_rest() -> None:
    """Their heartbeats and answers have to show whose state is right."""
    cluster = at_rest()
    group = cluster.nodes["B"].group
    divergence = group._replica.divergence

    agreeing = group.rest_under("A", 1)
    divergence.compared("A", group.status().applied_index, same=False)

    assert agreeing
    assert not group.rest_under("A", 1)


def test_a_follower_rests_only_under_the_leader_of_its_term() -> None:
    """Another node's word, or that of another term, is refused."""
    cluster = at_rest()
    group = cluster.nodes["B"].group

    assert group.rest_under("A", 1)
    assert not group.rest_under("C", 1)
    assert not group.rest_under("A", 2)
    assert not cluster.nodes["A"].group.rest_under("B", 1)


def test_followers_forget_what_their_leader_forgot_before_it_rests() -> None:
    """The last heartbeat tells them how far the log may be trimmed."""
    cluster = settled(rests=True, settings=RaftSettings(log_entries_max=40, keep_entries=8))
    propose(cluster, 100)
    cluster.run(QUIET_S)
    logs = [cluster.nodes[node_id].group.status() for node_id in "ABC"]

    assert resting(cluster)
    assert logs[0].log_first > 40
    assert {logs[0].log_first} == {log.log_first for log in logs}


def test_a_follower_whose_state_is_stored_late_still_trims_its_log() -> None:
    """The group rests once that is done: a follower at rest takes no turns."""
    cluster = settled(rests=True, settings=RaftSettings(log_entries_max=40, keep_entries=8))
    database = cluster.nodes["B"].database
    database.stalled = True
    propose(cluster, 100)
    cluster.run(QUIET_S)
    database.stalled = False
    cluster.run(5.0)
    logs = [cluster.nodes[node_id].group.status() for node_id in "ABC"]

    assert resting(cluster)
    assert logs[0].log_first > 40
    assert {logs[0].log_first} == {log.log_first for log in logs}


def test_an_entry_that_is_proposed_as_its_group_goes_to_rest_is_sent_until_it_is_held() -> None:
    """A message may be lost, and only heartbeats would send it again."""
    went, lost = settled(rests=True), settled(rests=True)
    for cluster in (went, lost):
        cluster.propose(b"first")
        cluster.run(0.01)
    began = went.clock.now
    while not resting(went):
        went.run(0.0005)
    lost.run(went.clock.now - began - 0.0005)
    awake = not resting(lost)

    lost.nodes["A"].source.propose(b"last")
    lost.network.faults = NetworkFaults(drop=1.0)
    lost.run(0.0005)
    lost.network.faults = NetworkFaults()
    lost.run(0.5)

    assert awake
    assert b"last" in lost.acknowledged


def test_a_group_that_its_leader_gave_up_is_missed_beside_others_at_rest() -> None:
    """The beats of the leader's node go on, and no longer name it."""
    brokers = settled_brokers(shards=6)
    brokers.run(QUIET_S)
    groups = brokers.nodes["A"].groups
    rested = [shard for shard, group in enumerate(groups) if group.rests_in]

    groups[0].stop()
    brokers.run(ELECTED_S)
    leaders = {brokers.leader(shard) for shard in rested}
    others = {brokers.nodes[node_id].groups[0].status().leader for node_id in "BC"}
    brokers.close()

    assert [0, 3] == rested
    assert others in ({"B"}, {"C"})
    assert "A" in leaders


def test_a_beat_counts_for_a_leader_only_as_an_answer_to_its_own() -> None:
    """A peer that no longer hears it beats on for a while, and does not keep it in office."""
    cluster = at_rest("AB")
    engine = cluster.nodes["A"].group._replica.engine

    cluster.network.cut = {("A", "B")}
    # The peer's next beat may still answer one from before.
    cluster.run(0.101)
    last = cluster.clock.now
    wire = Wiretap(cluster)
    cluster.run(0.4)

    assert wire.of(BEAT, "B", "A")
    assert not engine.answered_since("B", last)


def test_a_leader_that_stops_is_missed_by_its_followers() -> None:
    """Its node no longer beats for anybody."""
    cluster = at_rest()

    cluster.nodes["A"].group.stop()
    seconds = cluster.run_until(lambda: cluster.leader() in ("B", "C"))

    assert seconds < ELECTED_S


def test_a_leadership_is_transferred_out_of_rest() -> None:
    """The peer is known to be alive by its beats."""
    cluster = at_rest()

    begun = cluster.nodes["A"].group.transfer("B")
    cluster.run(0.1)

    assert begun
    assert "B" == cluster.leader()


def test_a_beat_of_an_earlier_life_keeps_nobody_waiting() -> None:
    """Frames of a dead connection and of a dead process are dropped, as of a leader's messages."""
    cluster = at_rest()
    wire = Wiretap(cluster)
    cluster.run(0.5)
    old = wire.of(BEAT, "A", "B")[-2:]

    cluster.crash("A", refused=False)
    began = cluster.clock.now
    while cluster.leader() not in ("B", "C") and cluster.clock.now < began + QUIET_S:
        for message in old:
            cluster.network.deliver(("A", "B"), message)
            cluster.network.deliver(("A", "C"), message)
        cluster.run(0.05)

    assert cluster.clock.now - began < ELECTED_S
