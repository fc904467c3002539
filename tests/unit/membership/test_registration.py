"""Registration: a node registers itself until its groups have it on record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.errors import MembershipRefused, NoLeader, PeerUnreachable
from codeq_cluster.membership.plan import Change, JoiningNode, changed
from codeq_cluster.membership.registration import Registration
from codeq_cluster.membership.service import Effect

ME = Member(id="n2", data=22, link="h2:1", http="http://h2")
LOST = Membership(members=(Member(id="n1", data=1), Member(id="n2", data=2), Member(id="n3")))
STANDS_S = 0.05


@dataclass(frozen=True)
class Status:
    """The part of a group's status that registrations look at."""

    known_commit: int
    applied_index: int


@dataclass
class Group:
    """A shard whose log this node may have; each look at it applies what `arrives`."""

    membership: Membership
    changing: bool = False
    known_commit: int = 0
    applied_index: int = 0
    arrives: int = 0

    def status(self) -> Status:
        """Return how far this node is."""
        self.applied_index += self.arrives
        return Status(self.known_commit, self.applied_index)

    def change(self, membership: Membership, done: Callable[[bool], None]) -> bool:
        """Never called."""
        raise AssertionError((membership, done))

    def acknowledges(self, peer: str) -> bool | None:
        """Never called."""
        raise AssertionError(peer)

    def transfer(self, peer: str | None) -> bool:
        """Never called."""
        raise AssertionError(peer)


@dataclass
class Cluster:
    """The other nodes: they decide, and their decisions reach this node's log."""

    groups: list[Group]
    there: list[Membership]
    peers: list[str] = field(default_factory=lambda: ["n1", "n3"])
    asked: list[tuple[str, int]] = field(default_factory=list)
    away: set[str] = field(default_factory=set)
    heard: bool = True

    async def change(
        self, shard: int, change: Change, *, timeout_s: float, dry: bool = False
    ) -> Effect:
        """Ask the leader, if one is known."""
        assert timeout_s > 0
        assert not dry
        if not self.heard:
            raise NoLeader(f"no leader for shard {shard}")
        return self._decided("leader", shard, change)

    async def ask_through(
        self, peer: str, shard: int, change: Change, *, timeout_s: float
    ) -> Effect:
        """Ask through a peer."""
        assert timeout_s > 0
        if peer in self.away:
            raise PeerUnreachable(peer)
        return self._decided(peer, shard, change)

    def _decided(self, asked: str, shard: int, change: Change) -> Effect:
        assert isinstance(change, JoiningNode)
        self.asked.append((asked, shard))
        refused = ""
        try:
            self.there[shard] = changed(
                self.there[shard], change, lives=lambda *_: False, answers=lambda _: True
            )
            self.groups[shard].membership = self.there[shard]
        except MembershipRefused as refusal:
            refused = str(refusal)
        return Effect(
            shard=shard,
            leader="n1",
            voters=(),
            voters_after=(),
            learners_after=(),
            answering=0,
            changes=True,
            done=not refused,
            refused=refused,
        )


async def announced(cluster: Cluster, until: Callable[[Registration], bool]) -> Registration:
    """Let a node register until a condition holds."""
    announcing = Registration(
        me=ME,
        groups=cluster.groups,
        members=cluster,
        peers=lambda: cluster.peers,
        stands_s=STANDS_S,
    )
    async with asyncio.timeout(60):
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(announcing.run())
            while not until(announcing):  # noqa: ASYNC110, nothing tells of it
                await asyncio.sleep(0)
            running.cancel()
    return announcing


def on_record(cluster: Cluster) -> bool:
    return all(
        (member := group.membership.of("n2")) is not None and member.data == ME.data
        for group in cluster.groups
    )


async def test_a_node_on_record_as_it_is_does_not_register() -> None:
    """It asks no other node."""
    known = LOST.with_member(ME)
    cluster = Cluster([Group(known), Group(known)], [known, known])

    await announced(cluster, lambda _: True)

    assert [] == cluster.asked


async def test_a_node_without_a_log_asks_through_any_reachable_peer() -> None:
    """One after another, for every shard."""
    cluster = Cluster([Group(Membership()), Group(Membership())], [LOST, LOST], away={"n1"})

    await announced(cluster, lambda _: on_record(cluster))

    assert [("n3", 0), ("n3", 1)] == cluster.asked


async def test_a_node_that_moved_asks_the_leader_where_that_is_not_on_record() -> None:
    """It does not ask for any other shard."""
    moved = LOST.with_member(Member(id="n2", data=22, link="old:1", http="http://h2"))
    cluster = Cluster([Group(LOST.with_member(ME)), Group(moved)], [LOST, moved])

    await announced(cluster, lambda _: cluster.groups[1].membership.of("n2") == ME)

    assert [("leader", 1)] == cluster.asked


async def test_a_node_that_moved_away_from_its_leader_asks_by_way_of_another() -> None:
    """The leader cannot announce itself before it knows the node's address."""
    moved = LOST.with_member(Member(id="n2", data=22, link="old:1", http="http://h2"))
    cluster = Cluster([Group(moved)], [moved], away={"n1"}, heard=False)

    await announced(cluster, lambda _: cluster.groups[0].membership.of("n2") == ME)

    assert [("n3", 0)] == cluster.asked


async def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The refusal is logged once, however often the node asks."""
    nobody = Membership(members=(Member(id="n1", data=1),))
    cluster = Cluster([Group(Membership())], [nobody])

    await announced(cluster, lambda _: len(cluster.asked) >= 3)

    told = [record for record in caplog.records if record.message == "registration refused"]
    assert 1 == len(told)
    assert "cluster join n2" in str(vars(told[0])["reason"])


async def test_a_node_that_is_still_alone_is_refused_by_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first node of a new cluster registers with itself; `/readyz` shows what it waits for."""
    cluster = Cluster([Group(Membership())], [Membership()], peers=[])
    waited = []

    def begin(announcing: Registration) -> bool:
        if announcing.refused:
            waited.append(announcing.refused)
            cluster.groups[0].membership = Membership(members=(ME,))
        return not announcing.refused and bool(waited)

    await announced(cluster, begin)

    assert {"shard 0: no node of the cluster is connected"} == set(waited)
    assert [] == caplog.records


async def test_why_a_node_was_refused_is_known_until_it_is_let_in() -> None:
    """`/readyz` shows it."""
    cluster = Cluster([Group(Membership())], [Membership(members=(Member(id="n1", data=1),))])
    refused = []

    def let_in(announcing: Registration) -> bool:
        if announcing.refused:
            refused.append(announcing.refused)
            cluster.there = [LOST]
            announcing.changed()
        return bool(refused) and not announcing.refused

    await announced(cluster, let_in)

    assert "cluster join n2" in refused[0]


async def test_a_node_whose_old_data_was_put_back_is_let_in_again() -> None:
    """Its own log has it on record, and it gets no entry that says otherwise."""
    there = LOST.with_member(Member(id="n2", data=23, link=ME.link, http=ME.http))
    old = LOST.with_member(ME)
    stands = Group(old, known_commit=90, applied_index=17)
    moves = Group(old, known_commit=1_000_000, applied_index=17, arrives=1)
    cluster = Cluster([stands, moves, Group(old)], [there, there, there])

    await announced(cluster, lambda _: bool(cluster.asked))

    assert [("leader", 0)] == cluster.asked
    member = cluster.there[0].of("n2")
    assert member is not None
    assert (ME.data, False) == (member.data, member.voter)
