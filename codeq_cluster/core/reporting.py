"""Reporting: what a worker says of a task that it holds, and what it leaves to the next delivery.

Progress is part of the task. A checkpoint has a row beside it, as it may be large and most changes
of the task leave it alone; the task has its size. It goes with the task's last possible delivery:
when the task is done, has failed, or is deleted. A dead letter keeps it, for a requeue. Another
payload takes it away, because it belongs to the work that the former one asked for.
"""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.changes import Change, ItemChange, TaskChange
from codeq_cluster.core.checkpoint import Checkpoint, Report, checkpoint_bytes
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import More, State, Task
from codeq_cluster.core.view import View

_ENDED = (State.DONE, State.FAILED)


def reported(view: View, report: Report, before: Task, after: Task) -> tuple[Change, ...]:
    """Return the changes of a heartbeat that carries something, beside the lease's new end.

    Args:
        view: With the checkpoint as it stands.
        report: Its bounds are checked.
        before: The task as it stands.
        after: The task with the new end of its lease.
    """
    more = after.more or More()
    others: tuple[Change, ...] = ()
    if report.progress is not None:
        more = replace(more, progress=replace(report.progress, at_ms=view.now_ms))
    if report.checkpoint:
        row = Checkpoint(tenant=after.tenant, id=after.id, text=report.checkpoint)
        stands = view.item(ItemKind.CHECKPOINT, after.tenant, after.id)
        more = replace(more, checkpoint_bytes=checkpoint_bytes(report.checkpoint))
        if row != stands:
            others = (ItemChange(before=stands, after=row),)
    if more != (after.more or More()):
        after = replace(after, more=more)
    return others if after == before else (TaskChange(before=before, after=after), *others)


def settled(view: View, changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """Add the end of each checkpoint that no delivery will get; a task may change many times."""
    if not any(isinstance(each, TaskChange) and _has_one(each.before) for each in changes):
        return changes
    gone: set[str] = set()
    found: list[Change] = []
    for change in changes:
        if not isinstance(change, TaskChange) or change.before is None:
            found.append(change)
            continue
        before, after = change.before, change.after
        if before.id in gone:
            before = _without(before)
        elif _has_one(before) and (
            after is None or after.state in _ENDED or change.payload is not None
        ):
            gone.add(before.id)
            row = view.item(ItemKind.CHECKPOINT, before.tenant, before.id)
            found.append(ItemChange(before=row, after=None))
        if after is not None and after.id in gone:
            after = _without(after)
        found.append(replace(change, before=before, after=after))
    return tuple(found)


def _has_one(task: Task | None) -> bool:
    return task is not None and task.more is not None and task.more.checkpoint_bytes > 0


def _without(task: Task) -> Task:
    if task.more is None or not task.more.checkpoint_bytes:
        return task
    return replace(task, more=replace(task.more, checkpoint_bytes=0))
