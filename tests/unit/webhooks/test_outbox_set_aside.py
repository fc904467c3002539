"""Outbox jobs that the broker itself fails at, among neighbours that are run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from msgspec.structs import replace

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.items import Aside, Delivery, Sweep
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.operations import Operation, Retry
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.webhooks import outbox
from tests.fakes.memory_store import MemoryShard
from tests.unit.broker.conftest import TestClock
from tests.unit.webhooks.test_outbox import AGE_MAX_MS, Setting, done, setting_over

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def setting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setting]:
    """Yield a shard that leads, and repeats what failed without a pause."""
    monkeypatch.setattr(outbox, "PAUSE_S", 0.0)
    made = setting_over(MemoryShard(), TestClock())
    made.shard.log.lead()
    yield made
    await made.stop()


def _asides(setting: Setting) -> dict[str, Aside]:
    start, end = keyspace.prefix_range(keyspace.item_prefix(ItemKind.ASIDE))
    rows = setting.shard.store.state.scan(start, end, 1000)
    found = [records.decode_item(value) for _, value in rows]
    return {each.subject: each for each in found if isinstance(each, Aside)}


async def _until(setting: Setting, happened: Callable[[], bool]) -> None:
    applied = asyncio.Event()
    setting.shard.engine.on_rows(lambda _: applied.set())
    async with asyncio.timeout(10):
        while not happened():
            await applied.wait()
            applied.clear()


async def _poisoned(setting: Setting, poison: Callable[[Delivery], bytes | None]) -> None:
    """End two tasks of which the first one's delivery has another record; then lead."""
    world = setting.world
    world.room["swift"] = 0
    await setting.end("bad", "good")
    setting.shard.log.depose()
    key = keyspace.item(ItemKind.DELIVERY, "acme", "bad.1")
    whole = records.decode_item(setting.shard.store.state.get(key) or b"")
    assert isinstance(whole, Delivery)
    setting.shard.store.state._put(key, poison(whole))
    setting.outbox_jobs.reload()
    del world.room["swift"]


def _unreadable(_: Delivery | Sweep) -> bytes:
    return b"\x07"


def _missing(_: Delivery | Sweep) -> None:
    return None


def _another(job: Delivery | Sweep) -> bytes:
    """Return a record whose outcome would leave the row that led to it, for ever due."""
    return records.encode(replace(job, id="other.1"))


@pytest.mark.parametrize("poison", [_unreadable, _missing, _another])
async def test_a_job_whose_record_is_at_fault_is_set_aside(
    setting: Setting, poison: Callable[[Delivery], bytes | None]
) -> None:
    """It is first in line; the delivery behind it is run, and ends."""
    await _poisoned(setting, poison)
    setting.shard.log.lead()
    good = keyspace.item(ItemKind.DELIVERY, "acme", "good.1")
    await _until(setting, lambda: setting.shard.store.state.get(good) is None)
    await _until(setting, lambda: "bad.1" in _asides(setting))

    assert ["good.1"] == setting.world.begun
    assert [Loop.OUTBOX] == setting.shard.seen.failures
    assert ("acme", "hook") == (_asides(setting)["bad.1"].tenant, _asides(setting)["bad.1"].kind)
    start, end = keyspace.prefix_range(keyspace.OUTBOX_PREFIX)
    assert [] == setting.shard.store.state.scan(start, end, 10)


@pytest.mark.parametrize("poison", [_unreadable, _missing, _another])
async def test_a_sweep_whose_record_is_at_fault_is_set_aside(
    setting: Setting, poison: Callable[[Sweep], bytes | None]
) -> None:
    """The sweep of a neighbour's upload behind it is run, and ends."""
    setting.shard.log.depose()
    store, due_ms = setting.shard.store.state, setting.shard.clock.wall
    bad, good = (
        Sweep(
            tenant=tenant, id=f"{task_id}.up", task_id=task_id, upload="up", due_ms=due_ms + number
        )
        for number, (tenant, task_id) in enumerate([("evil", "bad"), ("acme", "good")], 1)
    )
    for sweep, record in ((bad, poison(bad)), (good, records.encode(good))):
        store._put(keyspace.item(ItemKind.SWEEP, sweep.tenant, sweep.id), record)
        [errand] = keyspace.item_index_keys(sweep)
        store._put(errand, b"")
    setting.outbox_jobs.reload()
    setting.shard.clock.pass_ms(2)
    setting.shard.log.lead()
    key = keyspace.item(ItemKind.SWEEP, "acme", good.id)
    await _until(setting, lambda: store.get(key) is None and bool(_asides(setting)))

    assert [good.id] == setting.world.begun
    assert [("evil", "sweep")] == [(each.tenant, each.kind) for each in _asides(setting).values()]
    assert [Loop.OUTBOX] == setting.shard.seen.failures


async def test_a_job_that_fails_here_is_set_aside_after_a_few_attempts(setting: Setting) -> None:
    """An error of ours is no answer of the target; a retry runs the job again."""
    world = setting.world
    broken = True

    def answer(delivery: Delivery) -> Operation:
        if broken and delivery.id == "bad.1":
            raise ZeroDivisionError
        return done(delivery)

    world.answer = answer
    await setting.end("bad", "good")
    await _until(setting, lambda: "bad.1" in _asides(setting))
    assert outbox.FAILURES_MAX == world.begun.count("bad.1")
    await setting.gone("good.1")

    broken = False
    retry = Retry(request="r", tenant="acme", ids=("hook.bad.1",), by="op")
    await setting.shard.engine.operate([retry])
    await setting.gone("bad.1")
    assert {} == _asides(setting)


async def test_what_cannot_be_given_up_for_its_age_holds_up_no_other(setting: Setting) -> None:
    """Both are too old and given up without an attempt; the decision fails for the first one."""
    # The decision asserts that the attempt it plans is the first or a later one.
    await _poisoned(setting, lambda each: records.encode(replace(each, attempts=-1)))
    setting.shard.clock.pass_ms(AGE_MAX_MS)
    setting.shard.log.lead()
    [dead] = await setting.died(1)
    await _until(setting, lambda: "bad.1" in _asides(setting))

    assert "good.1" == dead.id
