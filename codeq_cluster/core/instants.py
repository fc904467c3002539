"""Instants: Unix milliseconds in the wire's text form."""

from __future__ import annotations

import time
from functools import lru_cache


def rfc3339(unix_ms: int) -> str:
    """Return an instant as text: UTC, milliseconds, `Z`."""
    seconds, millis = divmod(unix_ms, 1000)
    return f"{_second(seconds)}.{millis:03d}Z"


@lru_cache(maxsize=4096)
def _second(unix_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s))
