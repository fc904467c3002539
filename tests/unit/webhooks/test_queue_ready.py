"""Notices of a node that has installed a snapshot in one of its replicas."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import msgspec
import pytest
import uvloop
from msgspec.structs import replace

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.core.items import Mode
from codeq_cluster.webhooks.host_limits import Route
from codeq_cluster.webhooks.queue_ready import PASS_MAX, Notices
from tests.fakes.memory_store import MemoryShard
from tests.unit.broker.conftest import Shard, TestClock, claim, create, make_shard, subscribe
from tests.unit.webhooks.test_notification_queue import World, opened

_GUARD_S = 60.0


class _Node:
    """A node that leads the tenant's home shard, and has a replica of another one."""

    def __init__(self, world: World, background: Background) -> None:
        self.home = make_shard(MemoryShard(), TestClock())
        self.other = make_shard(MemoryShard(), TestClock())
        self.home.log.lead()
        self.other.log.lead()
        self.catalogue = Catalogue([self.home.store.state, self.other.store.state])
        self.catalogue.follow(self.home.engine)
        self.catalogue.follow(self.other.engine)
        self.notices = Notices(
            self.catalogue,
            [self.home.engine],
            notification_queue=opened(world, background),
            on_outcome=world.counted,
        )
        for shard in (self.home, self.other):
            shard.engine.on_rows(self.catalogue.rows)
            shard.engine.on_rows(self.notices.rows)
            shard.engine.on_reload(self.catalogue.reload)
            shard.engine.on_reload(self.notices.reload)

    def falls_behind(self) -> Shard:
        """Let another leader run the other shard without this node, and return that leader."""
        self.other.log.depose()
        elsewhere = make_shard(self.other.store, self.other.clock)
        elsewhere.log.term = self.other.log.term
        elsewhere.log.lead()
        return elsewhere

    def catches_up(self, elsewhere: Shard) -> None:
        """Replace the whole state, and lead the shard from there."""
        elsewhere.log.depose()
        self.other.engine.reload()
        self.other.log.term = elsewhere.log.term
        self.other.log.lead()


async def test_a_queue_emptied_unnoticed_is_notified_when_it_fills() -> None:
    """The node's state before the snapshot does not suppress later notices."""
    world, background = World(), Background()
    node = _Node(world, background)
    await node.home.engine.operate([subscribe()])
    await node.other.engine.operate([create("t1")])
    async with asyncio.timeout(_GUARD_S):
        await world.until_heard(1)
    elsewhere = node.falls_behind()
    await elsewhere.engine.operate([claim("c")])
    node.catches_up(elsewhere)

    await node.other.engine.operate([create("t2")])

    async with asyncio.timeout(_GUARD_S):
        await world.until_heard(2)
    node.notices.stop()


async def test_a_queue_filled_unnoticed_is_notified() -> None:
    """The snapshot itself may make a queue non-empty."""
    world, background = World(), Background()
    node = _Node(world, background)
    await node.home.engine.operate([subscribe()])
    elsewhere = node.falls_behind()
    await elsewhere.engine.operate([create("t1")])
    node.catches_up(elsewhere)

    async with asyncio.timeout(_GUARD_S):
        await world.until_heard(1)
    node.notices.stop()


async def test_a_subscription_that_cannot_be_served_costs_its_neighbours_nothing() -> None:
    """Two subscribe to one queue; what fails at the first one's URL is counted and left out."""
    world, background = World(), Background()
    world.room_of["broken"] = None  # type: ignore[assignment]
    node = _Node(world, background)
    first = replace(subscribe(), id="s0", callback_url="http://broken/s0")
    await node.home.engine.operate([first, subscribe()])
    await node.other.engine.operate([create("t1")])

    async with asyncio.timeout(_GUARD_S):
        await world.until_heard(1)
    assert ["http://swift/s1"] == [url for url, _, _ in world.heard]
    assert 1 == world.counts["render", "failure"]
    node.notices.stop()
    await background.stop()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_many_notices_that_wait_for_an_interval_are_all_sent(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """A debt is often due before its timer is set, for which the two loops have other handles."""
    queues = [f"queue-{n}" for n in range(20)]

    async def story() -> None:
        world, background = World(), Background()
        node = _Node(world, background)
        wanted = replace(subscribe(), event_types=(), min_interval_ms=1)
        await node.home.engine.operate([wanted])
        await node.other.engine.operate([create(f"t-{each}", command=each) for each in queues])
        async with asyncio.timeout(_GUARD_S):
            await world.until_heard(len(queues))
        node.notices.stop()
        await background.stop()

        told = [msgspec.json.decode(body)["eventType"] for _, body, _ in world.heard]
        assert queues == sorted(told, key=queues.index)
        assert {"success"} == {outcome for _, outcome in world.counts}

    run(story())


class _Turns(World):
    """A world that knows in which turn of the loop it was asked for room."""

    turn = 0
    wanted: int
    asked: asyncio.Event

    def room(self, route: Route) -> int:
        """Count the question; there is room for none."""
        self.counts["asked in turn", str(self.turn)] += 1
        if self.counts.total() == self.wanted:
            self.asked.set()
        return 0

    def tick(self) -> None:
        """Count the loop's turns from now on."""
        self.turn += 1
        asyncio.get_running_loop().call_soon(self.tick)


async def test_a_round_of_many_queues_is_told_in_several_turns_of_the_loop() -> None:
    """Between two of them, other work gets its turn."""
    world, background = _Turns(), Background()
    node = _Node(world, background)
    await node.home.engine.operate([replace(subscribe(), event_types=())])
    queues = 2 * PASS_MAX + 1
    world.wanted, world.asked = queues, asyncio.Event()
    world.tick()
    await node.other.engine.operate([create(f"t-{n}", command=f"q-{n}") for n in range(queues)])

    async with asyncio.timeout(_GUARD_S):
        await world.asked.wait()
    assert max(world.counts.values()) <= PASS_MAX
    node.notices.stop()
    await background.stop()


async def test_a_queue_with_many_subscriptions_gives_other_work_its_turn() -> None:
    """One notice for each of twenty queues costs a look at twenty thousand subscriptions."""
    world, background = _Turns(), Background()
    node = _Node(world, background)
    wanted = replace(subscribe(), event_types=(), mode=Mode.HASH)
    await node.home.engine.operate([replace(wanted, id=f"s{n}") for n in range(1000)])
    world.wanted, world.asked = 20, asyncio.Event()
    world.tick()
    await node.other.engine.operate([create(f"t-{n}", command=f"q-{n}") for n in range(20)])

    async with asyncio.timeout(_GUARD_S):
        await world.asked.wait()
    assert 20 > max(world.counts.values())
    node.notices.stop()
    await background.stop()


async def test_a_notice_after_an_interval_costs_the_same_however_many_subscribe() -> None:
    """A look at all of them for each would hold the leader for as long as their square."""
    world, background = World(), Background()
    node = _Node(world, background)
    wanted = replace(subscribe(), event_types=(), min_interval_ms=300)
    await node.home.engine.operate([replace(wanted, id=f"s{n}") for n in range(200)])
    asked: Counter[str] = Counter()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            asked[frame.f_code.co_name.lstrip("_")] += 1

    sys.setprofile(called)
    try:
        await node.other.engine.operate([create(f"t-{n}", command=f"q-{n}") for n in range(5)])
        async with asyncio.timeout(_GUARD_S):
            await world.until_heard(5 * 200)
    finally:
        sys.setprofile(None)

    assert 5 * 200 * 10 > asked["group_of"] > 5 * 200
    node.notices.stop()
    await background.stop()
