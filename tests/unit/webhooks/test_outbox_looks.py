"""Looks at an outbox: what they cost while jobs wait for a server that takes none."""

from __future__ import annotations

import asyncio

from codeq_cluster.core.operations import Undelivered
from codeq_cluster.webhooks.outbox import APART_MS, IN_SIGHT
from tests.fakes.memory_store import MemoryShard
from tests.unit.webhooks.test_outbox import LiveClock, Setting, setting, setting_over

__all__ = ["setting"]

BACKLOG = IN_SIGHT // 4
DEAD = ("acme", "dead")


async def _look(setting: Setting) -> None:
    looked = asyncio.Event()
    setting.outbox_jobs.look_soon()
    asyncio.get_running_loop().call_soon(looked.set)
    await looked.wait()


async def test_a_look_asks_for_room_once_for_each_place_and_reads_a_job_once(
    setting: Setting,
) -> None:
    """A backlog for a dead server costs other tenants' jobs little, at each of many looks."""
    world = setting.world
    world.room["dead"] = 0
    await setting.end(*(f"s{n}" for n in range(BACKLOG)), url="http://dead/hook")
    await setting.end("other", tenant="globex")
    await setting.gone("other.1")
    world.asked.clear()
    looks = 5
    for _ in range(looks):
        await _look(setting)

    assert {DEAD} == set(world.asked)
    # The timer may have caused another look.
    assert looks <= len(world.asked) <= looks + 1
    assert BACKLOG + 1 == len(world.placed)
    assert ["other.1"] == world.begun


async def test_room_for_some_is_given_to_the_first_and_no_others() -> None:
    """What a look begins at a place counts there although its room was asked for before."""
    setting = setting_over(MemoryShard(), LiveClock())
    world = setting.world
    world.room["swift"] = 3
    world.held = {f"t{n}.1" for n in range(10)}
    setting.shard.log.lead()
    await setting.end(*(f"t{n}" for n in range(10)))
    await world.until(lambda: len(world.begun) >= 3)
    await _look(setting)

    assert ["t0.1", "t1.1", "t2.1"] == world.begun
    await setting.stop()


async def test_jobs_that_return_one_after_the_other_are_looked_at_together() -> None:
    """Deferred jobs are due a few milliseconds apart, and a look judges all that are in sight."""
    setting = setting_over(MemoryShard(), LiveClock())
    setting.shard.log.lead()
    world = setting.world
    world.room["dead"] = world.room["swift"] = 0
    ids = [f"s{n}" for n in range(BACKLOG)]
    await setting.end(*ids, url="http://dead/hook")
    await setting.end("last")
    await setting.shard.engine.operate(
        [
            Undelivered(tenant="acme", id=f"{each}.1", attempt=1, deferred_ms=500 + n * APART_MS)
            for n, each in enumerate([*ids, "last"])
        ]
    )
    world.room["swift"] = 1
    world.asked.clear()
    await world.until(lambda: world.begun == ["last.1"])

    assert 1 <= world.asked.count(DEAD) <= BACKLOG // 4
    await setting.stop()
