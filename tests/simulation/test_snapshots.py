"""Snapshots: one scripted scenario per hazard of a follower that lacks trimmed entries."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.settings import RaftSettings
from tests.simulator.cluster import SimCluster
from tests.simulator.invariants import InvariantViolated
from tests.simulator.scenes import propose, settled

APPEND, ANSWER, VOTE_REQUEST, BEHIND = 1, 2, 3, 9

# A trim removes at least 256 entries; here the log has more than 512 each time.
SMALL = RaftSettings(keep_entries=20, log_entries_max=512, entries_in_flight_max=64)

# Once a second the log is trimmed up to the stored state, and a snapshot is taken there.
STORED_S = 1.1


def journal(cluster: SimCluster, node_id: str) -> Journal:
    return cluster.nodes[node_id].group._replica.journal


def left_behind(
    node_id: str = "B",
    *,
    node_ids: str = "ABC",
    rules: SafetySwitches = ALL_RULES,
    settings: RaftSettings = SMALL,
) -> SimCluster:
    """Return a cluster whose leader A has trimmed entries that a cut-off node needs."""
    cluster = settled(node_ids, rules=rules, settings=settings)
    propose(cluster, 5, prefix="early")
    cluster.cut(node_id, node_ids.replace(node_id, ""))
    for burst in range(8):
        propose(cluster, 100, prefix=f"missed{burst}/")
    cluster.run(STORED_S)
    assert journal(cluster, "A").first > journal(cluster, node_id).last
    return cluster


def fetching(cluster: SimCluster, node_id: str = "B") -> bool:
    return cluster.nodes[node_id].reseeding


def caught_up(cluster: SimCluster, node_id: str = "B") -> bool:
    leader = cluster.leader()
    return leader is not None and cluster.values(node_id) == cluster.values(leader)


@pytest.mark.parametrize(
    ("rules", "went_back"),
    [(ALL_RULES, False), (SafetySwitches(newer_snapshots_only=False), True)],
    ids=["all rules", "without"],
)
def test_an_older_snapshot_is_not_installed(rules: SafetySwitches, went_back: bool) -> None:
    """A snapshot that arrives after a newer one was installed must not take the state back."""
    cluster = left_behind(rules=rules)
    leader, follower = cluster.nodes["A"], cluster.nodes["B"]
    index = leader.machine.applied_index
    taken = cluster.taken_from(leader)
    for burst in range(8):
        propose(cluster, 100, prefix=f"more{burst}/")
    cluster.heal()
    cluster.run_until(lambda: caught_up(cluster))
    assert journal(cluster, "B").first > index

    if went_back:
        with pytest.raises(InvariantViolated, match=r"^W3 "):
            cluster.install(follower, taken)
    else:
        cluster.install(follower, taken)
    assert went_back == (follower.machine.applied_index == index)


@pytest.mark.parametrize(
    ("rules", "voted_again"),
    [(ALL_RULES, False), (SafetySwitches(keep_the_vote=False), True)],
    ids=["all rules", "without"],
)
def test_the_vote_survives_an_install(rules: SafetySwitches, voted_again: bool) -> None:
    """A node that has voted in a term and then swaps its state gives no second vote in it."""
    cluster = left_behind(rules=rules)
    cluster.snapshot_s = lambda: 0.2
    cluster.heal()
    cluster.run_until(lambda: fetching(cluster))
    cluster.run(0.25)
    stand = {"t": VOTE_REQUEST, "i": 1, "s": 10**6, "e": 9, "l": 10**6, "lt": 8, "x": True}
    cluster.network.deliver(("C", "B"), stand)
    cluster.run(0.01)
    assert "C" == journal(cluster, "B").voted_for
    cluster.cut("B", "AC")
    cluster.run_until(lambda: cluster.snapshots == 1)
    # The group continues its message numbers across the install.
    for seq in (10**6, 10**6 + 1):
        cluster.network.deliver(("A", "B"), {**stand, "s": seq})

    if voted_again:
        with pytest.raises(InvariantViolated, match=r"^W4 .* in term 9"):
            cluster.run(0.01)
    else:
        cluster.run(0.01)
        assert (9, "C") == (journal(cluster, "B").term, journal(cluster, "B").voted_for)
        cluster.crash("B")
        cluster.start("B")
        assert (9, "C") == (journal(cluster, "B").term, journal(cluster, "B").voted_for)


def test_a_snapshot_of_a_term_not_heard_of_is_installed() -> None:
    """A leader that is re-elected while it serves its state has a term unknown to the follower."""
    # B's fetch takes longer than its election timeout.
    cluster = left_behind(settings=replace(SMALL, election_ms=10_000))
    cluster.snapshot_s = lambda: 2.0
    cluster.heal()
    cluster.run_until(lambda: fetching(cluster))
    for peer in "AC":
        cluster.network.hold((peer, "B"))
    for peer in "CA":
        assert cluster.nodes[str(cluster.leader())].group.transfer(peer)
        cluster.elect(peer)
    propose(cluster, 5, prefix="later")
    cluster.run(STORED_S)
    term = cluster.nodes["A"].group.status().term
    assert journal(cluster, "B").term < term

    cluster.run_until(lambda: cluster.snapshots == 1)
    assert (term, None) == (journal(cluster, "B").term, journal(cluster, "B").voted_for)
    cluster.crash("B")
    for peer in "AC":
        cluster.network.release((peer, "B"))
    cluster.start("B")
    cluster.run_until(lambda: caught_up(cluster))
    cluster.check_converged()


def test_a_failing_install_is_no_acknowledgement() -> None:
    """While the only other node fails to install, nothing commits and the leader stays."""
    cluster = left_behind()
    tries: list[bool] = []

    def arrives() -> bool:
        tries.append(len(tries) >= 5)
        return tries[-1]

    cluster.snapshot_arrives = arrives
    cluster.cut("C", "AB")
    assert cluster.propose(b"needs B")
    cluster.run_until(lambda: len(tries) == 5)
    assert b"needs B" not in cluster.acknowledged
    assert 1 == cluster.nodes["A"].group.status().term

    cluster.run_until(lambda: b"needs B" in cluster.acknowledged)

    assert [False] * 5 + [True] == tries
    assert 1 == cluster.snapshots


@pytest.mark.parametrize("transfers", [1, 2], ids=["fetched in time", "fetched too late"])
def test_a_leader_change_in_the_middle_costs_at_most_another_fetch(transfers: int) -> None:
    """A deposed leader's state holds only committed entries, so B may install it."""
    cluster = left_behind()
    cluster.snapshot_s = lambda: 0.3
    cluster.heal()
    cluster.run_until(lambda: fetching(cluster))
    if transfers == 1:
        # By now B has read A's state. A crash before that leaves only C's, and B does not follow C
        # yet.
        cluster.run(0.32)
    cluster.crash("A")
    cluster.elect("C")
    propose(cluster, 10, prefix="after")

    cluster.run_until(lambda: caught_up(cluster))
    cluster.start("A")
    cluster.run(1.0)
    cluster.check_converged()
    assert 1 == cluster.snapshots


def test_the_snapshot_of_a_leader_deposed_since_is_good() -> None:
    """A majority has every entry in the state; entries that only the leader had are not in it."""
    cluster = left_behind()
    cluster.snapshot_s = lambda: 0.3
    cluster.heal()
    cluster.run_until(lambda: fetching(cluster))
    cluster.network.hold(("A", "C"))
    cluster.network.hold(("A", "B"))
    assert cluster.propose(b"on A and nowhere")
    cluster.run(0.32)
    assert b"on A and nowhere" not in cluster.values("A")
    cluster.cut("A", "BC")

    cluster.run_until(lambda: cluster.snapshots == 1)
    cluster.run_until(lambda: cluster.leader() in ("B", "C"))
    propose(cluster, 10, prefix="after")
    cluster.network.release(("A", "C"))
    cluster.network.release(("A", "B"))
    cluster.heal()
    cluster.run(2.0)
    cluster.check_converged()
    assert b"on A and nowhere" not in cluster.values("A")


@pytest.mark.parametrize(
    ("rules", "fetches"),
    [(ALL_RULES, 1), (SafetySwitches(hold_for_snapshots=False), 3)],
    ids=["all rules", "without"],
)
def test_the_log_is_held_while_a_snapshot_travels(rules: SafetySwitches, fetches: int) -> None:
    """A slow transfer ends despite frequent trims; otherwise each snapshot would be too old."""
    cluster = left_behind(rules=rules)
    cluster.snapshot_s = lambda: 2.0
    cluster.heal()
    cluster.run_until(lambda: fetching(cluster))
    for burst in range(26):
        propose(cluster, 200, prefix=f"during{burst}/")

    assert fetches == cluster.snapshots
    assert (fetches == 1) == caught_up(cluster)
    cluster.run_until(lambda: caught_up(cluster))


def test_a_held_log_is_let_go() -> None:
    """A minute after the last read of a chunk, the log is within its bounds again."""
    cluster = left_behind()
    cluster.nodes["A"].group.hold()
    for burst in range(10):
        propose(cluster, 200, prefix=f"during{burst}/")
    assert len(journal(cluster, "A")) > 2000

    cluster.run(60.0)
    propose(cluster, 1, prefix="after")
    assert len(journal(cluster, "A")) <= SMALL.log_entries_max


def test_a_held_log_is_bounded_too() -> None:
    """An endless transfer does not fill the leader's disk."""
    cluster = left_behind()
    cluster.snapshot_s = lambda: 30.0
    cluster.heal()
    cluster.run_until(lambda: fetching(cluster))
    cluster.nodes["A"].group.hold()
    longest = 0
    for burst in range(60):
        propose(cluster, 200, prefix=f"during{burst}/")
        cluster.nodes["A"].group.hold()
        longest = max(longest, len(journal(cluster, "A")))

    assert SMALL.log_entries_max < longest <= 16 * SMALL.log_entries_max + 256


@pytest.mark.parametrize("when", [0, 1], ids=["before", "after"])
def test_a_crash_around_the_exchange_leaves_one_of_the_two(when: int) -> None:
    """The node starts with either the old or the new state, and continues."""
    cluster = left_behind()
    old = cluster.nodes["B"].machine.applied_index
    calls: list[str] = []

    def die(node_id: str) -> None:
        calls.append(node_id)
        if len(calls) == when + 1:
            cluster.crash(node_id)

    cluster.at_exchange = die
    cluster.heal()
    cluster.run_until(lambda: "B" not in cluster.nodes)
    assert 0 == cluster.snapshots

    cluster.start("B")
    assert (when == 0) == (cluster.nodes["B"].machine.applied_index <= old)
    cluster.run_until(lambda: caught_up(cluster))
    cluster.check_converged()
    assert (1 if when == 0 else 0) == cluster.snapshots


def test_a_crash_after_a_divergent_tail_was_dropped_breaks_no_promise() -> None:
    """A node's acknowledgements are void once a majority has decided otherwise."""
    cluster = settled("ABCDE", settings=SMALL)
    cluster.cut("AB", "CDE")
    for number in range(40):
        cluster.nodes["A"].source.propose(b"nobody's%d" % number)
    cluster.nodes["A"].group.wake()
    cluster.run_until(lambda: cluster.leader() in tuple("CDE"))
    for burst in range(8):
        propose(cluster, 100, prefix=f"missed{burst}/")
    assert journal(cluster, "B").last > cluster.nodes["B"].group.status().commit_index
    calls: list[str] = []

    def die_after(node_id: str) -> None:
        calls.append(node_id)
        if calls.count(node_id) == 2:
            cluster.crash(node_id)

    cluster.at_exchange = die_after
    cluster.heal()
    cluster.run_until(lambda: len(calls) == 4)
    for node_id in "AB":
        cluster.start(node_id)

    cluster.run_until(lambda: caught_up(cluster, "A") and caught_up(cluster, "B"))
    cluster.check_converged()


def voting_as_it_comes(rules: SafetySwitches = ALL_RULES) -> SimCluster:
    """Return a cluster in which B has just started to write a vote when its snapshot arrives."""
    cluster = left_behind(rules=rules)
    cluster.snapshot_s = lambda: 0.2
    cluster.heal()
    cluster.run_until(lambda: fetching(cluster))
    cluster.run(0.38)
    cluster.flush_s = lambda: 0.3
    stand = {"t": VOTE_REQUEST, "i": 1, "s": 10**6, "e": 9, "l": 10**6, "lt": 8, "x": True}
    cluster.network.deliver(("C", "B"), stand)
    cluster.run(0.01)
    assert cluster.nodes["B"].group._schedule.flushing
    return cluster


def test_the_exchange_waits_for_the_flush_under_way() -> None:
    """The group is paused during the exchange; a vote in progress is in the new log."""
    cluster = voting_as_it_comes()
    cluster.run(0.1)
    assert 0 == cluster.snapshots
    assert not fetching(cluster)

    cluster.run(0.25)

    assert 1 == cluster.snapshots
    assert (9, "C") == (journal(cluster, "B").term, journal(cluster, "B").voted_for)


def test_a_flush_that_fails_before_the_exchange_takes_the_replica_out() -> None:
    """After a refused write the content of the disk is unknown, so the node must not go on."""
    cluster = voting_as_it_comes()
    cluster.disks["B"].full = True
    cluster.run(0.5)

    assert 1 == cluster.outages
    assert not cluster.nodes["B"].group.running
    assert 0 == cluster.snapshots

    cluster.run_until(lambda: caught_up(cluster))

    assert 1 == cluster.snapshots
    cluster.check_converged()


# The bounds of the log in these tests.


def test_a_single_node_forgets_too() -> None:
    """No other node will ever ask it for an entry."""
    cluster = settled("A", settings=SMALL)
    for burst in range(20):
        propose(cluster, 100, prefix=f"{burst}/")

    assert len(journal(cluster, "A")) <= SMALL.keep_entries + 256 + SMALL.entries_in_flight_max
    cluster.crash("A")
    cluster.start("A")
    cluster.elect("A")
    cluster.check_converged()


@pytest.mark.parametrize(
    ("settings", "bytes_max", "entries_max"),
    [
        (SMALL, 2**30, 512),
        (RaftSettings(keep_entries=20, log_bytes_max=2**16, entries_in_flight_max=64), 2**16, 2000),
    ],
    ids=["entries", "bytes"],
)
def test_a_log_is_bounded_with_a_peer_down_for_ever(
    settings: RaftSettings, bytes_max: int, entries_max: int
) -> None:
    """Leader and follower keep at most the bound plus the entries of one trim."""
    cluster = settled(settings=settings)
    cluster.crash("C")
    text = "x" * 200
    for burst in range(30):
        propose(cluster, 60, prefix=f"{text}{burst}/")
        for node_id in "AB":
            log = journal(cluster, node_id)
            # A trim waits for 256 entries, and until the database has the last burst.
            assert log.log_bytes <= bytes_max + (256 + 128) * 250
            assert len(log) <= entries_max + 256 + 128

    assert 0 == cluster.snapshots


def test_what_a_slow_follower_needs_is_kept_within_the_bounds() -> None:
    """A follower that lags by less than the log's bounds is served from the log."""
    settings = RaftSettings(keep_entries=0, log_entries_max=2000, entries_in_flight_max=64)
    cluster = settled(settings=settings)
    cluster.network.stall(("A", "C"), 5.0)
    for burst in range(15):
        propose(cluster, 100, prefix=f"{burst}/")
    assert journal(cluster, "A").first <= journal(cluster, "C").last

    cluster.run_until(lambda: caught_up(cluster, "C"))
    assert 0 == cluster.snapshots
    assert "peer_out_of_reach" not in cluster.nodes["A"].group.status().counters


def test_a_deposed_leaders_word_sends_nobody_for_a_snapshot() -> None:
    """Only the current leader may tell a node that it is behind."""
    cluster = settled()
    term = cluster.nodes["B"].group.status().term

    cluster.network.deliver(("C", "B"), {"t": BEHIND, "i": 1, "s": 999, "e": term, "f": 50})
    cluster.run(0.2)

    assert not fetching(cluster)
    assert 1 == cluster.nodes["B"].group.status().counters["stale_behind"]


@pytest.mark.parametrize("seed", range(4))
def test_many_absences_in_a_row_lose_nothing(seed: int) -> None:
    """Each node in turn falls behind and returns, with crashes around its swap."""
    random = Random(seed)
    cluster = SimCluster("ABC", random=random, settings=SMALL)
    cluster.start()
    cluster.elect()
    down: list[str] = []
    exchanges: list[str] = []

    def die(node_id: str) -> None:
        exchanges.append(node_id)
        if random.random() < 0.3:
            cluster.crash(node_id)
            down.append(node_id)

    cluster.at_exchange = die
    for turn, node_id in enumerate("ABCAB"):
        # The log is kept for a minute after each snapshot.
        cluster.run(60.0)
        cluster.cut(node_id, "ABC".replace(node_id, ""))
        cluster.run_until(lambda away=node_id: cluster.leader() not in (None, away))
        for burst in range(8):
            propose(cluster, 100, prefix=f"{turn}/{burst}/")
        cluster.heal()
        cluster.run(1.0)
        while down:
            cluster.start(down.pop())
            cluster.run(1.0)
        cluster.run_until(lambda back=node_id: caught_up(cluster, back))

    assert {*"ABC"} == {*exchanges}
    cluster.check()
    cluster.check_converged()
