"""Divergence: which replicas differ, and whether a majority agrees with this one."""

from __future__ import annotations

from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.raft.members import Voters
from codeq_cluster.raft.state import Divergence


def voting(voters: int) -> Voters:
    """Return the voters as node A has them, in a group of `count`."""
    made = Voters(node_id="A", shard=0, own_data=1)
    made.adopt(1, Membership(members=tuple(Member(id=each) for each in "ABCDE"[:voters])))
    return made


def test_two_of_three_outvote_the_third() -> None:
    """A majority has this replica's state at the index where the third one differs."""
    divergence = Divergence(voting(3), shard=0)
    assert not divergence.open

    assert divergence.compared("B", 9, same=False)
    assert divergence.open
    assert not divergence.condemns("B")
    divergence.compared("C", 8, same=True)
    assert divergence.open
    divergence.compared("C", 9, same=True)

    assert not divergence.open
    assert divergence.condemns("B")
    assert not divergence.condemns("C")
    assert ("B",) == divergence.differing


def test_the_first_difference_is_compared() -> None:
    """A voter that stays wrong is compared at its first difference, not at each new entry."""
    divergence = Divergence(voting(3), shard=0)
    divergence.compared("B", 9, same=False)
    divergence.compared("C", 9, same=True)

    assert not divergence.compared("B", 10, same=False)

    assert divergence.condemns("B")


def test_one_of_three_has_lost_against_two() -> None:
    """One voter against two has no majority, whether or not the two agree."""
    divergence = Divergence(voting(3), shard=0)
    divergence.compared("B", 9, same=False)
    assert not divergence.lost
    divergence.compared("C", 11, same=False)

    assert divergence.lost
    assert divergence.open
    assert not divergence.condemns("B")


def test_a_rebuilt_state_is_no_longer_suspect() -> None:
    """The return to equality is reported once."""
    divergence = Divergence(voting(3), shard=0)
    divergence.compared("B", 9, same=False)

    assert divergence.compared("B", 12, same=True)
    assert not divergence.compared("B", 13, same=True)
    assert not divergence.open
    assert () == divergence.differing


def test_a_single_voter_is_right() -> None:
    """A single voter has nobody to differ from."""
    divergence = Divergence(voting(1), shard=0)

    assert not divergence.open
    assert not divergence.lost


def test_a_majority_with_this_state_confirms_it() -> None:
    """The confirmation reaches up to the last index at which states were compared."""
    divergence = Divergence(voting(3), shard=0)
    divergence.compared("B", 9, same=True)
    divergence.compared("C", 10, same=False)

    assert divergence.confirmed(9)
    assert not divergence.confirmed(10)
