"""Membership service: a leader's answers to requested changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.errors import NoLeader
from codeq_cluster.membership.plan import Dismiss
from codeq_cluster.membership.service import MembershipService
from codeq_cluster.routing.leaders import Leaders

THREE = Membership(members=tuple(Member(id=f"n{n}", data=n) for n in (1, 2, 3)))


class Replica:
    """A shard that this node leads."""

    leader: str | None = "n1"

    def on_leader(self, call: Callable[[], None]) -> None:
        """Keep no callback: the leader never changes."""


@dataclass
class Group:
    """A group that commits at once."""

    membership: Membership = THREE
    changing: bool = False
    out: str = ""
    unheard: Counter[str] = field(default_factory=Counter)

    def change(self, membership: Membership, done: Callable[[bool], None]) -> bool:
        """Commit it."""
        self.membership = membership
        done(True)
        return True

    def acknowledges(self, peer: str) -> bool | None:
        """Return whether the peer does; None so many times for one that was not heard yet."""
        if self.unheard[peer]:
            self.unheard[peer] -= 1
            return None
        return peer != self.out

    def transfer(self, peer: str | None) -> bool:
        """Never called."""
        raise AssertionError(peer)


@dataclass
class Link:
    """The other nodes by the data they run on."""

    data: dict[str, int] = field(default_factory=lambda: {"n2": 2, "n3": 3})

    async def call(
        self, peer: str, method: str, body: object, *, timeout_s: float, topic: int | None = None
    ) -> object:
        """Never called."""
        raise AssertionError((peer, method, body, timeout_s, topic))

    def connected(self, peer: str) -> bool:
        """Return whether a peer is connected."""
        return peer in self.data

    def data_at(self, peer: str) -> int | None:
        """Return a peer's data."""
        return self.data.get(peer)


def members(
    group: Group, link: Link | None = None, leaders: Leaders | None = None
) -> MembershipService:
    leaders = leaders or Leaders([Replica()])
    return MembershipService(node_id="n1", leaders=leaders, groups=[group], link=link or Link())


async def test_a_change_is_done_when_it_is_agreed_on() -> None:
    """Repeating it reports it as done already."""
    group = Group()
    asked = members(group)

    first = await asked.change(0, Dismiss(id="n3"), timeout_s=5)
    again = await asked.change(0, Dismiss(id="n3"), timeout_s=5)

    assert ("n1", "n2") == group.membership.voters
    assert (True, True) == (first.changes, first.done)
    assert (False, True) == (again.changes, again.done)


async def test_a_change_that_may_yet_come_to_nothing_is_not_done() -> None:
    """An earlier request's change is in this leader's log, and is not committed."""
    asked = members(Group(THREE.without("n3"), changing=True))

    effect = await asked.change(0, Dismiss(id="n3"), timeout_s=0.2)

    assert (False, "busy", True) == (effect.done, effect.code, effect.retryable)


@pytest.mark.parametrize(("data", "code"), [(2, ""), (22, "no-majority")])
async def test_a_node_on_other_data_does_not_count(data: int, code: str) -> None:
    """The node is connected, but does not count towards a majority."""
    asked = members(Group(), Link({"n2": data, "n3": 3}))

    effect = await asked.change(0, Dismiss(id="n3"), timeout_s=5, dry=True)

    assert code == effect.code


@pytest.mark.parametrize(
    ("out", "gone", "code", "answering"), [("n2", "n3", "no-majority", 2), ("n3", "n3", "", 2)]
)
async def test_a_node_goes_only_when_those_who_stay_can_agree(
    out: str, gone: str, code: str, answering: int
) -> None:
    """A node that fetches a snapshot, or whose replica is out, is connected and cannot agree."""
    asked = members(Group(out=out))

    effect = await asked.change(0, Dismiss(id=gone), timeout_s=5, dry=True)

    assert (code, answering) == (effect.code, effect.answering)


async def test_a_leader_waits_until_it_knows_who_answers() -> None:
    """A voter that stays is counted once it is heard; the one that goes need never be."""
    group = Group(unheard=Counter(n2=2, n3=1000))

    effect = await members(group).change(0, Dismiss(id="n3"), timeout_s=5)

    assert ("", True) == (effect.code, effect.done)
    assert 0 == group.unheard["n2"]


async def test_a_peer_that_is_asked_gives_up_before_the_one_who_asks() -> None:
    """The peer knows why no leader decided, and its answer must arrive in time."""
    waits: list[tuple[float, float]] = []

    class Silent(Link):
        async def call(
            self,
            peer: str,
            method: str,
            body: object,
            *,
            timeout_s: float,
            topic: int | None = None,
        ) -> object:
            assert isinstance(body, list), (peer, method, topic)
            waits.append((body[3], timeout_s))
            raise NoLeader(f"no leader for shard {body[0]}")

    with pytest.raises(NoLeader):
        await members(Group(), Silent()).ask_through("n2", 0, Dismiss(id="n3"), timeout_s=5)

    assert [True] == [0 < asks_on < waited == 5 for asks_on, waited in waits]
