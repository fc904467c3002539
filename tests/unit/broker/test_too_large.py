"""Operations that are too large for an entry, in one batch with others that are not."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.requests.producer import on_their_shards
from codeq_cluster.broker.requests.triage import Triage
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Submit
from codeq_cluster.core.outcomes import Changed, Submitted
from codeq_cluster.core.schedules import (
    Backfill,
    BackfillSchedule,
    Due,
    FillBack,
    Fire,
    Overlap,
    Plan,
    PutSchedule,
    Schedule,
    Timing,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.errors import OperationTooLarge
from tests.fakes.memory_store import MemoryShard

from .conftest import Shard, TestClock, claim, create, make_shard, shards_of, submit

pytestmark = pytest.mark.asyncio

_ENTRY_BYTES_MAX = 20_000
_PAYLOAD = '"%s"' % ("x" * 4_000)


def _submit(task_id: str, *, too_large: bool) -> Submit:
    body = '"%s"' % ("x" * _ENTRY_BYTES_MAX) if too_large else "{}"
    return submit(task_id, body=body)


@pytest.mark.parametrize("largest", [0, 1, 2])
async def test_one_that_is_too_large_says_nothing_of_the_others(largest: int) -> None:
    """Wherever it is among the others, they are done and answered."""
    shard = make_shard(MemoryShard(), TestClock(), entry_bytes_max=_ENTRY_BYTES_MAX)
    shard.log.lead()
    shards = shards_of(shard)
    ids = ["t0", "t1", "t2"]
    await shard.engine.operate([create(task_id) for task_id in ids])
    await shard.engine.operate([claim("c", count=3)])
    placed = [(0, _submit(each, too_large=each == ids[largest])) for each in ids]

    answers = await on_their_shards(shards, placed, timeout_s=5)

    expected = [OperationTooLarge if each == largest else Submitted for each in range(3)]
    assert expected == [type(answer) for answer in answers]
    shard.engine.stop()


async def _put(shard: Shard, name: str) -> Schedule:
    """Make a schedule, of whose runs an entry holds some."""
    task = Create(command="render", payload=_PAYLOAD)
    plan = Plan(timing=Timing(every="1s"), task=task, overlap=Overlap.ALLOW)
    put = PutSchedule(
        request=name,
        tenant="acme",
        id=name,
        by="ops",
        plan=plan,
        at_ms=1000,
        next_ms=2000,
        zone_rules="",
    )
    await shard.engine.operate([put])
    return _stored(shard, name)


def _stored(shard: Shard, name: str) -> Schedule:
    record = shard.store.state.get(keyspace.item(ItemKind.SCHEDULE, "acme", name))
    assert record is not None
    schedule = records.decode_item(record)
    assert isinstance(schedule, Schedule)
    return schedule


def _fire(at: Schedule, *seconds: int) -> Fire:
    return Fire(
        tenant="acme",
        id=at.id,
        generation=at.generation,
        version=at.version,
        from_ms=at.done_ms,
        runs=tuple(Due(1000 * each) for each in seconds),
        missed=3,
        done_ms=1000 * seconds[-1] + 3000,
        next_ms=1000 * seconds[-1] + 4000,
        zone_rules="",
    )


async def test_decisions_that_fit_no_entry_together_have_one_each() -> None:
    """The log takes no entry that is larger than its bound, however many wait for one."""
    shard = make_shard(MemoryShard(), TestClock(), entry_bytes_max=_ENTRY_BYTES_MAX)
    shard.log.lead()
    shard.log.held = True
    async with asyncio.TaskGroup() as callers:
        for number in range(4):
            new = [create(f"t{number}.{each}", payload=_PAYLOAD) for each in range(3)]
            callers.create_task(shard.engine.operate(new))
        await asyncio.sleep(0)
        shard.log.take()
        sizes = [len(payload) for _, payload in shard.log.taken]
        shard.log.commit()

    assert 4 == len(sizes)
    assert max(sizes) <= _ENTRY_BYTES_MAX
    shard.engine.stop()


async def test_a_firing_that_is_too_large_leaves_some_runs_due() -> None:
    """So does a step of a backfill; what is behind them is not decided either."""
    shard = make_shard(MemoryShard(), TestClock(), entry_bytes_max=_ENTRY_BYTES_MAX)
    shard.log.lead()
    fired = await shard.engine.operate([_fire(await _put(shard, "s"), 2, 3, 4, 5, 6, 7)])
    at = _stored(shard, "s")
    walk = Backfill(name="b", done_ms=0, to_ms=8000, overlap=Overlap.ALLOW, force=True)
    filling = FillBack(
        tenant="acme",
        id="s",
        generation=at.generation,
        from_ms=0,
        runs=tuple(Due(each) for each in (1, 2, 3, 4, 5, 6)),
        done_ms=8000,
    )
    await shard.engine.operate(
        [BackfillSchedule(request="b", tenant="acme", id="s", by="ops", backfill=walk), filling]
    )
    after = _stored(shard, "s").backfill

    assert [Changed(1)] == fired
    assert (4000, 5000, 3, 0) == (at.done_ms, at.next_ms, at.made, at.missed)
    assert after is not None
    assert (3, 3) == (after.done_ms, after.made)
    shard.engine.stop()


async def test_a_purge_that_is_too_large_is_done_in_parts() -> None:
    """The end of each run changes the row of its schedule, which has the whole template."""
    shard = make_shard(MemoryShard(), TestClock(), entry_bytes_max=_ENTRY_BYTES_MAX)
    shard.log.lead()
    names = [f"s{number}" for number in range(8)]
    for name in names:
        await shard.engine.operate([_fire(await _put(shard, name), 2)])
    caller = Caller("acme", "ops", deadline_in(5))
    purged = await Triage(shards_of(shard)).purge(caller, "render", limit=100)

    assert (8, 8) == (len(purged.ids), purged.changed)
    assert [()] * 8 == [_stored(shard, name).open for name in names]
    shard.engine.stop()
