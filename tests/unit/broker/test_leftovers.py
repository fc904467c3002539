"""Leftovers: no row of an earlier state can bring a task back."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.codec import keyspace
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.operations import Heartbeat
from codeq_cluster.core.outcomes import Claimed, Extended, Returned, Submitted
from codeq_cluster.core.task import State

from .conftest import GRACE_MS, Shard, claim, create, submit

pytestmark = pytest.mark.asyncio

HOUR_MS = 3_600_000


async def _elapse(shard: Shard, ms: int) -> None:
    """Let time pass and run due timers once."""
    applied = asyncio.Event()
    shard.engine.on_rows(lambda _: applied.set())
    shard.clock.pass_ms(ms)
    async with asyncio.timeout(60):
        await applied.wait()


async def _finish_after_a_long_life(shard: Shard) -> None:
    """Take t1 through a delay, a nack with a backoff, an extended lease, and its result."""
    shard.clock.pass_ms(GRACE_MS)
    await shard.engine.operate([create("t1", delay_ms=5)])
    await _elapse(shard, 5)
    [first] = await shard.engine.operate([claim("r1")])
    nack = Nack(request="n1", id="t1", tenant="acme", worker="ann", delay_ms=6)
    [returned] = await shard.engine.operate([nack])
    await _elapse(shard, 6)
    [second] = await shard.engine.operate([claim("r2", lease_ms=7)])
    heartbeat = Heartbeat(id="t1", tenant="acme", worker="ann", extend_ms=60_000)
    [extended] = await shard.engine.operate([heartbeat])
    [submitted] = await shard.engine.operate([submit("t1")])

    assert isinstance(first, Claimed)
    assert isinstance(returned, Returned)
    assert isinstance(second, Claimed)
    assert isinstance(extended, Extended)
    assert isinstance(submitted, Submitted)


async def test_a_finished_task_has_no_row_of_an_earlier_state(shard: Shard) -> None:
    """It has a record, payload, result, a place among the finished, and a retention; no more."""
    await _finish_after_a_long_life(shard)

    named = [key for key, _ in shard.store.state.scan(b"", b"\xff", 100) if b"t1" in key]

    assert {Family.TASK, Family.PAYLOAD, Family.RESULT, Family.DONE, Family.TTL} == {
        keyspace.family(key) for key in named
    }
    assert 5 == len(named)


async def test_no_instant_of_an_earlier_state_brings_a_finished_task_back(shard: Shard) -> None:
    """All its delays and leases have passed, and timers have run on another task since."""
    await _finish_after_a_long_life(shard)
    await shard.engine.operate([create("t2", delay_ms=HOUR_MS)])
    await _elapse(shard, HOUR_MS)

    [claimed] = await shard.engine.operate([claim("r3", count=10)])

    assert isinstance(claimed, Claimed)
    assert ["t2"] == [task.id for task in claimed.tasks]
    ended = [c.after for c in shard.seen.changes if c.after is not None and c.after.id == "t1"][-1]
    assert ended.state is State.DONE
