"""Sends: what the applications of `bench.frameworks` share: a task, and the time of its sends."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PAYLOAD = "x" * 100


def note(journal: str, payload: str) -> None:
    """Add a byte to the journal: the task has run."""
    with Path(journal).open("ab", buffering=0) as file:
        file.write(payload[:1].encode())


def timed() -> Iterator[tuple[str, str]]:
    """Yield the arguments of each send that the command line asks for, then print the seconds."""
    journal, tasks = sys.argv[1:]
    began_s = time.monotonic()
    for _ in range(int(tasks)):
        yield journal, _PAYLOAD
    print(time.monotonic() - began_s)
