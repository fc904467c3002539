"""Watching: commands that go on until somebody has seen enough; the terminal is as it was then."""

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

from codeq_cluster.cli.support.outcome import Exit

# The exit codes are those of shells for a process that the signal ended.
_ENDINGS = {
    signal.SIGINT: Exit.INTERRUPTED,
    signal.SIGTERM: Exit.TERMINATED,
    signal.SIGHUP: Exit.TERMINATED,
}
_INTERVAL_S = 2.0
INTERVALS_S = (1.0, 60.0)  # The least and the most.
_LOCAL = 3  # Where termios has the local modes, echo among them.


def add_interval(parser: argparse.ArgumentParser) -> None:
    """Add the flag for how often a cluster is looked at."""
    least, most = INTERVALS_S
    parser.add_argument(
        "--interval",
        type=float,
        default=_INTERVAL_S,
        metavar="SECONDS",
        help=f"between looks, {least:g} to {most:g}; default: {_INTERVAL_S:g}",
    )


@dataclass(slots=True)
class AskedToStop:
    """With which exit code the command ends that was asked to; None for as long as it was not."""

    exit: Exit | None = None


@asynccontextmanager
async def asked_to_end(*, keys: bool) -> AsyncIterator[AskedToStop]:
    """Run the block until SIGINT, SIGTERM or SIGHUP cancels it.

    Args:
        keys: The key q does too, and what is typed does not appear meanwhile.
    """
    asked = AskedToStop()
    loop = asyncio.get_running_loop()
    this = asyncio.current_task()
    assert this

    def end(how: Exit) -> None:
        if asked.exit is None:
            asked.exit = how
            this.cancel()

    for number, how in _ENDINGS.items():
        loop.add_signal_handler(number, end, how)
    try:
        with _keys(loop, lambda: end(Exit.OK)) if keys else nullcontext():
            yield asked
    except asyncio.CancelledError:
        if asked.exit is None:
            raise
        this.uncancel()
    finally:
        for number in _ENDINGS:
            loop.remove_signal_handler(number)


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
        # What was typed and not read must not reach the shell.
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
