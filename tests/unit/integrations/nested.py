"""Nested: values that are deeper than the broker takes as JSON."""

from __future__ import annotations


def nested(depth: int) -> list[object]:
    """Return a list within a list, and so on."""
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value
