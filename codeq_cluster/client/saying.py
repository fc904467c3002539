"""Saying: what a handler says of its task until the broker knows it, and what it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from codeq_cluster.client.records import CancelRecord

CHECKPOINT_BYTES_MAX: Final = 65536
NOTE_BYTES_MAX: Final = 1024


class Said:
    """The fields of the next report of one task; handlers in threads write them too.

    Attributes:
        notify: Called when there is something to report.
        cancel: Set once the handler should end.
    """

    def __init__(self) -> None:
        """Prepare it; nothing is said."""
        self._lock = threading.Lock()
        self._fields: dict[str, object] = {}
        self.notify: Callable[[], None] = lambda: None
        self.cancel: CancelRecord | None = None

    def say(self, name: str, value: object) -> None:
        """Set a field, in place of what has not been reported yet."""
        with self._lock:
            self._fields[name] = value
        self.notify()

    def take(self) -> Mapping[str, object]:
        """Return what is to be reported, and forget it."""
        with self._lock:
            fields, self._fields = self._fields, {}
        return fields

    def put_back(self, fields: Mapping[str, object]) -> None:
        """Report it again, unless something newer has been said since."""
        with self._lock:
            self._fields = {**fields, **self._fields}
