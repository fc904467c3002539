"""Doubts: which replicas differ, and whether a majority agrees with this one."""

from __future__ import annotations

from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.raft.doubts import Doubts
from codeq_cluster.raft.electorate import Electorate


def electorate(voters: int) -> Electorate:
    """Return the electorate of node A in a group of this many voters."""
    made = Electorate(node_id="A", shard=0, own_data=1)
    made.adopt(1, Membership(members=tuple(Member(id=each) for each in "ABCDE"[:voters])))
    return made


def test_two_of_three_outvote_the_third() -> None:
    """The voters that count have this state at the index where the third one differs."""
    doubts = Doubts(electorate(3))
    assert not doubts.open

    assert doubts.heard("B", 9, same=False)
    assert doubts.open
    assert not doubts.condemns("B")
    doubts.heard("C", 8, same=True)
    assert doubts.open
    doubts.heard("C", 9, same=True)

    assert not doubts.open
    assert doubts.condemns("B")
    assert not doubts.condemns("C")
    assert ("B",) == doubts.differing


def test_what_differed_first_is_what_is_asked_about() -> None:
    """A voter that stays wrong is compared at its first difference, not at each new entry."""
    doubts = Doubts(electorate(3))
    doubts.heard("B", 9, same=False)
    doubts.heard("C", 9, same=True)

    assert not doubts.heard("B", 10, same=False)

    assert doubts.condemns("B")


def test_one_of_three_has_lost_against_two() -> None:
    """One voter against two has no majority, whether or not the two agree."""
    doubts = Doubts(electorate(3))
    doubts.heard("B", 9, same=False)
    assert not doubts.lost
    doubts.heard("C", 11, same=False)

    assert doubts.lost
    assert doubts.open
    assert not doubts.condemns("B")


def test_a_state_made_anew_is_doubted_no_more() -> None:
    """Being equal again is news, once."""
    doubts = Doubts(electorate(3))
    doubts.heard("B", 9, same=False)

    assert doubts.heard("B", 12, same=True)
    assert not doubts.heard("B", 13, same=True)
    assert not doubts.open
    assert () == doubts.differing


def test_a_single_voter_is_right() -> None:
    """A single voter has nobody to differ from."""
    doubts = Doubts(electorate(1))

    assert not doubts.open
    assert not doubts.lost


def test_a_majority_with_this_state_confirms_it() -> None:
    """Up to the last index at which it was compared."""
    doubts = Doubts(electorate(3))
    doubts.heard("B", 9, same=True)
    doubts.heard("C", 10, same=False)

    assert doubts.confirmed(9)
    assert not doubts.confirmed(10)
