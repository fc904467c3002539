"""Changes: the mutations that a decision asks its caller to make durable."""

from __future__ import annotations

from collections.abc import Iterable

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

    @property
    def first_end(self) -> Task | None:
        """Return the task if this is its first end, which its schedule and its group count.

        One that an operator has revived ends once more, and its end stays reported if that is taken
        back.
        """
        is_end = self.result is not None and not self.restored
        return self.after if is_end and self.after and self.after.endings == 1 else None


class ItemChange(Struct, frozen=True, kw_only=True):
    """One item before and after a decision; None stands for "does not exist".

    Attributes:
        body: Only for a new delivery: the result that it reports.
    """

    before: Item | None
    after: Item | None
    body: Result | None = None


Change = TaskChange | ItemChange


def share_a_row(changes: Iterable[Change]) -> bool:
    """Return whether changes are of tasks that may share a row: of keys, a schedule or a group.

    Two decisions with such changes need each other's result.
    """
    for change in changes:
        if isinstance(change, TaskChange):
            task = change.after or change.before
            more = task.more if task is not None else None
            if more is not None and (more.key or more.run or more.member or more.unique):
                return True
    return False


class Decision(Struct, frozen=True):
    """An operation's answer and the changes that must be durable before it is given."""

    outcome: Outcome
    changes: tuple[Change, ...] = ()
