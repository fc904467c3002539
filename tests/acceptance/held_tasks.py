"""Held tasks: those of foreign workers that end only after a worker has been killed.

A worker that is killed while it has none of them shows nothing, however fast the machine is.
"""

from __future__ import annotations

import os
from pathlib import Path

# The first tasks end at once, so that a test can kill a leader before.
HELD_FROM = 60
HELD_S = 0.01  # A held task looks this often.


def is_held(journal: str) -> bool:
    """Return whether a task must wait: enough have run, and no worker has been killed yet.

    The worker that has it says so, by the group of its processes.
    """
    ran = Path(journal)
    enough = ran.exists() and len(ran.read_text().split()) >= HELD_FROM
    if not enough or killed(journal).exists():
        return False
    holder(journal, os.getpgrp()).touch()
    return True


def holder(journal: str | Path, group: int) -> Path:
    """Return the file that says that a worker has a held task."""
    return Path(f"{journal}.held-by-{group}")


def killed(journal: str | Path) -> Path:
    """Return the file that says that a worker has been killed."""
    return Path(f"{journal}.killed")
