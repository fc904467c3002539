"""Serve: run until the work ends or a signal asks for a stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def hold_signals() -> None:
    """Keep the signals that ask for a stop until `until_signal` hears them.

    The kernel drops those that the first process of a container does not handle yet: without this,
    a stop while it starts would be forgotten.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)


async def until_signal(work: Coroutine[object, object, None], *, stdin: bool = False) -> None:
    """Await `work`; the first SIGINT, SIGTERM or SIGHUP cancels it, which counts as a clean end.

    A second signal has its default effect, so that a hanging stop can be ended by hand.

    Args:
        work: The coroutine to run; it must stop within a bound when it is cancelled.
        stdin: Also stop when standard input closes, which means that the parent process is gone.
    """
    this = asyncio.current_task()
    assert this
    asked = False

    def stop() -> None:
        nonlocal asked
        asked = True
        this.cancel()

    with _heard(stop, stdin=stdin):
        try:
            await work
        except asyncio.CancelledError:
            if not asked:
                raise
            this.uncancel()


@contextmanager
def _heard(stop: Callable[[], None], *, stdin: bool = False) -> Iterator[None]:
    """Call `stop` at the first signal, and then restore the default handlers."""
    loop = asyncio.get_running_loop()

    def forget() -> None:
        for number in _STOPPING:
            loop.remove_signal_handler(number)
        if stdin:
            loop.remove_reader(0)

    def first() -> None:
        forget()
        stop()

    def closed() -> None:
        if not os.read(0, 4096):
            first()

    for number in _STOPPING:
        loop.add_signal_handler(number, first)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    if stdin:
        loop.add_reader(0, closed)
    try:
        yield
    finally:
        forget()
