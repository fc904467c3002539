"""Portions: a long loop does not hold up other work."""

from __future__ import annotations

import asyncio

from codeq_cluster.portions import in_portions


async def test_other_work_runs_between_the_portions_of_a_long_loop() -> None:
    """A tenant with many queues delays nobody while they are listed."""
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(other_work())
    seen = [thing async for thing in in_portions(range(10_000))]
    other.cancel()

    assert list(range(10_000)) == seen
    assert turns >= 10
