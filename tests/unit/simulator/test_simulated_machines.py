"""Simulated machines: loops that die and freeze, and disks that refuse."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from codeq_cluster.errors import StorageFailed
from tests.simulator.clock import SimClock
from tests.simulator.disk import SimDisk
from tests.simulator.loop import SimLoop, new_loop


async def _count(told: list[str], name: str) -> None:
    while True:
        told.append(name)
        await asyncio.sleep(1)


def _started(clock: SimClock, told: list[str], name: str) -> SimLoop:
    loop = new_loop(clock)
    loop.create_task(_count(told, name))
    return loop


def test_processes_share_one_clock() -> None:
    """Each process runs on its own loop, all in the order of one virtual time."""
    clock, told = SimClock(), list[str]()
    loops = [_started(clock, told, name) for name in "ab"]
    clock.run_until(clock.now + 1.5)

    assert list("abab") == told
    for loop in loops:
        loop.kill()
        loop.bury()


def test_a_killed_process_runs_nothing_any_more_and_leaves_nothing() -> None:
    """Its coroutines end when it is cleared away, without an effect on other processes."""
    clock, told = SimClock(), list[str]()
    loop = _started(clock, told, "a")
    clock.run_until(clock.now + 0.5)
    loop.kill()
    clock.run_until(clock.now + 5)
    now = clock.now
    loop.bury()

    assert (["a"], now) == (told, clock.now)
    assert not asyncio.all_tasks(loop)


def test_a_frozen_process_does_it_all_later_and_in_order() -> None:
    """Due calls, and calls from outside, wait until it continues."""
    clock, told = SimClock(), list[str]()
    loop = new_loop(clock)
    loop.call_later(1, told.append, "first")
    loop.stand_still(clock.now + 3)
    clock.run_until(clock.now + 2)
    loop.enter(told.append, "second")
    before = list(told)
    clock.run_until(clock.now + 2)

    assert ([], ["first", "second"]) == (before, told)


def test_a_call_into_another_process_returns_to_its_own_loop() -> None:
    """A coroutine that calls into another process returns to its own loop."""
    clock, told = SimClock(), list[str]()
    here, there = new_loop(clock), new_loop(clock)

    async def across() -> None:
        there.enter(told.append, "there")
        assert asyncio.get_running_loop() is here
        told.append("here")

    here.create_task(across())
    clock.run_until(clock.now + 1)

    assert (["there", "here"], []) == (told, here.failures)


def test_no_later_sync_makes_up_for_a_write_that_was_refused() -> None:
    """After a power cut, writes that a full disk refused exist only if nothing else was lost."""
    disk = SimDisk()
    disk.write([(b"a", b"1")], sync=True)
    disk.full = True
    with pytest.raises(StorageFailed):
        disk.write([(b"b", b"2")], sync=True)
    disk.full = False
    disk.write([(b"c", b"3")], sync=True)
    disk.crash(Random(1))

    assert (b"1", None, b"3") == (disk.get(b"a"), disk.get(b"b"), disk.get(b"c"))


def test_a_power_cut_undoes_deletions_that_were_not_synced() -> None:
    """After a power cut a row may be back if its deletion was not synced, and only then."""
    kept = set()
    for seed in range(20):
        disk = SimDisk()
        disk.write([(b"a", b"1"), (b"b", b"2")], sync=True)
        disk.write([], deletes=[b"a"], sync=True)
        disk.write([], deletes=[b"b"], sync=False)
        disk.crash(Random(seed))
        assert disk.get(b"a") is None
        kept.add(disk.get(b"b"))

    assert {None, b"2"} == kept
