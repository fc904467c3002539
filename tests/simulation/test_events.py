"""Events over the deaths of nodes, on virtual time, network and disks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TypeVar

import pytest

from codeq_cluster.broker.feed.events import Event, EventFilter, EventKind
from codeq_cluster.broker.feed.feed import Feed
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import NewResult
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.core.task import State
from codeq_cluster.errors import CodeqError
from tests.simulator.broker import SimBroker
from tests.simulator.brokers import AnswerLost, NotReached, SimBrokers
from tests.simulator.scenes import settled_brokers

from .moves import PATIENCE_S, at_rest

_T = TypeVar("_T")

SHARDS = 2
STEPS = 25
STREAM_S = 0.7  # So short that a watcher moves often.
ENDS = {EventKind.COMPLETED, EventKind.CANCELLED}
# What a client may get while nodes die.
LOST = (CodeqError, AnswerLost, NotReached, TimeoutError)


class Watcher:
    """Follows the events of all tasks, on one node after the other."""

    def __init__(self, brokers: SimBrokers, random: Random) -> None:
        self._brokers = brokers
        self._random = random
        self._feeds: dict[SimBroker, Feed] = {}
        self.told: list[Event] = []
        self.after = ""
        self.moves = 0
        self.failures = 0

    async def begin(self) -> None:
        """Take the cursor of this moment."""
        await self._stream(0)

    async def follow(self) -> None:
        """Follow for ever: a stream that ends goes on elsewhere."""
        while True:
            await self._stream(STREAM_S)
            self.moves += 1

    async def _stream(self, seconds: float) -> None:
        node_id = self._random.choice(self._brokers.ids)
        node = self._brokers.nodes.get(node_id)

        async def read(broker: Broker) -> None:
            del broker
            assert node is not None
            feed = self._feeds.setdefault(node, Feed(node.forwarder, failed=self._failed))
            loop = asyncio.get_running_loop()
            until = loop.time() + seconds
            with feed.watched():
                reader = await feed.reader(EventFilter(tenant=""), self.after, deadline=until + 2)
                while True:
                    left_s = until - loop.time()
                    # What a batch tells and its cursor arrive together.
                    self.told += await reader.next(max(0, left_s))
                    self.after = reader.cursor
                    if left_s <= 0:
                        return

        await settled(self._brokers, node_id, read)

    def _failed(self) -> None:
        self.failures += 1


async def settled(
    brokers: SimBrokers, node_id: str, ask: Callable[[Broker], Awaitable[_T]]
) -> _T | None:
    """Send a request to a node; return None if it is lost or refused."""
    try:
        return await brokers.request(node_id, ask, give_up_s=PATIENCE_S)
    except LOST:
        return None


async def produce(brokers: SimBrokers, random: Random) -> None:
    """Create, claim, complete and cancel tasks on any nodes, for ever."""
    while True:
        await settled(brokers, random.choice(brokers.ids), partial(create, random.randint(1, 3)))
        got = await settled(brokers, random.choice(brokers.ids), claim)
        for task in () if got is None else got.tasks:
            end = complete if random.random() < 0.7 else cancel
            await settled(brokers, random.choice(brokers.ids), partial(end, task.id))


async def create(count: int, broker: Broker) -> object:
    """Create tasks."""
    new = [Create(command="mail", payload="{}") for _ in range(count)]
    return await broker.create("", new, timeout_s=2)


async def claim(broker: Broker) -> Claimed:
    """Claim two tasks, if there are any."""
    return await broker.claim(
        "", "ann", commands=("mail",), count=2, lease_ms=2_000, wait_s=0, timeout_s=2
    )


async def complete(task_id: str, broker: Broker) -> object:
    """End a task with a result."""
    end = (NewResult(task_id=task_id, status="COMPLETED"),)
    return await broker.submit("", "ann", end, timeout_s=2)


async def cancel(task_id: str, broker: Broker) -> object:
    """End a task without one."""
    return await broker.cancel("", task_id, timeout_s=2)


@pytest.mark.parametrize("seed", range(2))
def test_a_watcher_misses_no_end_whichever_nodes_die(seed: int) -> None:
    """It goes on at any node, also one that has just come back or is behind."""
    random = Random(seed)
    brokers = settled_brokers(shards=SHARDS)
    watcher = Watcher(brokers, random)
    outside = brokers.outside
    begun = outside.create_task(watcher.begin())
    assert brokers.run_until(begun.done, seconds=PATIENCE_S)
    assert watcher.after
    running = [outside.create_task(each) for each in (watcher.follow(), produce(brokers, random))]
    away = ""
    for _ in range(STEPS):
        brokers.run(random.uniform(0.05, 0.4))
        if away:
            brokers.start(away)
            away = ""
        elif random.random() < 0.4:
            away = random.choice(brokers.ids)
            brokers.crash(away, power=random.random() < 0.5)
    if away:
        brokers.start(away)
    at_rest(brokers)
    running[1].cancel()
    brokers.run(2 * STREAM_S + 1)
    at_rest(brokers)
    moved = watcher.moves
    # One whole stream more, from each node's log.
    assert brokers.run_until(lambda: watcher.moves >= moved + 4, seconds=PATIENCE_S)
    ended = {
        task.id
        for state in brokers.nodes["B"].states
        for _, value in state.scan(*keyspace.prefix_range(keyspace.TASK_PREFIX), 9999)
        if (task := records.decode_task(value)).state in (State.DONE, State.FAILED)
    }
    told = {event.task_id for event in watcher.told if event.kind in ENDS}
    running[0].cancel()
    brokers.run(0.1)
    brokers.close()

    assert 10 < len(ended)
    assert ended <= told
    assert 5 < moved
    assert 0 == watcher.failures
