"""Plan: the new membership after each change, and the reasons to refuse one.

Each change is one step, so that every old majority shares a node with every new one. A node joins
as a learner; the leader makes it a voter when it has caught up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import msgspec
from msgspec import Struct

from codeq_cluster.codec.membership import MEMBERS_MAX, Member, Membership
from codeq_cluster.errors import MembershipRefused


class JoiningNode(Struct, frozen=True, array_like=True, kw_only=True, tag="let-in"):
    """A joining node's registration; fields as in `Member`."""

    id: str
    data: int
    link: str
    http: str
    level: int


class Expect(Struct, frozen=True, array_like=True, kw_only=True, tag="expect"):
    """An operator allows a node to join."""

    id: str
    link: str
    http: str


class Dismiss(Struct, frozen=True, array_like=True, kw_only=True, tag="dismiss"):
    """An operator removes a node."""

    id: str


class Raise(Struct, frozen=True, array_like=True, kw_only=True, tag="raise"):
    """An operator enables newer formats.

    Attributes:
        level: Their format version; 0 for the newest that any member knows.
    """

    level: int


Change = JoiningNode | Expect | Dismiss | Raise


def changed(
    membership: Membership,
    change: Change,
    *,
    lives: Callable[[str, int], bool],
    answers: Callable[[Member], bool],
) -> Membership:
    """Return the membership after the change; the same object if nothing changes.

    Args:
        lives: Returns whether a node of this id is connected, on this data.
        answers: Returns whether a voter answers, on the data it is a member with.

    Raises:
        MembershipRefused: The change would be unsafe or makes no sense.
    """
    match change:
        case JoiningNode():
            return let_in(membership, change, lives=lives, answers=answers)
        case Expect():
            return expect(membership, change.id, link=change.link, http=change.http)
        case Dismiss():
            return dismiss(membership, change.id, answers=answers)
        case Raise():
            return raised(membership, change.level)
        case _:
            assert_never(change)


def let_in(
    membership: Membership,
    who: JoiningNode,
    *,
    lives: Callable[[str, int], bool],
    answers: Callable[[Member], bool],
) -> Membership:
    """Return the membership after a node has registered; the same object if nothing changes.

    A known node may come back with new addresses. An expected one joins as a learner. A node on
    other data than it joined with has lost its log and vote: it replaces its old self as a learner.

    Args:
        lives: Returns whether the node of this id is connected, on this data.
        answers: Returns whether a voter answers, on the data it is a member with.

    Raises:
        MembershipRefused: It is no member, its old self is still connected, it cannot read the
            formats in use, its data is from before a recovery, or the other voters would have no
            majority.
    """
    known = membership.of(who.id)
    if known is None:
        raise MembershipRefused(
            f"{who.id} is no member of this cluster: let it in with `cluster join {who.id}`",
            code="not-a-member",
        )
    if who.level < membership.level:
        raise MembershipRefused(
            f"{who.id} knows formats up to level {who.level}, this cluster uses level "
            f"{membership.level}: start it with a newer release",
            code="level-too-low",
        )
    if who.data in membership.past:
        raise MembershipRefused(
            f"the data of {who.id} is from before this cluster was recovered, and may hold what "
            "this cluster never had: stop it, empty its data directory, and start it again",
            code="data-from-before",
        )
    voter = known.voter and known.data == who.data
    if known.data not in (0, who.data):
        if lives(who.id, known.data):
            raise MembershipRefused(
                f"a node {who.id} with other data is running: stop one of the two, or give this "
                "one another id",
                code="node-lives",
                retryable=True,
            )
        if known.voter and len(membership.voters) == 1:
            raise MembershipRefused(
                f"{who.id} was the only node with the data: bring that back or restore a backup",
                code="last-voter",
            )
        if known.voter:
            _check_majority(membership.without(who.id), who.id, answers=answers)
    return membership.with_member(Member(voter=voter, **msgspec.structs.asdict(who)))


def expect(membership: Membership, node_id: str, *, link: str, http: str) -> Membership:
    """Return the membership in which a node may join.

    Raises:
        MembershipRefused: It is already a member at another address, or there are too many.
    """
    known = membership.of(node_id)
    if known is not None:
        if known.voter and (known.link, known.http) != (link, http):
            raise MembershipRefused(
                f"{node_id} is a member already, at {known.link} and {known.http}: for the same "
                "node name these, for a new one another id",
                code="already-a-member",
            )
        if known.voter:
            return membership
        return membership.with_member(msgspec.structs.replace(known, link=link, http=http))
    if len(membership.members) >= MEMBERS_MAX:
        raise MembershipRefused(f"a cluster has at most {MEMBERS_MAX} nodes", code="too-many-nodes")
    return membership.with_member(
        Member(id=node_id, data=0, voter=False, link=link, http=http, level=membership.level)
    )


def dismiss(
    membership: Membership, node_id: str, *, answers: Callable[[Member], bool]
) -> Membership:
    """Return the membership without a node.

    Args:
        answers: Returns whether a voter answers, on the data it is a member with.

    Raises:
        MembershipRefused: It is the last voter, or the remaining voters would have no majority.
    """
    known = membership.of(node_id)
    if known is None:
        return membership
    after = membership.without(node_id)
    if not known.voter:
        return after
    if not after.voters:
        raise MembershipRefused(f"{node_id} is the only voter", code="last-voter")
    _check_majority(after, node_id, answers=answers)
    return after


def _check_majority(after: Membership, without: str, *, answers: Callable[[Member], bool]) -> None:
    """Refuse a change that could not be committed: it would block every other change."""
    voters = [member for member in after.members if member.voter]
    answer = sum(map(answers, voters))
    if answer <= len(voters) // 2:
        raise MembershipRefused(
            f"without {without} only {answer} of {len(voters)} voters would answer, which is "
            "no majority: bring the others back, or let those that fetch a snapshot have it, "
            "first; /readyz of each says what keeps it",
            code="no-majority",
            retryable=True,
        )


def raised(membership: Membership, level: int) -> Membership:
    """Return the membership in which formats of a level are in use; every node reads them.

    Args:
        level: The level wanted; 0 for the newest that any member knows.

    Raises:
        MembershipRefused: A member, voter or learner, does not know them, or the level is lower.
    """
    level = level or max((member.level for member in membership.members), default=0)
    if level < membership.level:
        raise MembershipRefused(
            f"formats of level {membership.level} are in use, which nothing lowers to {level}",
            code="level-in-use",
        )
    short = [member for member in membership.members if member.level < level]
    if short:
        names = ", ".join(f"{member.id} (level {member.level})" for member in short)
        raise MembershipRefused(
            f"not every node knows formats of level {level}: {names}; start each of these with the "
            "newer release, or remove it",
            code="level-unknown",
        )
    return msgspec.structs.replace(membership, level=level)
