"""Deaths: the dead letters that `tail` has not printed yet."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from codeq_cluster.cli.operate.events import Event, EventKind, died
from codeq_cluster.client import Operator

_NEW_MAX: Final = 100  # Of each queue's dead letters, per look.
_Death = tuple[object, object]  # A requeued task may die again: its id alone names no death.


class Deaths:
    """Finds dead letters that were not printed yet.

    A queue's number of dead letters and their list are read one after the other, and tasks die in
    between. So a queue owes as many lines as its number grew by, and what was printed is known.
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._counted: dict[str, int] = {}  # Per queue: dead before the first look, or printed.
        self._printed: dict[str, frozenset[_Death]] = {}  # Per queue: of the newest page.

    async def begin(self) -> None:
        """Count the dead letters of now, which are not printed."""
        self._counted = await self._numbers()

    async def since(self) -> list[Event]:
        """Return the dead letters that are new, the oldest of a queue first."""
        events: list[Event] = []
        numbers = await self._numbers()
        for queue, number in numbers.items():
            counted = min(number, self._counted.get(queue, 0))
            fresh, named = await self._new(queue, number - counted)
            events += fresh
            numbers[queue] = counted + named
        self._counted = numbers
        self._printed = {name: known for name, known in self._printed.items() if name in numbers}
        return events

    async def _numbers(self) -> dict[str, int]:
        rows = await self._operator.queues()
        return {str(row["command"]): int(row["dlq"]) for row in rows}

    async def _new(self, queue: str, count: int) -> tuple[list[Event], int]:
        """Return the events of so many dead letters, and for how many of them they stand."""
        if count <= 0:
            return [], 0
        printed = self._printed.get(queue, frozenset())
        limit = min(count + len(printed), _NEW_MAX)
        rows = (await self._operator.dead_letters(queue, limit=limit)).rows
        fresh = [row for row in rows if _death(row) not in printed][:count]
        self._printed[queue] = frozenset(map(_death, fresh)) | printed & {*map(_death, rows)}
        events = [died(row) for row in reversed(fresh)]
        if len(rows) < _NEW_MAX or len(fresh) == count:
            return events, len(fresh)
        text = f"{count - len(fresh):,} more of {queue}: codeq-cluster dlq ls {queue}"
        events.insert(0, Event(at=datetime.now(UTC), kind=EventKind.DEAD, text=text))
        return events, count


def _death(row: Mapping[str, object]) -> _Death:
    return row.get("id"), row.get("updatedAt")
