"""Serve: a signal that asks for a stop is heard, whenever it comes."""

from __future__ import annotations

import subprocess
import sys

# A stop that comes while a node's modules are loaded, before its loop runs.
_EARLY = """
import asyncio, os, signal
from codeq_cluster.cli.local.serve import hold_signals, until_signal
hold_signals()
os.kill(os.getpid(), signal.SIGTERM)
async def work():
    try:
        await asyncio.Event().wait()
    finally:
        print("stopped")
asyncio.run(until_signal(work()))
"""


def test_a_signal_that_comes_before_the_loop_is_heard_by_it() -> None:
    """The first process of a container would not even be ended by it."""
    ended = subprocess.run(
        [sys.executable, "-c", _EARLY], capture_output=True, text=True, check=False, timeout=30
    )

    assert (0, "stopped\n") == (ended.returncode, ended.stdout), ended.stderr
