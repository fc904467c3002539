"""Gathering: requests that reach a node at about the same time go out in one call.

The batch route takes many creates in one call, and the broker decides such a call by another path
than single creates. Each client still gets its own answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from random import Random
from typing import Generic, TypeVar

_GATHER_S = 0.05
_SHARE = 0.5  # The share of seeds whose clients gather.

_N = TypeVar("_N", bound=Hashable)
_I = TypeVar("_I")
_A = TypeVar("_A")


def gathers(seed: int) -> bool:
    """Return whether the clients of a seed gather, without changing the seed's other draws."""
    return Random(f"{seed}/gathers").random() < _SHARE


class Gathered(Generic[_N, _I, _A]):
    """The requests on their way to each node.

    Args:
        call: Sends several items to a node and returns their answers in order. If it raises, each
            item fails with that error.
    """

    def __init__(self, call: Callable[[_N, list[_I]], Awaitable[list[_A]]]) -> None:
        self._call = call
        self._waiting: dict[_N, list[tuple[_I, asyncio.Future[_A]]]] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def send(self, node: _N, item: _I) -> _A:
        """Return the answer to an item; it is sent together with others that come within 50 ms."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_A] = loop.create_future()
        waiting = self._waiting.setdefault(node, [])
        waiting.append((item, answer))
        if len(waiting) == 1:
            call = loop.create_task(self._send(node))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        return await answer

    async def _send(self, node: _N) -> None:
        await asyncio.sleep(_GATHER_S)
        waiting = self._waiting.pop(node)
        try:
            answers = await self._call(node, [item for item, _ in waiting])
        except Exception as error:  # noqa: BLE001 - each caller handles it as its own
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), got in zip(waiting, answers, strict=True):
            if not answer.done():
                answer.set_result(got)
