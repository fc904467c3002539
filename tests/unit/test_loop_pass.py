"""A pass of the loop: its order, its bounds, and calls that fail."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from weakref import ref

from codeq_cluster.loop_pass import LoopPass


async def test_a_pass_ends_with_the_work_its_calls_requested() -> None:
    """The turns of two groups share one write of the log and one frame in one pass."""
    loop = asyncio.get_running_loop()
    shared, order = LoopPass.of(loop), list[str]()

    def turn(name: str) -> None:
        order.append(f"turn of {name}")
        shared.last(partial(order.append, f"frame of {name}"))

    shared.soon(partial(turn, "a"))
    shared.soon(partial(turn, "b"))
    loop.call_soon(order.append, "next pass")
    await asyncio.sleep(0)

    assert ["turn of a", "turn of b", "frame of a", "frame of b", "next pass"] == order


async def test_a_call_that_asks_for_another_waits_a_pass() -> None:
    """Sockets are served in between, so that no group can starve the others."""
    loop = asyncio.get_running_loop()
    shared, order = LoopPass.of(loop), list[str]()
    shared.soon(lambda: shared.soon(partial(order.append, "second")) and None)
    shared.last(lambda: shared.last(partial(order.append, "last but one")) and None)
    loop.call_soon(order.append, "between")
    for _ in range(2):
        await asyncio.sleep(0)

    assert ["between", "second", "last but one"] == order


async def test_a_call_that_fails_is_reported_and_the_others_follow() -> None:
    """The loop reports one group's error as if each call had a pass of its own."""
    loop = asyncio.get_running_loop()
    shared, order, reported = LoopPass.of(loop), list[str](), list[BaseException]()
    loop.set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
    shared.soon(partial(int, "no number"))
    shared.soon(partial(order.append, "soon"))
    shared.last(partial(order.append, "last"))
    await asyncio.sleep(0)
    shared.soon(partial(order.append, "later"))
    await asyncio.sleep(0)

    assert ["invalid literal for int() with base 10: 'no number'"] == [
        str(error) for error in reported
    ]
    assert ["soon", "last", "later"] == order


async def test_the_parts_of_a_node_share_a_pass() -> None:
    """The pass belongs to the loop, whichever part asks."""
    loop = asyncio.get_running_loop()

    assert LoopPass.of(loop) is LoopPass.of(loop)


def test_a_loop_that_is_over_is_forgotten_with_its_parts() -> None:
    """A suite that starts a broker in each test keeps none of them."""
    loop = asyncio.new_event_loop()
    part = LoopPass.of(loop)
    part.soon(loop.stop)
    loop.run_forever()
    loop.close()
    gone = ref(loop)
    del loop, part
    gc.collect()

    assert gone() is None
