"""Many queues: lists and counts of a tenant with thousands of them hold nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from codeq_cluster.broker.answers import LOOKED_AT_MAX
from codeq_cluster.broker.engine import DEPTHS_AT_ONCE
from codeq_cluster.broker.questions import END, Browse, Page
from codeq_cluster.codec.keyspace import Place
from codeq_cluster.core.operations import Nack
from codeq_cluster.testing.memory_store import MemoryShard, MemoryState

from .conftest import Shard, TestClock, claim, create, make_shard

pytestmark = pytest.mark.asyncio

_QUEUES = 2 * LOOKED_AT_MAX


class _CountingState(MemoryState):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def get(self, key: bytes) -> bytes | None:
        """Count it."""
        self.asked += 1
        return super().get(key)

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Count it."""
        self.asked += 1
        return super().scan(start, end, limit)


@pytest.fixture
def state() -> _CountingState:
    """Lend a store that counts."""
    return _CountingState()


@pytest.fixture
def many(state: _CountingState) -> Iterator[Shard]:
    """Lend an engine that leads."""
    store = MemoryShard()
    store.state = state
    made = make_shard(store, TestClock(), operations_max=_QUEUES)
    made.log.lead()
    yield made
    made.engine.stop()


async def _fill(shard: Shard) -> None:
    """Create a task in each queue, and let the one of the last queue die."""
    names = [f"queue-{number:05}" for number in range(_QUEUES)]
    await shard.engine.operate([create(name, command=name, max_attempts=1) for name in names])
    await shard.engine.operate([claim("c", commands=(names[-1],))])
    await shard.engine.operate([Nack(request="n", id=names[-1], tenant="acme", worker="ann")])


async def test_a_list_of_many_empty_places_is_walked_in_bounded_steps(
    many: Shard, state: _CountingState
) -> None:
    """The one dead letter, in the last queue, is found, and no step looks at every queue."""
    await _fill(many)
    after, found, asked_most = b"", [], 0
    while after != END:
        state.asked = 0
        page = await many.engine.answer(
            Browse(tenant="acme", queue="", places=(Place.DLQ,), after=after, count=50)
        )
        assert isinstance(page, Page)
        assert page.edge > after
        asked_most = max(asked_most, state.asked)
        found += [task.id for _, task in page.rows]
        after = page.edge

    assert [f"queue-{_QUEUES - 1:05}"] == found
    assert asked_most <= LOOKED_AT_MAX + 10


async def test_every_task_of_many_queues_is_listed_once(many: Shard) -> None:
    """Steps that end between two places lose none and repeat none."""
    await _fill(many)
    after, found = b"", []
    while after != END:
        page = await many.engine.answer(
            Browse(tenant="acme", queue="", places=tuple(Place), after=after, count=500)
        )
        assert isinstance(page, Page)
        found += [task.id for _, task in page.rows]
        after = page.edge

    assert [f"queue-{number:05}" for number in range(_QUEUES)] == found


async def test_others_get_their_turn_while_many_queues_are_counted(
    many: Shard, state: _CountingState
) -> None:
    """Between two turns of the loop a bounded number of queues is looked up."""
    await _fill(many)
    state.asked = 0
    counting = asyncio.ensure_future(many.engine.depths("acme"))
    asked_most = before = 0
    while not counting.done():
        await asyncio.sleep(0)
        asked_most, before = max(asked_most, state.asked - before), state.asked

    assert _QUEUES == len(await counting)
    assert asked_most <= 10 * DEPTHS_AT_ONCE


async def test_one_queue_is_counted_without_the_others(many: Shard, state: _CountingState) -> None:
    """A count of one queue costs the same however many there are."""
    await _fill(many)
    state.asked = 0

    [depth] = await many.engine.depths("acme", "queue-00007")

    assert ("queue-00007", 1) == (depth.queue, depth.ready)
    assert state.asked <= 10
    assert [] == await many.engine.depths("acme", "nothing")
