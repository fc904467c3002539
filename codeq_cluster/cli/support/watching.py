"""Watching: commands that run until the user ends them, and then restore the terminal."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import termios
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass

from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.outcome import Exit

# The shell's exit codes for a process that the signal ended.
_ENDINGS = {
    signal.SIGINT: Exit.INTERRUPTED,
    signal.SIGTERM: Exit.TERMINATED,
    signal.SIGHUP: Exit.TERMINATED,
}
_INTERVAL_S = 2.0
INTERVALS_S = (1.0, 60.0)  # The least and the most.
_LOCAL = 3  # The index of the local modes in termios, with echo among them.


def add_interval(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the interval between looks."""
    least, most = INTERVALS_S
    number(
        parser,
        "--interval",
        f"between looks, {least:g} to {most:g}; default: {_INTERVAL_S:g}",
        metavar="SECONDS",
        kind=float,
        default=_INTERVAL_S,
    )


@dataclass(slots=True)
class AskedToStop:
    """The exit code once a signal asked for the end; None before."""

    exit: Exit | None = None


@asynccontextmanager
async def asked_to_end(*, keys: bool) -> AsyncIterator[AskedToStop]:
    """Run the block until SIGINT, SIGTERM or SIGHUP cancels it.

    Args:
        keys: Let the key q end it too, and hide what is typed meanwhile.
    """
    asked = AskedToStop()
    loop = asyncio.get_running_loop()
    this = asyncio.current_task()
    assert this

    def end(how: Exit) -> None:
        if asked.exit is None:
            asked.exit = how
            this.cancel()

    for each, how in _ENDINGS.items():
        loop.add_signal_handler(each, end, how)
    try:
        with _keys(loop, lambda: end(Exit.OK)) if keys else nullcontext():
            yield asked
    except asyncio.CancelledError:
        if asked.exit is None:
            raise
        this.uncancel()
    finally:
        for each in _ENDINGS:
            loop.remove_signal_handler(each)


@contextmanager
def _keys(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> Iterator[None]:
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    quiet = termios.tcgetattr(terminal)
    quiet[_LOCAL] &= ~(termios.ECHO | termios.ICANON)

    def pressed() -> None:
        if b"q" in os.read(terminal, 1024).lower():
            end()

    termios.tcsetattr(terminal, termios.TCSADRAIN, quiet)
    loop.add_reader(terminal, pressed)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        # Keys that were typed but not read must not reach the shell.
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
