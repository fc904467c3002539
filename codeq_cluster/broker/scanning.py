"""Scanning: reads a range of a store page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from codeq_cluster.broker.ports import StateStore
from codeq_cluster.codec import keyspace
from codeq_cluster.codec.walk_keys import walk_range
from codeq_cluster.core.selecting import TaskFilter

PAGE = 1024
_WALK_PAGE = 32  # Rows of a walk read at once; its caller may want no more of them.


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


def walk(
    read: Callable[[bytes, bytes, int], tuple[list[bytes], bytes]],
    tenant: str,
    tag: tuple[str, str] | None,
    *,
    only: TaskFilter,
    after: bytes,
) -> Iterator[tuple[bytes, str]]:
    """Yield (position, task id) of a bulk job's walk; see `core.view.View.walk`.

    `read` is `next_keys` of a store, or a view's.
    """
    start, end, head = walk_range(tenant, tag, only=only, after=after)
    while start < end:
        keys, start = read(start, end, _WALK_PAGE)
        for key in keys:
            yield key[head:], keyspace.last_id(key)
