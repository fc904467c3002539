"""Reads: the line of a node's reads of many rows, in which tenants take turns.

Such a read takes up to tens of milliseconds of the loop on which all entries are decided. One is
under way at a time, and after one that took long the line rests for as long: so they have half of
the loop at most, however many are asked for, also by other nodes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from codeq_cluster.fair_turns import FairTurns

_A = TypeVar("_A")

_WITHIN_S: Final = 5.0  # As long as a request.
_LONG_S: Final = 0.002
_REST_S_MAX: Final = 0.25


def _loop_s() -> float:
    return asyncio.get_running_loop().time()


class Reads:
    """The line of one node.

    Args:
        now_s: Monotonic seconds.
        name: In refusals.
    """

    def __init__(
        self, now_s: Callable[[], float] = _loop_s, *, name: str = "the line of reads"
    ) -> None:
        self._now_s = now_s
        self._line = FairTurns(1, name=name, now_s=now_s)

    async def in_turn(self, tenant: str, read: Callable[[], Awaitable[_A]]) -> _A:
        """Read when it is the tenant's turn; raises Overloaded if that does not come in time."""
        line, place, begun_s = self._line, object(), math.inf
        try:
            if not line.begin(place, tenant, 1):
                await line.turn(place, tenant, 1, member="", within_s=_WITHIN_S)
            begun_s = self._now_s()
            return await read()
        finally:
            took_s = self._now_s() - begun_s
            if took_s < _LONG_S:
                line.end(place)
            else:
                rest_s = min(took_s, _REST_S_MAX)
                asyncio.get_running_loop().call_later(rest_s, line.end, place)
