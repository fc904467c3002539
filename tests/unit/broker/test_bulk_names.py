"""The name of a bulk job: a repeated start makes up what is missing, and nothing begins again."""

from __future__ import annotations

import pytest

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.requests.bulk_jobs import BulkJobs, Job
from codeq_cluster.broker.values import Caller
from codeq_cluster.core.bulk import (
    KEPT_MS,
    RESUMED_MS,
    STEP_MS,
    ActionKind,
    BulkAction,
    StartBulk,
    StopBulk,
)
from codeq_cluster.core.operations import Advance
from codeq_cluster.core.selecting import Selection
from tests.fakes.memory_store import MemoryShard

from .conftest import TestClock, make_shard, shards_of

pytestmark = pytest.mark.asyncio

SELECT, ACTION = Selection(queue="render"), BulkAction(kind=ActionKind.CANCEL)


class World:
    """Two shards with one clock, whose time passes when the test says so."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.shards = [
            make_shard(MemoryShard(), self.clock, number=number, shards=2) for number in range(2)
        ]
        for shard in self.shards:
            shard.log.lead()
        self.jobs = BulkJobs(shards_of(*self.shards), self.clock)

    async def start(self) -> Job:
        """Ask for the job."""
        found = await self.jobs.start(_caller(), "j", SELECT, ACTION)
        assert isinstance(found, Job)
        return found

    async def passed(self, ms: int) -> None:
        """Let time pass, and every shard act on it."""
        self.clock.pass_ms(ms)
        for shard in self.shards:
            await shard.engine.operate([Advance(count=10)])

    async def parts(self) -> int:
        """Return on how many shards the job is."""
        found = await self.jobs.get(_caller(), "j")
        return 0 if found is None else len(found.parts)


def _caller() -> Caller:
    return Caller("acme", "ops", deadline_in(10))


def _begin() -> StartBulk:
    return StartBulk(request="r", tenant="acme", id="j", by="ops", select=SELECT, action=ACTION)


async def test_a_start_that_is_repeated_soon_begins_the_missing_parts() -> None:
    """The first one reached one shard, whose part has ended already."""
    world = World()
    await world.shards[0].engine.operate([_begin()])
    await world.passed(RESUMED_MS - 1)
    job = await world.start()

    assert [True, False] == [part.ended_ms > 0 for part in job.parts]


async def test_a_name_that_is_used_again_begins_on_all_shards_or_on_none() -> None:
    """One shard has forgotten its part, and the other has it a moment longer."""
    world = World()
    await world.start()
    stop = StopBulk(request="s", tenant="acme", id="j", by="ops")
    await world.shards[0].engine.operate([stop])
    world.clock.pass_ms(STEP_MS - 1)
    await world.shards[1].engine.operate([stop])
    world.clock.pass_ms(KEPT_MS - STEP_MS + 1)
    await world.passed(0)
    half = await world.parts()
    old = await world.start()
    still = await world.parts()
    await world.passed(STEP_MS)
    gone = await world.parts()
    new = await world.start()

    assert [1, 1, 0] == [half, still, gone]
    assert [1, 2] == [len(old.parts), len(new.parts)]
    assert not old.is_live
    assert new.is_live
