"""Deadlines: the instant by which a call must be answered."""

from __future__ import annotations

import asyncio


def deadline_in(timeout_s: float) -> float:
    """Return the instant `timeout_s` from now, monotonic seconds of this node."""
    return asyncio.get_running_loop().time() + timeout_s
