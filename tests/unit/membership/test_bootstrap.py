"""Bootstrap: the nodes that start a cluster, and those that join later."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec
import pytest

from codeq_cluster.codec import membership as codec
from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.errors import PeerUnreachable, StorageFailed
from codeq_cluster.membership import bootstrap as module
from codeq_cluster.membership.bootstrap import (
    Bootstrap,
    BootstrapOutcome,
    BootstrapStatement,
    judge,
)

PEERS = ("n1", "n2", "n3")
EMPTY = ((1, bytes(16)),)
ORDER = ("n3", "n1", "n2")


def says(node_id: str, data: int = 0, **more: object) -> BootstrapStatement:
    """Return a node's statement on its own data; by default `n2` on data 2."""
    made = BootstrapStatement(
        me=Member(id=node_id, data=data or int(node_id[1:]), level=1), peers=PEERS, states=EMPTY
    )
    return msgspec.structs.replace(made, **more)


BOOTSTRAP = Membership(members=tuple(says(node_id).me for node_id in ORDER))


@dataclass(frozen=True)
class Case:
    """A node that asks, the answers it gets, and part of its reason to wait."""

    mine: BootstrapStatement
    others: tuple[BootstrapStatement, ...]
    waits: str


def test_the_first_of_them_begins_when_all_are_there() -> None:
    """The membership has the data of all, in the order in which they are to lead."""
    others = [says("n2"), says("n3")]

    assert BOOTSTRAP == judge(says("n1"), others, order=ORDER, level=1)


def test_a_new_cluster_uses_formats_that_all_its_releases_know() -> None:
    """The oldest release decides."""
    old = says("n2", me=Member(id="n2", data=2, level=1))
    new = [says(node_id, me=Member(id=node_id, data=1, level=4)) for node_id in ("n1", "n3")]

    bootstrap = judge(new[0], [old, new[1]], order=ORDER, level=4)

    assert isinstance(bootstrap, Membership)
    assert 1 == bootstrap.level


@pytest.mark.parametrize(
    "case",
    [
        Case(says("n2"), (says("n1"), says("n3")), "n1 begins"),
        Case(says("n1"), (says("n2"),), "not all nodes answer"),
        Case(says("n1"), (), "not all nodes answer"),
        Case(says("n1"), (says("n2"), says("n3", peers=("n1", "n3"))), "peers"),
        Case(says("n1"), (says("n2"), says("n3", states=((9, b"x"),))), "same backup"),
    ],
    ids=["not the first", "one is away", "alone", "other peers", "other data"],
)
def test_nobody_begins_before_it_is_sure(case: Case) -> None:
    """Each reason is reported."""
    waits = judge(case.mine, case.others, order=ORDER, level=1)

    assert isinstance(waits, str)
    assert case.waits in waits


def test_a_first_node_adopts_a_membership_that_another_one_stored() -> None:
    """Any node may report it, and any other node may be away."""
    told = says("n3", bootstrap=codec.encode(BOOTSTRAP))

    assert BOOTSTRAP == judge(says("n2"), [told], order=ORDER, level=1)


@pytest.mark.parametrize("node_id", ["n1", "n2"])
def test_a_node_that_lost_its_data_came_later(node_id: str) -> None:
    """The node that would bootstrap is included, and all nodes may answer."""
    wiped = says(node_id, data=99)
    told = says("n3", bootstrap=codec.encode(BOOTSTRAP))
    other = says("n1" if node_id == "n2" else "n2", data=98)

    assert judge(wiped, [told, other], order=ORDER, level=1) is BootstrapOutcome.LATER


def test_two_that_lost_their_data_wait_for_the_third() -> None:
    """The third node has the data that they lost."""
    waits = judge(says("n1", data=99), [says("n2", data=98)], order=ORDER, level=1)

    assert "not all nodes answer" == waits


def test_a_node_among_members_that_were_let_in_came_later() -> None:
    """The others know no bootstrap membership, but are members of a cluster."""
    told = says("n3", members=codec.encode(BOOTSTRAP))

    assert judge(says("n1"), [says("n2"), told], order=ORDER, level=1) is BootstrapOutcome.LATER


def test_a_single_node_begins_at_once() -> None:
    """It asks no other node."""
    alone = says("n1", peers=("n1",))

    bootstrap = judge(alone, [], order=("n1",), level=1)

    assert Membership(members=(alone.me,)) == bootstrap


@dataclass
class Node:
    """A node that asks, and the answers of the others."""

    mine: BootstrapStatement
    others: dict[str, BootstrapStatement | bytes]
    disk_fails: int = 0
    bootstrapped: list[Membership] = field(default_factory=list)
    heard: list[Membership] = field(default_factory=list)
    asked: int = 0
    callers: tuple[str, ...] = ()

    def bootstrap(self) -> Bootstrap:
        """Return its bootstrap."""
        return Bootstrap(
            statement=lambda: self.mine,
            order=ORDER,
            calls=self,
            level=1,
            on_bootstrap=self.on_bootstrap,
            on_heard=self.heard.append,
            callers=lambda: self.callers,
        )

    def on_bootstrap(self, membership: Membership) -> None:
        """Store the membership, unless the disk refuses."""
        if self.disk_fails:
            self.disk_fails -= 1
            raise StorageFailed("no space left")
        self.bootstrapped.append(membership)

    async def call(
        self, peer: str, method: str, body: object, *, timeout_s: float, topic: int | None = None
    ) -> object:
        """Answer for a peer."""
        assert (module.STAND, None, None) == (method, body, topic)
        assert timeout_s > 0
        self.asked += 1
        if self.asked > 6 and self.mine.me.id == "n3":
            # The peers have lost their data, and bootstrap a new cluster.
            self.others = {"n1": says("n1", 91), "n2": says("n2", 92)}
            begun = tuple(each.me for each in (*self.others.values(), self.mine))
            self.others["n1"] = says("n1", 91, bootstrap=codec.encode(Membership(members=begun)))
        said = self.others.get(peer)
        if said is None:
            raise PeerUnreachable(peer)
        return msgspec.to_builtins(said, builtin_types=(bytes,))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each round right after the last one."""
    monkeypatch.setattr(module, "PAUSE_S", 0)
    monkeypatch.setattr(module, "LATER_PAUSE_S", 0)


@pytest.mark.usefixtures("at_once")
async def test_a_disk_that_refuses_is_tried_again() -> None:
    """A membership that was not written down has no effect."""
    node = Node(says("n1"), {"n2": says("n2"), "n3": says("n3")}, disk_fails=2)

    assert await node.bootstrap().run() is BootstrapOutcome.BOOTSTRAPPED

    assert ([BOOTSTRAP], 0) == (node.bootstrapped, node.disk_fails)


@pytest.mark.usefixtures("at_once")
async def test_a_node_that_came_later_hears_of_all_members() -> None:
    """Nodes it was not configured with decide whether it joins, so it must know their addresses."""
    five = Membership(members=tuple(Member(id=f"n{n}", data=n) for n in (1, 2, 4, 5, 6)))
    told = says("n1", members=codec.encode(five))
    node = Node(says("n3", 93), {"n1": told})

    assert await node.bootstrap().run() is BootstrapOutcome.LATER

    assert [five] == node.heard


@pytest.mark.usefixtures("at_once")
async def test_a_later_node_bootstraps_with_nodes_that_lost_their_data_too() -> None:
    """No node has any data left."""
    told = says("n1", bootstrap=codec.encode(BOOTSTRAP))
    node = Node(says("n3", 93), {"n1": told})
    bootstrap = node.bootstrap()
    assert await bootstrap.run() is BootstrapOutcome.LATER

    await bootstrap.go_on()

    [begun] = node.bootstrapped
    assert node.mine.me == begun.of("n3")
    assert node.asked > 6


@pytest.mark.usefixtures("at_once")
async def test_a_node_that_knows_nobody_alive_learns_its_cluster_from_callers() -> None:
    """Its configured peers are gone; nodes that proved to be of the cluster tell it."""
    told = says("n8", bootstrap=codec.encode(BOOTSTRAP))
    node = Node(says("n2", 92), {"n8": told}, callers=("n8",))

    assert await node.bootstrap().run() is BootstrapOutcome.LATER

    assert [] == node.bootstrapped


@pytest.mark.usefixtures("at_once")
async def test_a_caller_that_knows_no_cluster_is_no_part_of_a_new_one() -> None:
    """The caller waits to join too; the configuration decides which nodes bootstrap."""
    node = Node(
        says("n1"),
        {"n2": says("n2"), "n3": says("n3"), "n8": says("n8", 8)},
        callers=("n8",),
    )

    assert await node.bootstrap().run() is BootstrapOutcome.BOOTSTRAPPED

    assert [BOOTSTRAP] == node.bootstrapped


@pytest.mark.usefixtures("at_once")
async def test_a_waiting_node_names_the_nodes_it_waits_for_and_the_remedy() -> None:
    """The reason is shown until it no longer has to wait."""
    node = Node(says("n1"), {"n2": says("n2")})
    bootstrap = node.bootstrap()
    running = asyncio.create_task(bootstrap.run())
    async with asyncio.timeout(60):
        while not bootstrap.waits_for:  # noqa: ASYNC110, nothing tells of it
            await asyncio.sleep(0)
        waited_for = bootstrap.waits_for
        node.others["n3"] = says("n3")
        await running

    assert "not all nodes answer: n3;" in waited_for
    assert "raft.peers" in waited_for
    assert "`cluster join n1`" in waited_for
    assert not bootstrap.waits_for
