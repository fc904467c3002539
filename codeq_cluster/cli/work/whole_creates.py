"""Whole creates: those that go on when their caller is cancelled, so that every task is known."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

CLEAN_S_MAX: Final = 10.0  # For the creates under way, and then for the cancels of their tasks.


class WholeCreates:
    """The creates of one run; one that was cut off would leave a task that nobody knows of."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self, create: Coroutine[Any, Any, None]) -> None:
        """Await a create; it goes on if this is cancelled."""
        task = asyncio.create_task(create)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        await asyncio.shield(task)

    async def settle(self) -> None:
        """Wait for those under way, for `CLEAN_S_MAX` seconds at most."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLEAN_S_MAX)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # Read here: whoever waited for it may be gone.
