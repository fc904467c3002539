"""Ring: what the newest entries of one shard did to tasks, decoded once for all watchers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from codeq_cluster.broker.feed.cursor import Position, check_of
from codeq_cluster.broker.feed.events import Event, events_of
from codeq_cluster.codec.entries import Entry

log = logging.getLogger(__name__)

RING_ENTRIES_MAX = 4096
RING_BYTES_MAX = 4 * 2**20  # Of a shard's log; watchers further behind read the log itself.
_PART_MAX = 256  # Entries that one look returns.


class Applied(NamedTuple):
    """One entry: where it stands in the log, and what it did."""

    at: Position
    events: tuple[Event, ...]


class Ring:
    """The newest entries of one shard, without a gap.

    Args:
        changed: Called for each entry.
        failed: Called for what cannot be read.
    """

    def __init__(
        self, shard: int, *, changed: Callable[[], None], failed: Callable[[], None]
    ) -> None:
        self._shard = shard
        self._changed = changed
        self._failed = failed
        self._entries: list[Applied] = []
        self._sizes: list[int] = []
        self._bytes = 0

    def tap(self, index: int, term: int, payload: bytes | None, entry: Entry | None) -> None:
        """Add an entry that was just applied; a fenced one is None.

        This runs while the entry is applied, so it must not fail: without the entry, watchers read
        the log.
        """
        try:
            if self._entries and index != self._entries[-1].at.index + 1:
                self.forget()  # A snapshot has replaced the entries between.
            events = (
                ()
                if entry is None
                else events_of(entry, shard=self._shard, index=index, failed=self._failed)
            )
            self._entries.append(Applied(Position(index, check_of(term, payload)), events))
            self._sizes.append(len(payload or b""))
            self._bytes += self._sizes[-1]
            self._trim()
        except Exception:
            log.exception("watchers miss an entry in memory", extra={"shard": self._shard})
            self._failed()
            self.forget()
        self._changed()

    def after(self, index: int) -> Sequence[Applied] | None:
        """Return the first entries after one, or None if not all that follow it are here."""
        entries = self._entries
        if not entries or index + 1 < entries[0].at.index:
            return None
        start = index + 1 - entries[0].at.index
        return entries[start : start + _PART_MAX]

    def forget(self) -> None:
        """Forget every entry."""
        self._entries.clear()
        self._sizes.clear()
        self._bytes = 0

    def _trim(self) -> None:
        """Forget the older half of too many entries: rarely, since the rest moves."""
        sizes = self._sizes
        if len(sizes) <= RING_ENTRIES_MAX and self._bytes <= RING_BYTES_MAX:
            return
        gone = 0
        while gone < len(sizes) - 1 and (
            len(sizes) - gone > RING_ENTRIES_MAX // 2 or self._bytes > RING_BYTES_MAX // 2
        ):
            self._bytes -= sizes[gone]
            gone += 1
        del self._entries[:gone], sizes[:gone]
