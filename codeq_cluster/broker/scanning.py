"""Scanning: reads a range of a store page by page."""

from __future__ import annotations

from collections.abc import Iterator

from codeq_cluster.broker.ports import StateStore

PAGE = 1024


def every_row(store: StateStore, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of start <= key < end, ascending."""
    while page := store.scan(start, end, PAGE):
        yield from page
        start = page[-1][0] + b"\0"


def next_keys(store: StateStore, start: bytes, end: bytes, limit: int) -> tuple[list[bytes], bytes]:
    """Return the first keys of start <= key < end, at most `limit`, and the key to go on from."""
    page = store.scan(start, end, limit)
    edge = page[-1][0] + b"\0" if len(page) == limit else end
    return [key for key, _ in page], edge
