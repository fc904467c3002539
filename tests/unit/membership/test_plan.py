"""Plans: the membership after each change, and the reasons to refuse one."""

from __future__ import annotations

import pytest

from codeq_cluster.codec.membership import MEMBERS_MAX, Member, Membership
from codeq_cluster.errors import MembershipRefused
from codeq_cluster.membership.plan import Dismiss, Expect, JoiningNode, Raise, changed

THREE = Membership(
    members=tuple(
        Member(id=f"n{n}", data=n, link=f"h{n}:1", http=f"http://h{n}") for n in (1, 2, 3)
    )
)


def joining_node(
    node_id: str = "n2", data: int = 2, *, link: str = "h2:1", level: int = 1
) -> JoiningNode:
    return JoiningNode(id=node_id, data=data, link=link, http=f"http://{link[:2]}", level=level)


def after(
    change: JoiningNode | Expect | Dismiss | Raise,
    membership: Membership = THREE,
    *,
    lives: tuple[tuple[str, int], ...] = (),
    away: str = "",
) -> Membership:
    """Return the membership after the change."""
    return changed(
        membership,
        change,
        lives=lambda node_id, data: (node_id, data) in lives,
        answers=lambda member: member.id not in away.split(),
    )


def refusal(*arguments: object, **more: object) -> MembershipRefused:
    with pytest.raises(MembershipRefused) as refused:
        after(*arguments, **more)  # type: ignore[arg-type]
    return refused.value


def test_a_node_that_is_on_record_as_it_is_changes_nothing() -> None:
    """It may register as often as it likes."""
    assert THREE == after(joining_node())


def test_a_node_that_moved_keeps_its_vote() -> None:
    """Only its address changes."""
    assert Member(id="n2", data=2, link="h9:1", http="http://h9") == after(
        joining_node(link="h9:1")
    ).of("n2")


def test_a_node_on_other_data_is_a_learner_in_its_own_place() -> None:
    """It has lost its log and vote."""
    membership = after(joining_node(data=22))

    assert ("n1", "n3") == membership.voters
    assert Member(id="n2", data=22, voter=False, link="h2:1", http="http://h2") == membership.of(
        "n2"
    )


def test_a_node_on_other_data_waits_for_a_majority_of_the_others() -> None:
    """Otherwise no entry could commit any more, not even with its old data back."""
    refused = refusal(joining_node(data=22), away="n3")

    assert ("no-majority", True) == (refused.code, refused.retryable)
    assert after(joining_node(link="h9:1"), away="n3") != THREE
    learner = Membership(members=(*THREE.members, Member(id="n4", data=4, voter=False)))
    assert after(joining_node("n4", 44), learner, away="n1 n2 n3").of("n4") is not None


def test_a_node_whose_other_self_lives_is_refused() -> None:
    """The refusal allows a retry, because the other process may end."""
    refused = refusal(joining_node(data=22), lives=(("n2", 2),))

    assert ("node-lives", True) == (refused.code, refused.retryable)
    assert "stop one of the two" in str(refused)


def test_the_only_voter_cannot_come_back_without_its_data() -> None:
    """No other node has its data."""
    alone = Membership(members=(Member(id="n2", data=2),))

    assert "last-voter" == refusal(joining_node(data=22), alone).code


def test_nobody_comes_in_unexpected() -> None:
    """The refusal names the command."""
    refused = refusal(joining_node("n4", 4))

    assert "not-a-member" == refused.code
    assert "cluster join n4" in str(refused)


def test_an_expected_node_comes_in_on_the_data_it_has() -> None:
    """The node joins as a learner, whatever its data."""
    expecting = after(Expect(id="n4", link="h4:1", http="http://h4"))
    assert Member(id="n4", data=0, voter=False, link="h4:1", http="http://h4") == expecting.of("n4")

    membership = after(joining_node("n4", 44, link="h4:1"), expecting)
    assert Member(id="n4", data=44, voter=False, link="h4:1", http="http://h4") == membership.of(
        "n4"
    )
    assert THREE.voters == membership.voters


def test_a_member_is_not_expected_again() -> None:
    """At its own address this changes nothing; at another one it would be another node."""
    assert THREE == after(Expect(id="n2", link="h2:1", http="http://h2"))
    assert "already-a-member" == refusal(Expect(id="n2", link="h9:1", http="http://h9")).code


def test_a_release_that_is_too_old_is_refused() -> None:
    """Such a release could not read the other nodes' formats."""
    newer = Membership(members=THREE.members, level=2)

    assert "level-too-low" == refusal(joining_node(level=1), newer).code
    assert after(joining_node(level=3), newer).of("n2") is not None


def test_a_cluster_has_a_bound() -> None:
    """The bound is far above a sensible size."""
    full = Membership(members=tuple(Member(id=f"n{n}", data=n + 1) for n in range(MEMBERS_MAX)))

    assert (
        "too-many-nodes" == refusal(Expect(id="one-more", link="h:1", http="http://h"), full).code
    )


def test_a_node_goes_when_a_majority_of_the_others_answers() -> None:
    """The node itself need not answer."""
    assert ("n1", "n3") == after(Dismiss(id="n2"), away="n2").voters
    assert THREE == after(Dismiss(id="n9"))

    refused = refusal(Dismiss(id="n2"), away="n3")
    assert ("no-majority", True) == (refused.code, refused.retryable)
    assert "only 1 of 2 voters would answer" in str(refused)


def test_a_learner_may_always_go() -> None:
    """No majority needs a learner."""
    expecting = after(Expect(id="n4", link="h4:1", http="http://h4"))

    assert THREE == after(Dismiss(id="n4"), expecting, away="n1 n2 n3")


def test_the_last_voter_stays() -> None:
    """A group without voters could not keep its data."""
    alone = Membership(members=(Member(id="n1", data=1), Member(id="n2", data=2, voter=False)))

    assert "last-voter" == refusal(Dismiss(id="n1"), alone).code


def knowing(*known: int, level: int = 1) -> Membership:
    """Return nodes that know these levels, the last of them a learner."""
    return Membership(
        members=tuple(
            Member(id=f"n{n}", data=n, voter=n < len(known), level=each)
            for n, each in enumerate(known, 1)
        ),
        level=level,
    )


def test_newer_formats_are_used_once_every_node_knows_them() -> None:
    """Without a number, the newest formats that any node knows are enabled."""
    assert knowing(2, 2, 2, level=2) == after(Raise(level=0), knowing(2, 2, 2))
    assert knowing(3, 2, 3, level=2) == after(Raise(level=2), knowing(3, 2, 3))
    assert knowing(2, 2, 2, level=2) == after(Raise(level=0), knowing(2, 2, 2, level=2))


@pytest.mark.parametrize(
    ("known", "level", "named"),
    [
        ((2, 1, 2), 0, "level 2: n2 (level 1); start"),
        ((2, 2, 1), 2, "level 2: n3 (level 1); start"),
        ((2, 1, 1), 0, "n2 (level 1), n3 (level 1); start"),
        ((2, 2, 2), 3, "level 3: n1 (level 2), n2 (level 2), n3 (level 2); start"),
    ],
)
def test_formats_that_a_node_does_not_know_are_not_used(
    known: tuple[int, ...], level: int, named: str
) -> None:
    """A learner must know them too; the refusal names the node and its level."""
    refused = refusal(Raise(level=level), knowing(*known))

    assert ("level-unknown", False) == (refused.code, refused.retryable)
    assert named in str(refused)


def test_formats_in_use_are_never_given_up() -> None:
    """Logs and snapshots contain them."""
    assert "level-in-use" == refusal(Raise(level=1), knowing(2, 2, 2, level=2)).code


def test_an_earlier_release_may_come_back_until_newer_formats_are_used() -> None:
    """The record has its level, which holds the formats back."""
    back = after(joining_node("n2", 2, level=1), knowing(2, 2, 2))

    assert [2, 1, 2] == [member.level for member in back.members]
    assert (
        "level-too-low" == refusal(joining_node("n2", 2, level=1), knowing(2, 2, 2, level=2)).code
    )


def test_a_node_that_is_expected_holds_newer_formats_back_until_it_came() -> None:
    """Its release is not known yet."""
    expecting = after(Expect(id="n4", link="h4:1", http="http://h4"), knowing(2, 2, 2))

    assert "n4 (level 1)" in str(refusal(Raise(level=2), expecting))


def test_data_of_another_history_is_not_let_in() -> None:
    """It is refused after later changes too; the same node with other data may join."""
    recovered = Membership(members=THREE.members[:1], past=(2, 3))
    expecting = after(Expect(id="n2", link="h2:1", http="http://h2"), recovered)

    refused = refusal(joining_node(data=2), expecting)

    assert "data-from-before" == refused.code
    assert "empty its data directory" in str(refused)
    let_in = after(joining_node(data=22), expecting)
    assert let_in.of("n2") is not None
    assert (2, 3) == let_in.past
