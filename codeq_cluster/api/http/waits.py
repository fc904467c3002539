"""Waits: requests that wait, and their early end when the node stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class WaitEnded(Exception):
    """The node stops, so the wait ends early."""


class Waits:
    """The waiting requests of one node.

    A planned stop must neither leave clients without an answer nor last as long as their waits.
    Each wait therefore ends as if its time were over.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = False

    async def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Return what the call returns.

        Raises:
            WaitEnded: The node stops; the call was cancelled.
        """
        task = asyncio.current_task()
        assert task is not None
        if self._ended:
            call.close()
            raise WaitEnded
        self._tasks.add(task)
        try:
            return await call
        except asyncio.CancelledError as cancelled:
            # A disconnected client cancels too; only the cancellation by `end` is undone.
            if not self._ended or task.uncancel() > 0:
                raise
            raise WaitEnded from cancelled
        finally:
            self._tasks.discard(task)

    def end(self) -> None:
        """End every wait, and every later one at once."""
        self._ended = True
        for task in self._tasks:
            task.cancel()
