"""Log line: one line of what the workers of a task have said while they worked on it."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from codeq_cluster.core.bounds import TASK_ID, Instant, Number, Owner, text, that
from codeq_cluster.core.stored_item import Place, StoredItem

LINES_MAX = 200  # That stand beside one task; 200 x 1 KiB go in one answer.
LINE_BYTES_MAX = 1024
LINES_A_REPORT_MAX = 20  # Rows that one heartbeat writes; it may take as many away.

LINE = text(LINE_BYTES_MAX)
_ROW_ID = re.compile(rf"{TASK_ID.pattern}\.[0-9a-f]{{16}}")
_RowId: TypeAlias = Annotated[str, that(_ROW_ID.fullmatch, "a task's id, a dot and a number")]


class LogLine(StoredItem, frozen=True, array_like=True, tag="log", kw_only=True):
    """One line of a task's log.

    Attributes:
        id: The task's, a dot and the line's number.
        at_ms: When the broker got it.
        attempt: Which delivery it is of, from 1.
        text: At most `LINE_BYTES_MAX`.
    """

    place = Place.TASK

    tenant: Owner
    id: _RowId
    at_ms: Instant
    attempt: Number
    text: Annotated[str, LINE]

    @property
    def number(self) -> int:
        """Return its place among all lines of the task, from 1."""
        return int(self.id.rpartition(".")[2], 16)

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        return "" if self.number else "id: must have a number from 1"

    @property
    def size(self) -> int:
        """Return how many bytes count against its tenant's budget."""
        return len(self.text.encode())


def line_id(task_id: str, number: int) -> str:
    """Return the id of a line; ids are in the order of the numbers."""
    return f"{task_id}.{position(number)}"


def position(number: int) -> str:
    """Return the place of a line among the rows beside its task."""
    return f"{number:016x}"
