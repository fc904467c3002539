"""Going on: what else meets one thing that cannot be read, and serves its neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.questions import Browse, BrowseDelayed, ItemPage, ListItems, ShardPage
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family, QueuePlace
from codeq_cluster.codec.records import RecordInvalid
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.items import NO_POLICY
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.operations import PauseQueue, PutTopic, Retry
from codeq_cluster.core.outcomes import Claimed, Created
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.errors import OutcomeUnknown
from tests.fakes.memory_store import MemoryShard

from .conftest import Shard, TestClock, claim, create, make_shard, submit, subscribe

pytestmark = pytest.mark.asyncio

_BAD = b"\x07 no record"


def _poison(shard: Shard, key: bytes, value: bytes = _BAD) -> bytes:
    """Put other bytes under a key, for the next leadership; return what stood there."""
    before = shard.store.state.get(key)
    assert before is not None
    shard.store.state._put(key, value)
    shard.log.depose()
    shard.log.lead()
    return before


async def test_a_listener_that_fails_stops_neither_the_replica_nor_the_others(
    shard: Shard,
) -> None:
    """The entry is applied, answered, and told to the listener behind the broken one."""
    told: list[Mapping[bytes, bytes | None]] = []

    def breaks(_rows: Mapping[bytes, bytes | None]) -> None:
        raise ZeroDivisionError

    shard.engine.on_rows(breaks)
    shard.engine.on_rows(told.append)
    await shard.engine.operate([create("t1")])

    assert 1 == len(told)
    assert shard.store.state.get(keyspace.task("t1")) is not None
    assert [Loop.LISTENERS] == shard.seen.failures


async def test_a_listener_hears_only_of_the_rows_that_concern_it(shard: Shard) -> None:
    """A create has no outbox job and no item; it has counters."""
    told: list[str] = []
    shard.engine.on_rows(lambda _: told.append("a job"), Family.OUTBOX)
    shard.engine.on_rows(lambda _: told.append("a count or an item"), Family.STATS, Family.ITEM)
    shard.engine.on_rows(lambda _: told.append("an entry"))
    await shard.engine.operate([create("t1")])

    assert ["a count or an item", "an entry"] == told


@pytest.mark.parametrize("commands", [("render",), ()])
async def test_a_ready_task_that_cannot_be_read_costs_one_claim(
    shard: Shard, commands: tuple[str, ...]
) -> None:
    """The next claim gets the task behind it; a mended task is claimed after a retry."""
    await shard.engine.operate([create("bad"), create("good"), create("other", command="scan")])
    whole = _poison(shard, keyspace.task("bad"))
    with pytest.raises(RecordInvalid):
        await shard.engine.operate([claim("r1", commands=commands)])

    [got] = await shard.engine.operate([claim("r2", commands=commands, count=2)])
    assert isinstance(got, Claimed)
    assert "good" == got.tasks[0].id
    assert {("acme", "task.bad")} == shard.engine.view.asides

    _poison(shard, keyspace.task("bad"), whole)
    await shard.engine.operate([Retry(request="r", tenant="acme", ids=("task.bad",), by="op")])
    [again] = await shard.engine.operate([claim("r3")])
    assert isinstance(again, Claimed)
    assert ["bad"] == [task.id for task in again.tasks]


async def test_a_payload_that_is_no_text_is_left_out_of_a_claim(shard: Shard) -> None:
    """The claim gets its other task, and the replica applies the entry like any other."""
    await shard.engine.operate([create("bad"), create("good")])
    _poison(shard, keyspace.payload("bad"), b"\xff")
    [got] = await shard.engine.operate([claim("r1", count=2)])

    assert isinstance(got, Claimed)
    assert ["good"] == [task.id for task in got.tasks]
    assert [Loop.CLAIMS] == shard.seen.failures


async def test_lists_leave_out_what_cannot_be_read(shard: Shard) -> None:
    """A tenant finds its other tasks and items."""
    await shard.engine.operate([create("bad"), create("good")])
    await shard.engine.operate([create("bad-d", delay_ms=60_000), create("d", delay_ms=60_000)])
    topics = [PutTopic(request=name, tenant="acme", name=name, by="op") for name in ("bad", "good")]
    await shard.engine.operate(topics)
    for key in (
        keyspace.task("bad"),
        keyspace.task("bad-d"),
        keyspace.item(ItemKind.TOPIC, "acme", "bad"),
    ):
        _poison(shard, key)
    places = (QueuePlace.PENDING, QueuePlace.DELAYED)
    ask = shard.engine.answer

    browsed = await ask(Browse(tenant="acme", queue="", places=places, after=b"", count=10))
    delayed = await ask(BrowseDelayed(tenant="acme", queue="", after=b"", count=10))
    listed = await ask(ListItems(tenant="acme", kind=ItemKind.TOPIC, after=b"", count=2))

    assert isinstance(browsed, ShardPage)
    assert isinstance(delayed, ShardPage)
    assert isinstance(listed, ItemPage)
    assert ["good", "d"] == [task.id for _, task in browsed.rows]
    assert ["d"] == [task.id for _, task in delayed.rows]
    assert ["good"] == [item.id for _, item in listed.rows]
    assert b"good" == listed.edge
    assert [Loop.LISTS] * 4 == shard.seen.failures


async def test_a_catalogue_is_read_although_one_item_of_each_kind_is_damaged() -> None:
    """A damaged pause still pauses, by its key; the other damaged items are as if they were not."""
    shard = make_shard(MemoryShard(), TestClock())
    shard.log.lead()
    for name in ("bad", "good"):
        await shard.engine.operate(
            [
                PutTopic(request=f"t-{name}", tenant="acme", name=name, by="op", weight=3),
                PauseQueue(request=f"p-{name}", tenant="acme", queue=f"{name}-p", by="op"),
            ]
        )
    await shard.engine.operate([subscribe()])
    store = shard.store.state
    subscription = store.get(keyspace.item(ItemKind.SUBSCRIPTION, "acme", "s1"))
    assert subscription is not None
    store._put(keyspace.item(ItemKind.SUBSCRIPTION, "acme", "s0"), _BAD)
    store._put(keyspace.item(ItemKind.TOPIC, "acme", "bad"), _BAD)
    store._put(keyspace.item(ItemKind.PAUSE, "acme", "bad-p"), _BAD)
    failed: list[None] = []
    catalogue = Catalogue([store], failed=lambda: failed.append(None))
    catalogue.reload()

    assert 3 == catalogue.policy("acme", "good").weight
    assert NO_POLICY == catalogue.policy("acme", "bad")
    assert {"bad-p", "good-p"} == catalogue.paused("acme")
    assert [records.decode_item(subscription)] == list(catalogue.subscriptions())
    assert 2 == len(failed)
    shard.engine.stop()


async def test_counters_that_cannot_be_read_are_counted_again(shard: Shard) -> None:
    """Each view has the exact counts of every queue; the next change mends the row."""
    await shard.engine.operate(
        [create(each, max_attempts=1) for each in ("dead", "done", "leased")]
    )
    await shard.engine.operate([create("other", command="scan")])
    nack = Nack(request="n", id="dead", tenant="acme", worker="ann")
    await shard.engine.operate([claim("r1", count=3)])
    await shard.engine.operate([nack, submit("done")])
    await shard.engine.operate([create("t1"), create("t2", delay_ms=60_000)])
    exact = dict(shard.engine.view.counters)
    key = keyspace.stats("render", "acme")
    whole = _poison(shard, key)
    loaded = [dict(shard.engine.view.counters)]
    shard.log.depose()
    shard.log.lead()
    loaded.append(dict(shard.engine.view.counters))

    assert [exact, exact] == loaded
    assert [Loop.COUNTERS] == shard.seen.failures
    before = records.decode_counters(whole)
    await shard.engine.operate([create("t3", command="scan")])
    assert _BAD == shard.store.state.get(key)
    await shard.engine.operate([create("t4")])
    after = records.decode_counters(shard.store.state.get(key) or b"")
    assert (before.ready + 1, before.dead, before.done) == (after.ready, after.dead, after.done)


async def test_an_answer_that_cannot_be_given_stops_nobody(shard: Shard) -> None:
    """A caller's slot that breaks is no reason to stop applying entries."""

    class _Broken:
        """A slot whose caller is not there any more, in a way nobody foresaw."""

        given: list[BaseException]

        def done(self) -> bool:
            return False

        def set_result(self, _result: object, /) -> None:
            raise ZeroDivisionError

        def set_exception(self, exception: BaseException, /) -> None:
            self.given = [exception]

    broken, other = _Broken(), asyncio.get_running_loop().create_future()
    shard.log.held = True
    shard.engine.begin([create("t1")], broken)
    shard.engine.begin([create("t2")], other)
    shard.log.release()

    [outcome] = await other
    assert isinstance(outcome, Created)
    assert isinstance(broken.given[0], OutcomeUnknown)
