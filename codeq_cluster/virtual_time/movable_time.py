"""Movable time: the machine's time plus an offset that can grow."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta


class MovableTime:
    """The clock of a broker; it runs with the machine's and can be moved forward.

    Args:
        now: The time of day it begins with; None for the machine's.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._moved_by_s = 0.0
        self._began_by_s = 0.0 if now is None else now.timestamp() - time.time()

    def wall_ms(self) -> int:
        """Return Unix milliseconds."""
        return int((time.time() + self._began_by_s + self._moved_by_s) * 1000)

    def monotonic_ms(self) -> int:
        """Return milliseconds that never run backwards."""
        return int(self.monotonic_s() * 1000)

    def monotonic_s(self) -> float:
        """Return seconds that never run backwards."""
        return time.monotonic() + self._moved_by_s

    @property
    def offset_ms(self) -> int:
        """How far it is ahead of the machine's time of day; negative behind it."""
        return round((self._began_by_s + self._moved_by_s) * 1000)

    def begin(self, *, offset_ms: int) -> None:
        """Set that offset, before anything depends on the clock."""
        assert self._moved_by_s == 0
        self._began_by_s = offset_ms / 1000

    @property
    def now(self) -> datetime:
        """The instant, in whole milliseconds."""
        return datetime.fromtimestamp(self.wall_ms() / 1000, UTC)

    def move(self, by: timedelta) -> None:
        """Move it forward; call it in the thread of the loop whose timers depend on it."""
        self._moved_by_s += max(0.0, by.total_seconds())


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow the movable clock."""

    def __init__(self, time: MovableTime) -> None:
        super().__init__()
        self._time = time

    def time(self) -> float:
        """Return the loop's time, seconds."""
        return self._time.monotonic_s()
