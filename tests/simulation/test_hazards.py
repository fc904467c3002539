"""One scripted scenario per hazard: the library is safe with the rule, and unsafe without it."""

from __future__ import annotations

from random import Random

import pytest

from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.settings import RaftSettings
from tests.simulator.cluster import SimCluster
from tests.simulator.invariants import InvariantViolated
from tests.simulator.scenes import Wiretap, propose, settled

APPEND, ANSWER, VOTE_REQUEST, VOTE = 1, 2, 3, 4


def journal(cluster: SimCluster, node_id: str) -> Journal:
    return cluster.nodes[node_id].group._replica.journal


@pytest.mark.parametrize(
    "message",
    [
        {"t": 1, "serialized": b"chunk", "e": 1, "c": 9},
        {"type": "append_entries", "serialized": None, "term": 1, "commit_index": 9},
        {"type": "apply_command", "command": b"x", "request_id": 1},
        {"type": "append_entries", "transmission": "start", "data": b"x"},
    ],
    ids=["chunk", "library chunk", "forwarded command", "transmission"],
)
def test_snapshots_and_forwarded_commands_are_refused(message: dict[str, object]) -> None:
    """A message that this release never sends cannot move a follower's commit index."""
    cluster = settled()
    before = cluster.nodes["B"].group.status()

    cluster.network.deliver(("A", "B"), message)
    cluster.run(0.05)

    after = cluster.nodes["B"].group.status()
    assert (before.commit_index, before.log_last) == (after.commit_index, after.log_last)
    assert 1 == after.counters["malformed"]


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        (ALL_RULES, True),
        (SafetySwitches(fresh_only=False), True),
        (SafetySwitches(skip_what_we_have=False), True),
        (SafetySwitches(fresh_only=False, skip_what_we_have=False, keep_committed=False), False),
    ],
    ids=["all rules", "late messages pass", "matching entries pass", "none of them"],
)
def test_a_late_append_deletes_nothing_acknowledged(rules: SafetySwitches, kept: bool) -> None:
    """An early message of the same leader and term that arrives again must not truncate the log."""
    cluster = settled(rules=rules)
    wire = Wiretap(cluster)
    propose(cluster, 5)
    early = next(m for m in wire.of(APPEND, "A", "B") if m["ec"])
    propose(cluster, 20, prefix="w")
    cluster.cut("A", "B", "C")
    last = journal(cluster, "B").last

    cluster.network.deliver(("A", "B"), early)
    cluster.run(0.01)

    assert kept == (journal(cluster, "B").last == last)


def test_a_truncation_below_the_commit_index_stops_the_replica() -> None:
    """When every other rule fails, the journal refuses and the replica stops."""
    cluster = settled(rules=SafetySwitches(fresh_only=False, skip_what_we_have=False))
    wire = Wiretap(cluster)
    propose(cluster, 5)
    early = next(m for m in wire.of(APPEND, "A", "B") if m["ec"])
    propose(cluster, 20, prefix="w")
    cluster.expect_fatal = True

    cluster.network.deliver(("A", "B"), early)
    cluster.run(0.01)

    assert "truncation" in str(cluster.nodes["B"].fatal)


@pytest.mark.parametrize(
    "rules", [ALL_RULES, SafetySwitches(answers_of_this_term=False)], ids=["all rules", "without"]
)
def test_an_answer_from_an_earlier_leadership_counts_for_nothing(rules: SafetySwitches) -> None:
    """B's answers in A's first leadership must not count as copies of A's later entries."""
    cluster = settled("ABCDE", rules=rules, settings=RaftSettings(entries_in_flight_max=50))
    held = cluster.network.hold(("B", "A"))
    cluster.cut("AB", "CDE")
    propose(cluster, 6, prefix="old")
    answers = list(held)
    cluster.run_until(lambda: cluster.leader() in tuple("CDE"))
    cluster.run(2.0)
    cluster.heal()
    cluster.run(1.0)
    assert cluster.nodes[cluster.leader()].group.transfer("A")
    cluster.elect("A")
    cluster.cut("AC", "B", "DE")
    for number in range(10):
        cluster.nodes["A"].source.propose(b"new%d" % number)
    cluster.nodes["A"].group.wake()
    cluster.run(0.1)

    for answer in answers:
        cluster.network.deliver(("B", "A"), answer)
    cluster.run(0.01)

    if rules == ALL_RULES:
        cluster.check()
    else:
        with pytest.raises(InvariantViolated, match=r"^W5 "):
            cluster.check()


def test_an_entry_of_an_earlier_term_waits_for_one_of_this_term() -> None:
    """A majority may hold it and lose it to a leader that was elected by others."""
    cluster = settled(settings=RaftSettings(append_bytes_max=1))
    cluster.cut("A", "B", "C")
    cluster.propose(b"old")
    cluster.run(0.01)
    old = journal(cluster, "A").last
    cluster.crash("A")
    cluster.crash("C")
    cluster.heal()
    cluster.start("A")
    leader = cluster.nodes["A"].group
    while not leader.status().is_leader:
        cluster.run(0.0001)
    known = leader.status().commit_index
    held = cluster.network.hold(("A", "B"))
    cluster.run(0.05)
    seen = []
    for _ in range(3):
        cluster.network.deliver(("A", "B"), held[-1])
        cluster.run(0.01)
        status = leader.status()
        seen.append((status.peers[0].match_index, status.commit_index))

    # The first message has no entry: B says what it holds. The last has the first of this term.
    assert [(old - 1, known), (old, known), (old + 1, old + 1)] == seen


@pytest.mark.parametrize(
    "rules", [ALL_RULES, SafetySwitches(one_vote_a_voter=False)], ids=["all rules", "without"]
)
def test_one_voter_has_one_vote(rules: SafetySwitches) -> None:
    """A vote that arrives twice does not make a minority elect a leader."""
    cluster = settled("ABCDE", rules=rules)
    cluster.cut("A", "BCDE")
    cluster.run(4.0)
    candidate = cluster.nodes["A"].group
    candidate._replica.campaign.wanted = True
    candidate.wake()
    cluster.run(0.01)
    term = candidate.status().term

    for _ in range(2):
        # The same vote in two messages, each with a number of its own.
        [(incarnation, seq)] = [
            seen for (peer, _), seen in candidate._replica.inbox._seen.items() if peer == "B"
        ]
        vote = {"t": VOTE, "i": incarnation, "s": seq + 1, "e": term}
        cluster.network.deliver(("B", "A"), vote)
    cluster.run(0.01)

    assert (rules != ALL_RULES) == candidate.status().is_leader


@pytest.mark.parametrize(
    ("rules", "messages_max", "messages_min"),
    [(ALL_RULES, 5, 1), (SafetySwitches(skip_conflicting_terms=False), 10_000, 100)],
    ids=["a term at a time", "an entry at a time"],
)
def test_a_long_divergent_tail_is_found_in_a_few_messages(
    rules: SafetySwitches, messages_max: int, messages_min: int
) -> None:
    """A deposed leader's 300 entries cost a round trip per term, not one per entry."""
    cluster = settled(rules=rules, settings=RaftSettings(entries_in_flight_max=1000))
    cluster.cut("A", "BC")
    for number in range(300):
        cluster.nodes["A"].source.propose(b"tail%d" % number)
    cluster.nodes["A"].group.wake()
    cluster.run_until(lambda: cluster.leader() in ("B", "C"))
    propose(cluster, 1, prefix="x")
    leader = cluster.leader()
    for number in range(350):
        cluster.nodes[leader].source.propose(b"other%d" % number)
    cluster.nodes[leader].group.wake()
    cluster.run(0.5)
    wire = Wiretap(cluster)

    cluster.heal()
    cluster.run_until(lambda: journal(cluster, "A").last == journal(cluster, leader).last)

    refusals = [m for m in wire.of(ANSWER, "A", leader) if m["x"]]
    assert messages_min <= len(refusals) <= messages_max


@pytest.mark.parametrize(
    ("rules", "dropped"),
    [(ALL_RULES, 1), (SafetySwitches(fresh_only=False), 0)],
    ids=["all rules", "late messages pass"],
)
def test_a_frame_of_a_dead_connection_is_dropped(rules: SafetySwitches, dropped: int) -> None:
    """After a reconnect, a frame that the older connection still delivers is dropped as late."""
    cluster = settled(rules=rules)
    wire = Wiretap(cluster)
    cluster.run(0.25)
    old = wire.of(APPEND, "A", "B")[0]
    cluster.reconnect("A", "B")
    cluster.run(0.2)

    cluster.network.deliver(("A", "B"), old)

    assert dropped == cluster.nodes["B"].group.status().counters.get("late", 0)


def test_a_frame_of_an_earlier_life_is_dropped() -> None:
    """The number of a restarted node's first message is newer than all its old ones."""
    cluster = settled()
    wire = Wiretap(cluster)
    cluster.run(0.25)
    old = wire.of(ANSWER, "B", "A")[-1]
    cluster.crash("B")
    cluster.start("B")
    cluster.run(0.2)

    cluster.network.deliver(("B", "A"), dict(old, s=10_000))

    assert 1 == cluster.nodes["A"].group.status().counters["late"]


def test_a_restarted_node_believes_committed_what_it_had_applied_and_no_more() -> None:
    """It applies those entries at once and in order; the rest of its log may still be replaced."""
    cluster = settled()
    propose(cluster, 10)
    had = cluster.nodes["B"].machine.applied_index
    noted = cluster.disks["B"].applied
    cluster.crash("B")
    noted.note(0, had)  # This is the state after a killed process; a power cut may leave less.
    cluster.cut("B", "AC")

    cluster.start("B")
    assert cluster.nodes["B"].machine.applied_index <= had
    cluster.run(0.1)

    status = cluster.nodes["B"].group.status()
    assert had == status.applied_index == status.commit_index <= status.log_last


def test_a_number_beyond_the_log_is_no_commit() -> None:
    """The stored commit index is only a hint: the log shows which entries exist."""
    cluster = settled()
    propose(cluster, 10)
    cluster.crash("B")
    cluster.disks["B"].applied.note(0, 10**6)
    cluster.cut("B", "AC")

    cluster.start("B")
    cluster.run(0.1)

    status = cluster.nodes["B"].group.status()
    assert status.applied_index == status.commit_index == status.log_last


def test_a_silent_follower_is_not_flooded() -> None:
    """The number of entries in flight to a follower that does not answer is bounded."""
    settings = RaftSettings(
        append_bytes_max=64, entry_bytes_max=32, entries_in_flight_max=50, cache_bytes_max=10_000
    )
    cluster = settled(settings=settings)
    cluster.network.cut = {("C", "A")}
    wire = Wiretap(cluster)

    propose(cluster, 200)

    with_entries = [m for m in wire.of(APPEND, "A", "C") if m["et"]]
    assert sum(map(len, with_entries[-1]["ec"])) <= 64
    assert len(with_entries) <= 64


def test_a_leader_elected_again_remembers_nothing_of_its_first_leadership() -> None:
    """The entries then in flight are gone from the log, so it must not wait for answers to them."""
    settings = RaftSettings(append_bytes_max=64, entry_bytes_max=32, entries_in_flight_max=100)
    cluster = settled(settings=settings)
    cluster.cut("A", "BC")
    for number in range(60):
        cluster.nodes["A"].source.propose(b"lost%d" % number)
    cluster.nodes["A"].group.wake()
    cluster.run_until(lambda: cluster.leader() in ("B", "C"))
    cluster.heal()
    cluster.run(0.5)
    leader = cluster.leader()
    assert leader is not None

    assert cluster.nodes[leader].group.transfer("A")
    cluster.elect("A")
    propose(cluster, 100)

    assert 100 == len(cluster.acknowledged)
    cluster.check_converged()


def test_only_the_leader_can_make_a_follower_campaign() -> None:
    """A transfer from any other node is ignored."""
    cluster = settled()
    term = cluster.nodes["B"].group.status().term

    cluster.network.deliver(("C", "B"), {"t": 7, "i": 1, "s": 999, "e": term})
    cluster.run(0.2)

    assert term == cluster.nodes["B"].group.status().term
    assert 1 == cluster.nodes["B"].group.status().counters["stale_transfer"]


def test_two_leaders_in_one_term_stop_the_replica_that_sees_it() -> None:
    """No correct run has two leaders in a term; if it happens, no replica acts on it."""
    cluster = settled()
    wire = Wiretap(cluster)
    cluster.run(0.2)
    cluster.expect_fatal = True
    forged = dict(wire.of(APPEND, "A", "B")[-1], s=9999)

    cluster.network.deliver(("B", "A"), forged)
    cluster.run(0.01)

    assert "leads term" in str(cluster.nodes["A"].fatal)


def test_a_crash_of_every_node_loses_nothing_acknowledged() -> None:
    """An acknowledged entry is on a majority's disks, whatever else a power cut takes."""
    for seed in range(5):
        cluster = SimCluster("ABC", random=Random(seed))
        cluster.start()
        cluster.elect()
        for number in range(30):
            cluster.propose(b"v%d" % number)
            cluster.run(0.001)
        for node_id in "ABC":
            cluster.crash(node_id)
        cluster.start()
        cluster.elect()
        cluster.run(1.0)
        cluster.check_converged()


@pytest.mark.parametrize(
    "settings",
    [
        RaftSettings(append_bytes_max=64, entry_bytes_max=48),
        RaftSettings(cache_bytes_max=1),
    ],
    ids=["two entries larger than a batch", "one of them on disk only"],
)
def test_a_divergent_tail_goes_however_it_is_read(settings: RaftSettings) -> None:
    """A read may end at the compared entry; divergent entries after it are removed all the same."""
    cluster = settled(settings=settings)
    propose(cluster, 3, prefix="committed".ljust(40, "."))
    cluster.cut("A", "BC")
    cluster.nodes["A"].source.propose(b"nobody's".ljust(41, b"."))
    cluster.nodes["A"].group.wake()
    cluster.run_until(lambda: cluster.leader() in ("B", "C"))

    cluster.heal()
    cluster.run(1.0)
    propose(cluster, 3, prefix="after")

    cluster.check_converged()
    assert 6 == len(cluster.values("A"))
