"""Simulated loop: an event loop on virtual time, one for each life of each process.

It runs the broker's own coroutines. The calls of all processes are interleaved in the order of one
clock; after `kill` none of this process runs again.
"""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from tests.simulator.clock import SimClock

_T = TypeVar("_T")

# Steps within which a killed process must have released everything.
_FAREWELL_STEPS_MAX = 100_000
_THREAD_S = 0.001  # A call that runs in a thread takes so long.


def new_loop(clock: SimClock) -> SimLoop:
    """Return the loop of a new process."""
    # Sockets, signals and child processes are not simulated.
    return SimLoop(clock)  # type: ignore[abstract]


class SimLoop(asyncio.AbstractEventLoop):
    """The loop of one process.

    Attributes:
        failures: Exceptions that nobody caught.
    """

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self._dead = False
        self._stands_until = 0.0
        # Held here until they end: the garbage collector must not close a killed process's
        # coroutines at a random time.
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failures: list[BaseException] = []

    def kill(self) -> None:
        """Stop running calls for good."""
        self._dead = True

    def stand_still(self, until: float) -> None:
        """Run nothing before an instant; calls due by then run at it, in order."""
        self._stands_until = max(self._stands_until, until)

    def bury(self) -> None:
        """Clean up after a killed process, on a separate clock that moves no other."""
        assert self._dead, "a living process is not cleared away"
        self._dead, self._stands_until, self._clock = False, 0.0, SimClock()
        for task in list(self._tasks):
            task.cancel()
        for _ in range(_FAREWELL_STEPS_MAX):
            if not self._tasks or not self._clock.step():
                break
        # A task whose next step was scheduled when the process died does not get the cancellation.
        for task in list(self._tasks):
            with suppress(RuntimeError, BaseExceptionGroup):
                self.enter(task.get_coro().close)
        self.kill()

    def enter(self, call: Callable[..., object], *args: object) -> None:
        """Call into this process from outside, as a socket's data does."""
        if self._dead:
            return
        if self._clock.now < self._stands_until:
            self.call_soon(call, *args)
            return
        # The caller may be another process that runs at this instant.
        outer = _get_running_loop()
        _set_running_loop(self)
        try:
            call(*args)
        finally:
            _set_running_loop(outer)

    # The interface that asyncio expects of a loop.

    def time(self) -> float:
        """Return virtual seconds."""
        return self._clock.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a call at this instant, after the calls already due."""
        handle = asyncio.Handle(callback, args, self, context)
        self._clock.at(self._clock.now, partial(self._run, handle))
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a call after `delay` virtual seconds."""
        return self.call_at(self._clock.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a call at an instant."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._clock.at(when, partial(self._run, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future of this loop."""
        return asyncio.Future(loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        """Run a call a little later: no thread is simulated, but other work goes first."""
        done = self.create_future()

        def run() -> None:
            if done.done():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - the caller gets it
                done.set_exception(error)

        self.call_later(_THREAD_S, run)
        return done

    def create_task(
        self,
        coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        """Start a coroutine."""
        task: asyncio.Task[_T] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record an exception that nobody caught."""
        error = context.get("exception")
        self.failures.append(error or RuntimeError(str(context.get("message"))))

    def get_debug(self) -> bool:
        """Return that debugging is off."""
        return False

    def is_running(self) -> bool:
        """Return whether the process lives."""
        return not self._dead

    def is_closed(self) -> bool:
        """Return whether the process is dead."""
        return self._dead

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: its turn passes without a call."""

    def _run(self, handle: asyncio.Handle) -> None:
        if self._dead or handle.cancelled():
            return
        if self._clock.now < self._stands_until:
            self._clock.at(self._stands_until, partial(self._run, handle))
            return
        _set_running_loop(self)
        try:
            handle._run()
        finally:
            _set_running_loop(None)
