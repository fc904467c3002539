"""Changes: the mutations that a decision asks its caller to make durable."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.core.items import Item
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.core.task import Result, Task


class TaskChange(Struct, frozen=True, kw_only=True):
    """One task before and after a decision; None stands for "does not exist".

    Attributes:
        payload: JSON text of a created task, or of one that gets another payload.
        fingerprint: Only for a created task with an idempotency key.
        result: Of a task that has just become terminal, or was imported as one.
        imported: The task comes from another cluster and is not new.
        restored: A requeue is taken back; the task's end was already reported.
    """

    before: Task | None
    after: Task | None
    payload: str | None = None
    fingerprint: str = ""
    result: Result | None = None
    imported: bool = False
    restored: bool = False


class ItemChange(Struct, frozen=True, kw_only=True):
    """One item before and after a decision; None stands for "does not exist".

    Attributes:
        body: Only for a new delivery: the result that it reports.
    """

    before: Item | None
    after: Item | None
    body: Result | None = None


Change = TaskChange | ItemChange


class Decision(Struct, frozen=True):
    """An operation's answer and the changes that must be durable before it is given."""

    outcome: Outcome
    changes: tuple[Change, ...] = ()
