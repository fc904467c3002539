"""Scanning: reads a range of a store page by page."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from codeq_cluster.broker.ports import StateStore
from codeq_cluster.codec import keyspace
from codeq_cluster.codec.walk_keys import walk_range
from codeq_cluster.core.selecting import TaskFilter

PAGE = 1024
# Rows of a walk read at once: few after a leap, more while one row follows the other.
_LEAP_PAGE, _WALK_PAGE = 2, 32

_Read = Callable[[bytes, bytes, int], tuple[list[bytes], bytes]]


def every_row(
    store: StateStore, start: bytes, end: bytes, *, page: int = PAGE
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of start <= key < end, ascending; `page` of them are read at once."""
    while rows := store.scan(start, end, page):
        yield from rows
        start = rows[-1][0] + b"\0"


def next_keys(store: StateStore, start: bytes, end: bytes, limit: int) -> tuple[list[bytes], bytes]:
    """Return the first keys of start <= key < end, at most `limit`, and the key to go on from."""
    page = store.scan(start, end, limit)
    edge = page[-1][0] + b"\0" if len(page) == limit else end
    return [key for key, _ in page], edge


def walk(
    read: _Read,
    tenant: str,
    tags: Sequence[tuple[str, str]],
    *,
    only: TaskFilter,
    after: bytes,
) -> Iterator[tuple[bytes, str]]:
    """Yield the steps of a list by tags, or of a bulk job's walk; see `core.view.View.walk`.

    The rows of all tags have one order, so each leaps to where the others are ("leapfrog join"):
    the rarest one decides how many rows are read, whichever is named first.

    `read` is `next_keys` of a store, or a view's.
    """
    lines = [
        _Line(read, *walk_range(tenant, tag, only=only, after=after)) for tag in tags or (None,)
    ]
    at = lines[0].leap(b"")
    while at is not None:
        furthest = at
        for line in lines[1:]:
            found = line.leap(at)
            if found is None:
                return
            furthest = max(furthest, found)
        if furthest == at:
            yield at, keyspace.last_id(at)
            at = lines[0].leap(at + b"\0")
        else:
            yield at, ""
            at = lines[0].leap(furthest)


class _Line:
    """The rows of one range, by what follows its prefix of `head` bytes."""

    def __init__(self, read: _Read, start: bytes, end: bytes, head: int) -> None:
        self._read = read
        self._start, self._end = start, end
        self._prefix = start[:head]
        self._rows: list[bytes] = []
        self._limit = _LEAP_PAGE

    def leap(self, to: bytes) -> bytes | None:
        """Return the first row at or after `to`, or None at the end; never goes back."""
        head = len(self._prefix)
        while True:
            place = bisect_left(self._rows, to)
            if place < len(self._rows):
                return self._rows[place]
            start = max(self._start, self._prefix + to)
            if start >= self._end:
                return None
            is_next = start == self._start
            self._limit = min(2 * self._limit, _WALK_PAGE) if is_next else _LEAP_PAGE
            keys, self._start = self._read(start, self._end, self._limit)
            self._rows = [key[head:] for key in keys]
