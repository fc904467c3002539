"""Forwarded: an attribute of a part, read through its owner."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def forwarded(path: str) -> Any:
    """Return a read-only property that reads `path`, names with dots, without a Python call."""
    return property(attrgetter(path))
