"""The line of reads: one at a time, tenants in turns, and a rest after those that take long."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.broker.engine.reads import Reads

pytestmark = pytest.mark.asyncio


async def test_reads_go_one_by_one_and_tenants_take_turns() -> None:
    """However many one tenant asks for, another's is next."""
    reads, order, goes_on = Reads(), list[str](), asyncio.Event()

    async def read(name: str) -> str:
        order.append(name)
        await goes_on.wait()
        return name

    async def ask(tenant: str, name: str) -> str:
        return await reads.in_turn(tenant, lambda: read(name))

    asked = [asyncio.ensure_future(ask("acme", f"a{number}")) for number in range(4)]
    await asyncio.sleep(0)
    asked.append(asyncio.ensure_future(ask("zeta", "z")))
    await asyncio.sleep(0)
    under_way = list(order)
    goes_on.set()

    assert ["a0", "a1", "a2", "a3", "z"] == await asyncio.gather(*asked)
    assert ["a0"] == under_way
    assert order.index("z") <= 2


async def test_a_read_that_is_given_up_when_its_turn_comes_leaves_no_place_taken() -> None:
    """The next one begins at once, in the same step."""
    reads, waiting = Reads(), list[asyncio.Future[None]]()

    async def nothing() -> None:
        pass

    async def read() -> None:
        waiting.append(asyncio.ensure_future(reads.in_turn("zeta", nothing)))
        await asyncio.sleep(0)

    await reads.in_turn("acme", read)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]

    with pytest.raises(StopIteration):
        reads.in_turn("acme", nothing).send(None)


async def test_after_a_read_that_took_long_the_line_rests_as_long() -> None:
    """Its time is the loop's; one that fails counts as well, and a short one does not."""
    now_s, begun = [0.0], list[float]()
    loop = asyncio.get_running_loop()
    reads = Reads(lambda: now_s[0])

    async def read(took_s: float) -> None:
        begun.append(loop.time())
        now_s[0] += took_s
        if took_s > 0.05:
            raise ValueError("unreadable")

    with pytest.raises(ValueError, match="unreadable"):
        await reads.in_turn("acme", lambda: read(0.06))
    await reads.in_turn("zeta", lambda: read(0.04))
    await reads.in_turn("acme", lambda: read(0.0))
    first, second, third = begun

    assert second - first >= 0.059
    assert third - second >= 0.039
