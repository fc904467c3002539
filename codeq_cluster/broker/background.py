"""Background: work that outlives the call that started it and ends with the node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from codeq_cluster.errors import CodeqError

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Background:
    """Owns tasks: none is lost to the garbage collector and none survives `stop`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start `work` and return its task; the caller need not await it.

        The outcome is logged. An operating error is logged quietly, because the awaiting caller
        handles it. Any other exception is logged as an error, because there may be no awaiting
        caller.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel all running work and wait until it has ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            level = logging.DEBUG if isinstance(error, CodeqError) else logging.ERROR
            work = getattr(task.get_coro(), "__qualname__", "")
            log.log(level, "background work failed", exc_info=error, extra={"work": work})
