"""Virtual time: the clock that a node's callers move, and why it may refuse."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

STOPS_MAX = 10_000  # Of one advance: a year of a schedule of each minute has 525,600.
PATIENCE_S_MAX = 10  # At one stop; below what a stop may take in all.


@dataclass(frozen=True, slots=True)
class Fired:
    """An instant of a schedule that has made a task."""

    schedule: str
    at: datetime


@dataclass(frozen=True, slots=True, order=True)
class Upcoming:
    """Something that is due at an instant.

    Attributes:
        kind: `ready` and `dies` of a task, `lease`, `callback`, `schedule`, or `key` and `queue`:
            tasks of it may go on.
        id: The task's or the schedule's; of a key, `QUEUE/KEY`; of a queue, its name.
    """

    at: datetime
    kind: str
    id: str


class TooManyStops(RuntimeError):
    """There were `STOPS_MAX` stops; the clock shows the last of them."""


class NotEnded(RuntimeError):
    """The whole time has passed, and the task has not ended."""


class NoSuchSchedule(RuntimeError):
    """A schedule was named that does not exist; nothing was done."""


class AlreadyMoving(RuntimeError):
    """Another caller moves the clock now; nothing was done."""


class StillPaused(RuntimeError):
    """Schedules that were paused meanwhile could not be resumed; the text names them."""


class VirtualTime(Protocol):
    """The clock of a node under virtual time."""

    @property
    def now(self) -> datetime:
        """What it shows, in whole milliseconds."""
        ...

    @property
    def offset_ms(self) -> int:
        """How far it is ahead of the machine's; negative behind it."""
        ...

    def begin(self, *, offset_ms: int) -> None:
        """Set that offset, before anything depends on the clock."""
        ...

    async def advance(
        self,
        by: timedelta,
        *,
        until: str = "",
        only: Collection[str] | None = None,
        patience_s: float | None = None,
    ) -> list[Fired]:
        """Advance the clock from each instant at which something is due to the next.

        Time that passes during the stops is not counted: seven pauses of a day fit into seven days.

        Args:
            by: The most to advance.
            until: The task at whose end to stop; empty for none.
            only: The schedules that fire meanwhile; None for all.
            patience_s: How long nothing has to change at a stop while tasks are ready or in
                progress; None for a twentieth of a second.

        Returns:
            The instants of schedules that have fired, in order.

        Raises:
            RuntimeError: One of the five above.
            TimeoutError: Workers did not come to rest at a stop, or all stops took too long.
        """
        ...

    async def coming(self) -> list[Upcoming]:
        """Return what the clock would stop at, the earliest first; what is past is being done."""
        ...
