"""Bulk pace: a job that has to wait for its entries leaves more of the time to others."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.broker.engine.timers import Timers
from codeq_cluster.core.bulk import PAUSE_MS_MAX, RESTS
from codeq_cluster.core.operations import Advance, Operation

from .conftest import Shard, claim, create

pytestmark = pytest.mark.asyncio

LEASE_MS = 1


async def _pauses(shard: Shard, took_ms: list[int]) -> list[int]:
    """Return what each of a leader's advances says of pauses, if they take so long."""
    said: list[int] = []
    left = list(took_ms)
    over = asyncio.Event()

    async def act(operation: Operation) -> None:
        assert isinstance(operation, Advance)
        if not left:
            over.set()
            return
        said.append(operation.pause_ms)
        shard.clock.pass_ms(left.pop(0))

    timers = Timers(
        0,
        shard.engine.view,
        now_ms=lambda: shard.engine.now_ms,
        leases_from_ms=0,
        act=act,
        failed=_nothing,
    )
    timers.arm()
    async with asyncio.timeout(10):
        await over.wait()
    timers.stop()
    return said


def _nothing() -> None:
    pass


async def test_pauses_follow_how_long_steps_take(shard: Shard) -> None:
    """Longer at once, shorter by halves, and never beyond the bound that a job relies on."""
    shard.log.held = True
    shard.engine.begin([create("t"), claim("c", lease_ms=LEASE_MS)], _ignored())
    shard.clock.pass_ms(LEASE_MS)
    said = await _pauses(shard, [10, 1, 1, 10_000, 1])

    assert [0, 10 * RESTS, 5 * RESTS, 5 * RESTS // 2, PAUSE_MS_MAX] == said


def _ignored() -> asyncio.Future[list[object]]:
    return asyncio.get_running_loop().create_future()
