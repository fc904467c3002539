"""Many queues: claims, lists and counts of a tenant with thousands delay no other request."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from types import FrameType
from typing import NoReturn

import pytest
import pytest_asyncio

from codeq_cluster.broker.engine.answers import LOOKED_AT_MAX, QUEUES_AT_ONCE, browse_delayed
from codeq_cluster.broker.engine.busy_queues import UNREAD_READS_MAX
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.queries.search import Search
from codeq_cluster.broker.questions import END, Browse, BrowseDelayed, ShardPage
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.items import Policy
from codeq_cluster.core.lane import FlowRule, SetFlow
from codeq_cluster.core.limit import SHARERS_MAX, scope_of_limit
from codeq_cluster.core.operations import Cancel, Delete, PauseQueue
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.core.selecting import TaskFilter
from codeq_cluster.core.task import Counters
from codeq_cluster.node.metrics import register_depths
from codeq_cluster.telemetry import Metrics
from tests.fakes.memory_store import MemoryShard, MemoryState

from .conftest import Shard, TestClock, claim, create, make_shard, shards_of

pytestmark = pytest.mark.asyncio

_QUEUES = 2 * LOOKED_AT_MAX


class _CountingState(MemoryState):
    """Counts its calls."""

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
    """Yield a store that counts."""
    return _CountingState()


@pytest_asyncio.fixture
async def many(state: _CountingState) -> AsyncIterator[Shard]:
    """Yield an engine that leads."""
    store = MemoryShard()
    store.state = state
    made = make_shard(store, TestClock(), operations_max=_QUEUES)
    made.log.lead()
    yield made
    made.engine.stop()
    await asyncio.sleep(0)  # A timer that has fired just now ends on its loop.


async def _fill(shard: Shard) -> None:
    """Create a task in each queue, and let the last queue's task die."""
    names = [f"queue-{number:05}" for number in range(_QUEUES)]
    await shard.engine.operate([create(name, command=name, max_attempts=1) for name in names])
    await shard.engine.operate([claim("c", commands=(names[-1],))])
    await shard.engine.operate([Nack(request="n", id=names[-1], tenant="acme", worker="ann")])


async def test_a_list_of_many_empty_places_is_walked_in_bounded_steps(
    many: Shard, state: _CountingState
) -> None:
    """The one dead letter, in the last queue, is found, and no step reads every queue."""
    await _fill(many)
    after, found, asked_most = b"", [], 0
    while after != END:
        state.asked = 0
        page = await many.engine.answer(
            Browse(tenant="acme", queue="", places=(QueuePlace.DLQ,), after=after, count=50)
        )
        assert isinstance(page, ShardPage)
        assert page.edge > after
        asked_most = max(asked_most, state.asked)
        found += [task.id for _, task in page.rows]
        after = page.edge

    assert [f"queue-{_QUEUES - 1:05}"] == found
    assert asked_most <= LOOKED_AT_MAX + 10


async def test_every_task_of_many_queues_is_listed_once(many: Shard) -> None:
    """Steps that end between two places lose no task and repeat none."""
    await _fill(many)
    after, found = b"", []
    while after != END:
        page = await many.engine.answer(
            Browse(tenant="acme", queue="", places=tuple(QueuePlace), after=after, count=500)
        )
        assert isinstance(page, ShardPage)
        found += [task.id for _, task in page.rows]
        after = page.edge

    assert found == [f"queue-{number:05}" for number in range(_QUEUES)]


async def test_others_get_their_turn_while_many_queues_are_counted(
    many: Shard, state: _CountingState
) -> None:
    """Between two turns of the loop a bounded number of queues is counted."""
    await _fill(many)
    state.asked = 0
    counting = asyncio.ensure_future(many.engine.depths("acme"))
    asked_most = before = 0
    while not counting.done():
        await asyncio.sleep(0)
        asked_most, before = max(asked_most, state.asked - before), state.asked

    assert _QUEUES == len(await counting)
    assert asked_most <= 10 * QUEUES_AT_ONCE


async def _delay(shard: Shard) -> list[str]:
    """Create a delayed task in each queue, and return them in the order of their time."""
    names = [f"queue-{number:05}" for number in range(_QUEUES)]
    later = [create(name, command=name, delay_ms=9_000_000 - n) for n, name in enumerate(names)]
    await shard.engine.operate(later)
    return names[::-1]


async def test_others_get_their_turn_while_delayed_tasks_of_many_queues_are_listed(
    many: Shard, state: _CountingState
) -> None:
    """Between two turns of the loop a bounded number of queues is looked at."""
    expected = await _delay(many)
    asked = BrowseDelayed(tenant="acme", queue="", after=b"", count=LOOKED_AT_MAX)
    state.asked = 0
    listing = asyncio.ensure_future(many.engine.answer(asked))
    asked_most = before = 0
    while not listing.done():
        await asyncio.sleep(0)
        asked_most, before = max(asked_most, state.asked - before), state.asked
    page = await listing

    assert isinstance(page, ShardPage)
    assert expected[:LOOKED_AT_MAX] == [task.id for _, task in page.rows]
    assert asked_most <= 3 * QUEUES_AT_ONCE


async def test_a_task_that_is_moved_while_delayed_ones_are_listed_is_left_out(
    many: Shard, state: _CountingState
) -> None:
    """It is no fault of a record, whether the task goes to another place or for ever."""
    expected = await _delay(many)
    queues = sorted(expected)
    moved = ["ended", "gone"]
    creates = zip(moved, queues, strict=False)
    await many.engine.operate([create(name, command=of, delay_ms=1000) for name, of in creates])
    asked = BrowseDelayed(tenant="acme", queue="", after=b"", count=9)
    failures: list[None] = []
    listing = asyncio.ensure_future(
        browse_delayed(state, queues, asked, lambda: failures.append(None))
    )
    await asyncio.sleep(0)
    await many.engine.operate([Cancel(request=name, id=name, tenant="acme") for name in moved])
    await many.engine.operate([Delete(request="d", tenant="acme", ids=("gone",), by="op")])
    was_done = listing.done()
    page = await listing

    assert was_done is False
    assert expected[:9] == [task.id for _, task in page.rows]
    assert [] == failures


async def test_a_filter_has_the_heads_of_many_queues_read_once(
    many: Shard, state: _CountingState
) -> None:
    """A page that it leaves empty says where to go on."""
    await _delay(many)
    only = TaskFilter(worker="nobody")
    asked = BrowseDelayed(tenant="acme", queue="", after=b"", count=9, only=only)
    state.asked = 0
    found, after = await Search(shards_of(many)).found(asked, deadline=float("inf"))

    assert [] == found
    assert after
    assert _QUEUES <= state.asked <= _QUEUES + LOOKED_AT_MAX + 10


async def test_one_queue_is_counted_without_the_others(many: Shard, state: _CountingState) -> None:
    """A count of one queue costs the same, however many there are."""
    await _fill(many)
    state.asked = 0

    [depth] = await many.engine.depths("acme", "queue-00007")

    assert ("queue-00007", 1) == (depth.queue, depth.ready)
    assert state.asked <= 10
    assert [] == await many.engine.depths("acme", "nothing")


class _CountingCatalogue(Catalogue):
    """Counts its calls for a queue's policy."""

    def __init__(self, store: MemoryShard) -> None:
        self.asked = 0
        super().__init__([store.state])

    def policy(self, tenant: str, queue: str) -> Policy:
        """Count it."""
        self.asked += 1
        return super().policy(tenant, queue)


async def _claimed(shard: Shard, request: str, *, count: int = 1) -> list[str]:
    """Look for work, and claim tasks of any command."""
    assert shard.engine.head("acme", ()) is not None
    [outcome] = await shard.engine.operate([claim(request, commands=(), count=count)])
    assert isinstance(outcome, Claimed)
    return [task.command for task in outcome.tasks]


async def test_a_claim_of_any_command_looks_at_few_queues() -> None:
    """A look and a claim ask for the policy of only a few queues, however many have work."""
    asked = {}
    for queues in (10, 2000):
        store = MemoryShard()
        catalogue = _CountingCatalogue(store)
        shard = make_shard(store, TestClock(), operations_max=2 * queues, catalogue=catalogue)
        shard.log.lead()
        names = [f"queue-{number:05}" for number in range(queues)]
        for round_ in ("a", "b"):
            creates = [create(f"{name}{round_}", command=name) for name in names]
            await shard.engine.operate(creates)
        await _claimed(shard, "warm")
        while shard.engine.view.read_on():
            pass
        catalogue.asked = 0
        got = [name for n in range(8) for name in await _claimed(shard, f"r{n}")]
        asked[queues] = catalogue.asked
        shard.engine.stop()

        assert 8 == len(set(got))

    assert asked[2000] <= asked[10] + 8
    assert asked[2000] <= 8 * 8


async def test_paused_queues_are_looked_at_once() -> None:
    """Hundreds of paused queues with work cost other claims nothing until they are resumed."""
    store = MemoryShard()
    catalogue = _CountingCatalogue(store)
    shard = make_shard(store, TestClock(), catalogue=catalogue)
    shard.log.lead()
    names = [f"queue-{number:03}" for number in range(400)]
    await shard.engine.operate([create(name, command=name) for name in names])
    await shard.engine.operate(
        [PauseQueue(request=name, tenant="acme", queue=name, by="op") for name in names[:-3]]
    )
    got = await _claimed(shard, "first")
    catalogue.asked = 0
    got += await _claimed(shard, "second")

    assert names[-3:-1] == got
    assert catalogue.asked <= 8
    shard.engine.stop()


async def test_a_start_with_many_queues_reads_them_in_bounded_steps(
    many: Shard, state: _CountingState
) -> None:
    """The first look reads some queues; other work runs between the rest; then order is exact."""
    names = [f"queue-{number:05}" for number in range(_QUEUES)]
    await many.engine.operate([create(name, command=name) for name in names])
    urgent = create("urgent", command=names[-1], priority=9)
    await many.engine.operate([urgent])
    many.engine.stop()
    store = many.store
    again = make_shard(store, TestClock())
    again.log.lead()
    state.asked = 0
    first = await _claimed(again, "first")
    asked_most = state.asked
    while again.engine.view.unread:
        before = state.asked
        await asyncio.sleep(0)
        asked_most = max(asked_most, state.asked - before)

    assert 1 == len(first)
    assert asked_most <= 2 * UNREAD_READS_MAX + 20
    assert names[-1] in [*first, *await _claimed(again, "second")]
    again.engine.stop()


class _CountingMetrics(Metrics):
    """Counts its calls for the label of a command."""

    asked = 0

    def command_label(self, command: str) -> str:
        """Count it."""
        self.asked += 1
        return super().command_label(command)


async def test_a_scrape_looks_at_each_of_many_queues_once(many: Shard) -> None:
    """Their depths are added up by label before any sample is made."""
    await _fill(many)
    metrics = _CountingMetrics(commands_max=2)
    register_depths(metrics, [many.engine])
    text = metrics.scrape().decode()
    labels = metrics.asked - _QUEUES

    assert f'codeq_queue_depth{{command="other",queue="ready"}} {_QUEUES - 3}.0' in text
    assert 'codeq_queue_depth{command="queue-00001",queue="ready"} 1.0' in text
    assert 'codeq_dlq_depth{command="other"} 1.0' in text
    assert labels <= 15


class _Unwalked(dict[tuple[str, str], Counters]):
    """Counters that allow look-ups, but no iteration."""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        raise AssertionError("somebody walks over the queues of all tenants")

    def items(self) -> NoReturn:
        raise AssertionError("somebody walks over the queues of all tenants")


async def test_lists_and_counts_of_a_tenant_pass_over_no_other_tenants_queues() -> None:
    """Other tenants may have any number of queues; a tenant without tasks has none."""
    shard = make_shard(MemoryShard(), TestClock())
    shard.log.lead()
    engine = shard.engine
    await engine.operate([create("other", tenant="umbrella"), create("later", delay_ms=50)])
    await engine.operate([create("now", command="scan")])
    engine.replica.counters = _Unwalked(engine.replica.counters)
    asked = Browse(tenant="acme", queue="", places=tuple(QueuePlace), after=b"", count=9)
    listed = await engine.answer(asked)
    delayed = await engine.answer(BrowseDelayed(tenant="acme", queue="", after=b"", count=9))
    depths = await engine.depths("acme")

    assert isinstance(listed, ShardPage)
    assert isinstance(delayed, ShardPage)
    assert ["later", "now"] == sorted(task.id for _, task in listed.rows)
    assert ["later"] == [task.id for _, task in delayed.rows]
    assert ["render", "scan"] == sorted(depth.queue for depth in depths)
    await engine.operate([Cancel(request="c", id="other", tenant="umbrella")])
    await engine.operate([Delete(request="d", tenant="umbrella", ids=("other",), by="op")])

    assert set() == engine.replica.counted_queues("umbrella")
    shard.engine.stop()


async def test_a_claim_counts_the_queues_of_a_limit_once(many: Shard) -> None:
    """Each of them asks how many tasks run together; a count for each would be their square."""
    scope = scope_of_limit("api")
    rule = FlowRule("acme", scope, 1, None, 0, PerQueue(max_running=1))
    await many.engine.operate([SetFlow(rule)])
    names = [f"queue-{number:05}" for number in range(SHARERS_MAX)]
    for name in names:
        shares = FlowRule("acme", name, 1, None, 0, None, scope, "api")
        await many.engine.operate([SetFlow(shares)])
    await many.engine.operate([create(name, command=name) for name in names])
    asked: Counter[str] = Counter()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            asked[frame.f_code.co_qualname] += 1

    sys.setprofile(called)
    try:
        [first], [second] = [await many.engine.operate([claim(each, commands=())]) for each in "ab"]
    finally:
        sys.setprofile(None)

    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert (1, 0) == (len(first.tasks), len(second.tasks))
    assert 6 * SHARERS_MAX > asked["ShardView.leased"] > SHARERS_MAX
