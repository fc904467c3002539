"""Deadlines: the instants by which calls must be answered, and waits that end at theirs."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

SWEEP_S = 0.1

_T = TypeVar("_T")


def deadline_in(timeout_s: float) -> float:
    """Return the instant `timeout_s` from now, monotonic seconds of this node."""
    return asyncio.get_running_loop().time() + timeout_s


class Deadlines:
    """The waits of one event loop, which one timer ends in time.

    A timer for every operation would cost as much as waking the Raft group, and hardly any of them
    would fire.
    """

    def __init__(self) -> None:
        self._until: dict[asyncio.Future[Any], float] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def watch(self, wait: asyncio.Future[_T], until: float) -> None:
        """End a wait with TimeoutError at `until` by the loop's clock, or up to `SWEEP_S` later."""
        self._until[wait] = until
        if self._sweep is None:
            self._arm(wait.get_loop())

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = loop.call_later(SWEEP_S, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for wait, until in list(self._until.items()):
            if not wait.done() and now < until:
                continue
            del self._until[wait]
            if not wait.done():
                wait.set_exception(TimeoutError())
        self._sweep = None
        if self._until:
            self._arm(loop)
