"""Waiting: waits for a state of other processes, with a bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02
# For everything that must come: a minute, since a loaded machine is slow. A wait has another bound
# only where the bound itself is promised.
WITHIN_S = 60.0


class ClusterError(AssertionError):
    """A state was not reached in time; the text names it, and shows logs if there are any."""


async def until(
    condition: Callable[[], Awaitable[T | None]], *, what: str, within_s: float = WITHIN_S
) -> T:
    """Return the first answer of `condition` that is neither None nor False.

    Args:
        condition: Called every 20 ms.
        what: The awaited state, for the error.
        within_s: Seconds before the wait is given up.

    Raises:
        ClusterError: The condition did not hold in time.
    """
    answer = await soon(condition, within_s=within_s)
    if answer is None:
        raise ClusterError(f"not within {within_s:g} s: {what}")
    return answer


async def soon(condition: Callable[[], Awaitable[T | None]], *, within_s: float) -> T | None:
    """Return the first answer of `condition` that is neither None nor False; None if it is late.

    Args:
        condition: Called every 20 ms, and at least once.
        within_s: Seconds before the wait is given up.
    """
    deadline = time.monotonic() + within_s
    while True:
        answer = await condition()
        if answer is not None and answer is not False:
            return answer
        if time.monotonic() > deadline:
            return None
        await asyncio.sleep(POLL_S)
