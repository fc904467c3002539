"""Deadlines: a wait ends in time, one that has ended is left alone, an idle loop has no timer."""

from __future__ import annotations

import asyncio

from codeq_cluster.broker.deadlines import SWEEP_S, Deadlines
from tests.simulator.clock import SimClock
from tests.simulator.loop import SimLoop, new_loop


def a_loop() -> tuple[SimClock, SimLoop, Deadlines]:
    """Return virtual time, a loop on it, and the deadlines of its waits."""
    clock = SimClock()
    return clock, new_loop(clock), Deadlines()


def test_a_wait_ends_at_its_deadline() -> None:
    """The wait ends no earlier, and at most one sweep later."""
    clock, loop, deadlines = a_loop()
    wait: asyncio.Future[str] = loop.create_future()
    deadlines.watch(wait, loop.time() + 1.0)

    clock.run_until(clock.now + 0.99)
    early = wait.done()
    clock.run_until(clock.now + 0.02 + SWEEP_S)

    assert not early
    assert isinstance(wait.exception(), TimeoutError)


def test_a_wait_that_has_ended_is_left_alone() -> None:
    """Its outcome stays."""
    clock, loop, deadlines = a_loop()
    wait: asyncio.Future[str] = loop.create_future()
    deadlines.watch(wait, loop.time() + 1.0)
    wait.set_result("done")

    clock.run_until(clock.now + 2.0)

    assert "done" == wait.result()


def test_a_loop_without_waits_has_no_timer() -> None:
    """The timer is also gone after the last wait."""
    clock, loop, deadlines = a_loop()
    wait: asyncio.Future[str] = loop.create_future()
    deadlines.watch(wait, loop.time() + 1.0)
    wait.set_result("done")

    clock.run_until(clock.now + 2.0)

    assert not clock.step()
