"""Threads: where handlers run that are no coroutines."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any


class Threads:
    """Threads that run one call each, started as they are needed and kept for the next call.

    The standard library's pool would hold up the end of the process until the last call returns,
    and a handler that hangs would keep a stopped worker alive. These are daemons.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._started = 0
        self._running: set[asyncio.Future[Any]] = set()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a call in a thread, within the caller's context variables."""
        future: Future[Any] = Future()
        context = copy_context()
        wrapped = asyncio.wrap_future(future)
        self._running.add(wrapped)
        wrapped.add_done_callback(self._done)
        if len(self._running) > self._started:
            self._started += 1
            threading.Thread(target=self._work, name="codeq handler", daemon=True).start()
        self._calls.put((future, lambda: context.run(call)))
        return wrapped

    def stop(self) -> None:
        """Wait for no call any more, and let each thread end that has nothing to do."""
        for running in tuple(self._running):
            running.cancel()
        for _ in range(self._started):
            self._calls.put(None)

    def _done(self, ended: asyncio.Future[Any]) -> None:
        self._running.discard(ended)
        if not ended.cancelled():
            ended.exception()  # Seen: a call that nobody waits for any more may raise.

    def _work(self) -> None:
        while (asked := self._calls.get()) is not None:
            future, call = asked
            future.set_running_or_notify_cancel()
            try:
                future.set_result(call())
            except StopIteration as error:
                # A coroutine cannot be told of it as it is: to it, it is a plain return.
                future.set_exception(RuntimeError(f"the handler raised {error!r}"))
            except BaseException as error:  # noqa: BLE001, it is the caller's
                future.set_exception(error)
