"""Threads: where handlers run that are not coroutines."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any


class Threads:
    """Daemon threads that run one call each, started on demand and kept for the next call.

    The standard library's pool would delay the end of the process until the last call returns. A
    handler that hangs would then keep a stopped worker alive.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._started = 0
        self._running: set[asyncio.Future[Any]] = set()
        self._idents: dict[asyncio.Future[Any], int] = {}

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

        def noted() -> Any:
            self._idents[wrapped] = threading.get_ident()
            return context.run(call)

        self._calls.put((future, noted))
        return wrapped

    def stack(self, call: asyncio.Future[Any]) -> str:
        """Return where a running call is, as a traceback shows it; empty if it is in none."""
        frame = sys._current_frames().get(self._idents.get(call, 0))  # noqa: SLF001 - its only way
        if frame is None:
            return ""
        frames = traceback.extract_stack(frame)
        ours = max((n for n, each in enumerate(frames) if each.filename == __file__), default=-1)
        return "".join(traceback.format_list(frames[ours + 1 :])).rstrip()

    def stop(self) -> None:
        """Cancel the wait for every call, and let each idle thread end."""
        for running in tuple(self._running):
            running.cancel()
        for _ in range(self._started):
            self._calls.put(None)

    def _done(self, ended: asyncio.Future[Any]) -> None:
        self._running.discard(ended)
        self._idents.pop(ended, None)
        if not ended.cancelled():
            ended.exception()  # Retrieved, or asyncio would warn that nobody did.

    def _work(self) -> None:
        while (asked := self._calls.get()) is not None:
            future, call = asked
            future.set_running_or_notify_cancel()
            try:
                future.set_result(call())
            except StopIteration as error:
                future.set_exception(told(error))
            except BaseException as error:  # noqa: BLE001, it is the caller's
                future.set_exception(error)


def told(error: BaseException) -> RuntimeError:
    """Return an exception that says what a handler raised, and that a future and a loop take.

    A coroutine that awaits StopIteration would end as if it had returned, and what is no Exception
    would end the worker, which leaves the task leased.
    """
    raised = RuntimeError(f"the handler raised {error!r}")
    raised.__cause__ = error
    return raised
