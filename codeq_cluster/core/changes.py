"""Changes: what a decision asks its caller to make durable."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.core.items import Item
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.core.task import Result, Task


class TaskChange(Struct, frozen=True, kw_only=True):
    """One task before and after a decision; None stands for "does not exist".

    Attributes:
        payload: With a created task, and with one that gets another: its JSON text.
        fingerprint: With a created task that has an idempotency key only.
        result: With a task that has just become terminal, or was imported as one.
        imported: Another cluster had it; it is no new one.
        restored: It has ended before and was told so: a requeue is taken back.
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
        body: With a new delivery only: the ending it tells of.
    """

    before: Item | None
    after: Item | None
    body: Result | None = None


Change = TaskChange | ItemChange


class Decision(Struct, frozen=True):
    """An operation's answer and the changes that must be durable before it is given."""

    outcome: Outcome
    changes: tuple[Change, ...] = ()
