"""The small parts of a group: elections, reads, digests, links, the inbox, the pinned library."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.errors import SafetyViolated
from codeq_cluster.raft import library
from codeq_cluster.raft.elections import Elections
from codeq_cluster.raft.leadership_transfer import PreferredPeer
from codeq_cluster.raft.mailbox import Inbox
from codeq_cluster.raft.members import Links, Voters
from codeq_cluster.raft.messages import Append, TermHint, render
from codeq_cluster.raft.read_index import ReadIndex
from codeq_cluster.raft.state import Digests
from codeq_cluster.settings import RaftSettings


def voting(voters: int = 3, *, rank: int = 1) -> Voters:
    """Return the voters as node A has them, with A at this rank after the preferred node."""
    made = Voters(node_id="A", shard=-rank % voters, own_data=1)
    made.adopt(1, Membership(members=tuple(Member(id=each) for each in "ABCDE"[:voters])))
    return made


def elections(*, rank: int = 1, voters: int = 3, seed: int = 1) -> Elections:
    return Elections(
        node_id="A",
        voters=voting(voters, rank=rank),
        election_ms=1000,
        random=Random(seed),
    )


def append(size: int, seq: int) -> dict[str, object]:
    message = Append(
        term=1,
        prev=1,
        prev_term=0,
        commit=1,
        terms=[1],
        commands=[b"\x00" * size],
        floor=0,
        round=0,
        applied=1,
        digest=b"",
        quiet=False,
    )
    return render(message, incarnation=1, seq=seq)


def test_a_follower_waits_one_to_two_election_timeouts() -> None:
    """The wait is random, so that two followers rarely compete."""
    waits = []
    for _ in range(100):
        timer = elections()
        timer.heard("B", 100.0)
        waits.append(timer.deadline - 100.0)

    assert 1.0 <= min(waits)
    assert max(waits) <= 2.0


def test_the_preferred_node_campaigns_first() -> None:
    """The preferred node's latest start is the others' earliest."""
    others, preferred = elections(), elections(rank=0)
    others.heard("B", 0.0)
    preferred.heard("B", 0.0)

    assert preferred.deadline <= 1.2 <= others.deadline


def test_a_refused_link_to_the_leader_brings_the_deadline_forward() -> None:
    """A refused connection shows that the process is gone; a mere break shows nothing."""
    timer = elections()
    timer.heard("B", 0.0)

    timer.link_down("B", refused=False, now=0.1)
    patient = timer.deadline
    timer.link_down("B", refused=True, now=0.1)

    assert patient > 1.0
    assert timer.deadline <= 0.25


def test_followers_of_a_dead_leader_go_one_after_another() -> None:
    """Each follower leaves the one before it enough time for a round of votes."""
    for seed in range(50):
        deadlines = []
        for rank in range(3):
            timer = elections(rank=rank, seed=seed * 3 + rank)
            timer.heard("B", 0.0)
            timer.link_down("B", refused=True, now=0.1)
            deadlines.append(timer.deadline)

        assert deadlines[1] - deadlines[0] >= 0.05
        assert deadlines[2] - deadlines[1] >= 0.05


def test_a_split_vote_after_a_crash_is_tried_again_soon() -> None:
    """A dead leader will not return, so retries come fast, but only a few times."""
    timer = elections()
    timer.heard("B", 0.0)
    timer.link_down("B", refused=True, now=0.0)
    waits = []
    now = 0.0
    for term in range(2, 8):
        now = timer.deadline
        timer.ask(term, now)
        timer.campaigned(now)
        waits.append(timer.deadline - now)

    assert max(waits[:3]) <= 0.25
    assert waits[-1] >= 0.5
    assert not timer.leader_alive(0.1)


def test_grants_of_another_term_do_not_count() -> None:
    """A late grant of an earlier term must not count as a vote in this one."""
    timer = elections(voters=5)
    assert not timer.ask(7, 0.0)

    assert not timer.granted("B", 6)
    assert not timer.granted("B", 7)
    assert not timer.granted("B", 7)
    assert timer.granted("C", 7)


def test_a_single_voter_needs_nobody() -> None:
    """One voter is a majority of one."""
    assert elections(voters=1).ask(1, 0.0)


def test_a_preferred_peer_that_loses_leadership_waits_longer_each_time() -> None:
    """A peer that is up but cannot lead must not interrupt the others every few seconds."""
    preferred = PreferredPeer()
    now, waits = 0.0, []

    for _ in range(3):
        started = now
        while not preferred.due("B", caught_up=True, now=now):
            now += 0.5
        waits.append(now - started)
        preferred.restart()

    assert [5.0, 10.0, 20.0] == waits


def test_a_peer_that_falls_behind_starts_over() -> None:
    """The preferred peer's wait begins again, because it must be caught up without a break."""
    preferred = PreferredPeer()

    assert not preferred.due("B", caught_up=True, now=0.0)
    assert not preferred.due("B", caught_up=False, now=4.0)
    assert not preferred.due("B", caught_up=True, now=6.0)
    assert preferred.due("B", caught_up=True, now=11.0)


def test_a_round_answers_only_those_who_asked_before_it() -> None:
    """A read that arrives during a round waits for the next one."""
    read_index = ReadIndex(voting(3))
    answers: list[str] = []
    read_index.ask(lambda done: answers.append(f"first {done}"))
    read_index.start(index=5, node_id="A")
    read_index.ask(lambda done: answers.append(f"second {done}"))
    read_index.answered("B", read_index.number - 1)
    read_index.release(9)
    assert [] == answers

    read_index.answered("B", read_index.number)
    read_index.release(4)
    assert [] == answers
    read_index.release(5)
    assert ["first True"] == answers
    assert read_index.wanted

    read_index.fail()
    assert ["first True", "second False"] == answers


def test_digests_at_one_index_are_compared_both_ways_round() -> None:
    """The leader's digest may arrive before or after this replica's own; both are compared."""
    digests = Digests()
    assert digests.applied(5, b"five") is None
    assert {5: b"five"} == digests.kept

    digests.expect("B", 7, b"seven")
    digests.expect("B", 8, b"eight")
    assert digests.applied(6, b"six") is None
    assert ("B", False) == digests.applied(7, b"SEVEN")


def test_an_inbox_is_bounded_in_bytes_and_messages() -> None:
    """Excess messages are dropped and counted; a message without entries counts as no bytes."""
    counters: Counter[str] = Counter()
    inbox = Inbox(bytes_max=100, counters=counters, fresh_only=True)

    assert inbox.put("B", append(60, 1))
    assert not inbox.put("B", append(60, 2))
    assert inbox.put("B", append(30, 3))
    for seq in range(4, 6000):
        inbox.put("B", render(TermHint(term=1), incarnation=1, seq=seq))

    assert 4096 == len(inbox.waiting)
    assert 1 + (6000 - 4) - 4094 == counters["inbox_full"]
    inbox.get()
    assert inbox.put("B", append(60, 6001))


def test_an_inbox_takes_only_what_is_newer() -> None:
    """Messages are ordered within one incarnation, and incarnations are ordered too."""
    counters: Counter[str] = Counter()
    inbox = Inbox(bytes_max=100, counters=counters, fresh_only=True)

    def put(incarnation: int, seq: int) -> bool:
        return (
            inbox.put("B", render(TermHint(term=1), incarnation=incarnation, seq=seq)) is not None
        )

    assert [True, False, False, True, True, False] == [
        put(1, 5),
        put(1, 5),
        put(1, 4),
        put(1, 7),
        put(2, 1),
        put(1, 8),
    ]
    assert 3 == counters["late"]


def test_the_installed_library_is_the_pinned_one() -> None:
    """The guard around the library uses private names of exactly this version and these files."""
    library.verify()


def test_a_changed_library_is_refused() -> None:
    """A single additional byte keeps the node from starting."""
    with pytest.raises(SafetyViolated, match="reinstall"):
        library.check_file("syncobj.py", b"# another file\n")


def test_the_library_gets_no_thread_no_file_and_no_fork() -> None:
    """With these options the library does nothing by itself, whatever the settings."""
    for settings in (RaftSettings(), RaftSettings(heartbeat_ms=500, election_ms=600)):
        options = library.configuration(settings)
        options.validate()

        assert not options.autoTick
        assert not options.useFork
        assert not options.dynamicMembershipChange
        assert options.journalFile is None
        assert options.fullDumpFile is None


def test_a_peer_that_becomes_the_preferred_one_waits_from_then_on() -> None:
    """A new preferred peer waits for the full time; the former one's wait does not count."""
    preferred = PreferredPeer()
    assert not preferred.due("B", caught_up=True, now=0.0)

    assert not preferred.due("C", caught_up=True, now=100.0)
    assert preferred.due("C", caught_up=True, now=105.0)


def test_a_peer_is_never_both_connected_and_gone() -> None:
    """The last report counts; a break alone does not show that the process is gone."""
    links = Links()

    links.down("B", refused=True)
    links.down("C", refused=False)
    gone = set(links.refused)
    links.up("B")

    assert {"B"} == gone
    assert ({"B"}, set()) == (links.connected, links.refused)


def test_refused_links_to_a_majority_leave_none() -> None:
    """A link to a node that does not vote does not count."""
    links, voters = Links(), voting(3)

    links.down("Z", refused=True)
    links.down("B", refused=True)
    one_gone = links.leave_a_majority(voters)
    links.down("C", refused=True)

    assert one_gone
    assert not links.leave_a_majority(voters)
