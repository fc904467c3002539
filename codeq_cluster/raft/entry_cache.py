"""Entry cache: the newest entries of a log in memory, as many as fit."""

from __future__ import annotations

from codeq_cluster.raft.journal_rows import Entry


class EntryCache:
    """The entries from `first` to the log's last one.

    Attributes:
        first: Index of the oldest entry here.
    """

    def __init__(self, bytes_max: int) -> None:
        self.first = 1
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: dict[int, Entry] = {}

    def put(self, entry: Entry) -> None:
        """Add the log's next entry."""
        self._entries[entry[1]] = entry
        self._bytes += len(entry[0])

    def read(self, start: int, end: int, bytes_max: int) -> list[Entry]:
        """Return the entries from `start` to before `end`: about `bytes_max`, but at least one."""
        entries: list[Entry] = []
        total = 0
        for index in range(start, end):
            entry = self._entries[index]
            total += len(entry[0])
            if entries and total > bytes_max:
                break
            entries.append(entry)
        return entries

    def truncate(self, start: int, last: int) -> None:
        """Drop the entries from `start` to `last`, the log's last one."""
        for index in range(max(start, self.first), last + 1):
            self._drop(index)
        self.first = min(self.first, start)

    def trim(self, floor: int) -> None:
        """Drop the entries before `floor`."""
        for index in range(self.first, floor):
            self._drop(index)
        self.first = max(self.first, floor)

    def evict(self, end: int) -> None:
        """Drop the oldest entries before `end` that are too many."""
        while self._bytes > self._bytes_max and self.first < end:
            self._drop(self.first)
            self.first += 1

    def _drop(self, index: int) -> None:
        self._bytes -= len(self._entries.pop(index)[0])
