"""Portions: a long loop does not hold up other work."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.portions import BODIES_AT_ONCE, in_parts, in_portions


@pytest.mark.parametrize(("at_once", "least"), [((), 10), ((BODIES_AT_ONCE,), 100)])
async def test_other_work_runs_between_the_portions_of_a_long_loop(
    at_once: tuple[int, ...], least: int
) -> None:
    """A tenant with many queues delays nobody while they are listed."""
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(other_work())
    seen = [thing async for thing in in_portions(range(10_000), *at_once)]
    other.cancel()

    assert list(range(10_000)) == seen
    assert least <= turns


@pytest.mark.parametrize(
    ("things", "parts"),
    [
        ([], []),
        (["aa", "bbb"], [("aa", "bbb")]),
        (["aa", "bbbb"], [("aa",), ("bbbb",)]),
        (["a", "b", "c", "d"], [("a", "b", "c"), ("d",)]),
        (["above all", "a"], [("above all",), ("a",)]),
        (["a", "above all"], [("a",), ("above all",)]),
    ],
)
def test_parts_keep_the_order_and_the_bounds(
    things: list[str], parts: list[tuple[str, ...]]
) -> None:
    """What is at a bound fits, and what no part has room for is a part by itself."""
    assert parts == list(in_parts(things, len, size_max=5, count_max=3))
