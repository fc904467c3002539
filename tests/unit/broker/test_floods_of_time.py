"""Floods of time: thousands of instants that are due at once are all handled, without a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from codeq_cluster.codec import keyspace
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import Counters
from codeq_cluster.core.task_ids import task_id

from .conftest import GRACE_MS, START_MS, Shard, claim, create, submit

pytestmark = pytest.mark.asyncio

TASKS = 2000
LEASE_MS = 5  # Timers run in real time, while the clock of decisions stands still.


async def _until(shard: Shard, happened: Callable[[], bool]) -> None:
    """Wait for timers and applied entries until the condition holds."""
    applied = asyncio.Event()
    shard.engine.on_rows(lambda _: applied.set())
    async with asyncio.timeout(60):
        while not happened():
            await applied.wait()
            applied.clear()


def _counters(shard: Shard) -> Counters:
    return shard.engine.replica.counters.get(("render", "acme"), Counters())


async def _lease_all(shard: Shard) -> None:
    shard.clock.pass_ms(GRACE_MS)
    for first in range(0, TASKS, 500):
        await shard.engine.operate([create(f"t{n}") for n in range(first, first + 500)])
    for number in range(4):
        [got] = await shard.engine.operate([claim(f"r{number}", count=500, lease_ms=LEASE_MS)])
        assert isinstance(got, Claimed)
        assert 500 == len(got.tasks)


async def test_every_task_comes_back_when_all_workers_are_dead(shard: Shard) -> None:
    """No client calls; each lease ends and each task is ready again."""
    await _lease_all(shard)
    assert TASKS == _counters(shard).leased
    shard.clock.pass_ms(LEASE_MS)
    await _until(shard, lambda: not _counters(shard).leased)

    assert (TASKS, 0) == (_counters(shard).ready, _counters(shard).delayed)
    [again] = await shard.engine.operate([claim("again", worker="bob", count=TASKS)])
    assert isinstance(again, Claimed)
    assert {f"t{number}" for number in range(TASKS)} == {task.id for task in again.tasks}
    assert {2} == {task.attempts for task in again.tasks}


async def test_everything_whose_retention_is_over_is_deleted(shard: Shard) -> None:
    """Nothing remains of tasks, payloads, results, or any row that names them."""
    await _lease_all(shard)
    for first in range(0, TASKS, 500):
        await shard.engine.operate([submit(f"t{n}") for n in range(first, first + 500)])
    shard.log.depose()
    shard.clock.pass_ms(LifetimeRules().retention_ms)
    shard.log.lead()
    await _until(shard, lambda: _counters(shard) == Counters())

    rows = shard.store.state.scan(b"", b"\xff", 10)
    assert all(keyspace.family(key) is keyspace.Family.META for key, _ in rows), rows


async def test_a_tenants_backlog_makes_no_others_timers_late(shard: Shard) -> None:
    """They are among the first that are acted on, in order, and the backlog goes on beside them."""
    mine = [task_id("acme", number.to_bytes(16)) for number in range(600)]
    leased, *delayed = (task_id("zeta", number.to_bytes(16)) for number in range(4))
    due_ms = START_MS + 1000
    await shard.engine.operate([create(each, run_at_ms=due_ms) for each in mine])
    await shard.engine.operate(
        [
            create(each, tenant="zeta", run_at_ms=due_ms + late_ms)
            for each, late_ms in zip(delayed, (1, 1500, 3900), strict=True)
        ]
    )
    await shard.engine.operate([create(leased, tenant="zeta")])
    await shard.engine.operate([claim("c", tenant="zeta", lease_ms=3000)])
    shard.clock.pass_ms(5000)
    await shard.engine.operate([create("now", command="look")])
    due = shard.engine.view.due(100, leases_too=True)

    assert 96 == len(set(due) & set(mine))
    assert [*delayed[:2], leased, delayed[2]] == list(due[96:])
