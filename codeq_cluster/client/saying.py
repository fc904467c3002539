"""Saying: what a handler says of its task until the broker knows it, and what it is told."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from codeq_cluster.client.records import CancelRecord

CHECKPOINT_BYTES_MAX: Final = 65536
COUNT_MAX: Final = 253_402_300_799_999  # Of progress, as brokers have it.
LINE_BYTES_MAX: Final = 1024  # Of a line of the log, and of the note of progress.
LINES_A_REPORT_MAX: Final = 20
LINES_KEPT_MAX: Final = 200  # As the broker does: earlier ones would be gone at once.


class Said:
    """The fields of the next report of one task; handlers in threads write them too.

    Attributes:
        notify: Called when there is something to report.
        cancel: Set once the handler should end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fields: dict[str, object] = {}
        self._lines: deque[str] = deque()
        self._dropped = 0
        self.notify: Callable[[], None] = lambda: None
        self.cancel: CancelRecord | None = None

    @property
    def outlasts(self) -> bool:
        """Whether something is still to be reported that an ended task shows, too."""
        return self.has_lines or "progress" in self._fields

    @property
    def has_lines(self) -> bool:
        """Whether lines of the log are still to be reported."""
        return bool(self._lines)

    def say(self, name: str, value: object) -> None:
        """Set a field, in place of what has not been reported yet."""
        with self._lock:
            self._fields[name] = value
        self.notify()

    def log(self, text: str) -> None:
        """Add the lines of a text to the log, each cut to its bound; the oldest ones may go."""
        lines = text.splitlines() or [""]
        kept = [cut(line) for line in lines[-LINES_KEPT_MAX:]]
        with self._lock:
            self._add(kept)
            self._dropped += len(lines) - len(kept)
        self.notify()

    def take(self) -> Mapping[str, object]:
        """Return what one report says of what is to be said, and forget that."""
        with self._lock:
            fields, self._fields = self._fields, {}
            lines: list[str] = []
            if self._dropped:
                lines.append(f"({self._dropped} lines before this one were too many to send)")
                self._dropped = 0
            while self._lines and len(lines) < LINES_A_REPORT_MAX:
                lines.append(self._lines.popleft())
        return {**fields, "log": lines} if lines else fields

    def put_back(self, fields: Mapping[str, object]) -> None:
        """Report it again, unless something newer has been said since."""
        again = dict(fields)
        lines = again.pop("log", ())
        assert isinstance(lines, list | tuple)
        with self._lock:
            self._fields = {**again, **self._fields}
            since, self._lines = self._lines, deque(lines)
            self._add(since)

    def _add(self, lines: Iterable[str]) -> None:
        self._lines.extend(lines)
        while len(self._lines) > LINES_KEPT_MAX:
            self._lines.popleft()
            self._dropped += 1


def cut(text: str) -> str:
    """Return as much of a text as a line takes; a note takes as much."""
    return text.encode(errors="replace")[:LINE_BYTES_MAX].decode(errors="ignore")
