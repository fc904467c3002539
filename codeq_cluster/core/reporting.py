"""Reporting: what a worker says of a task that it holds, and what it leaves to the next delivery.

Progress is part of the task. A checkpoint has a row beside it, as it may be large and most changes
of the task leave it alone; the task has its size. It goes with the task's last possible delivery:
when the task is done, has failed, or is deleted. A dead letter keeps it, for a requeue. Another
payload takes it away, because it belongs to the work that the former one asked for.

A log's lines are rows, too: the last `LINES_MAX`, by number. They go with the task, and the log of
the former payload goes as its checkpoint does; the numbers go on, so a reader who follows them
misses none.
"""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from codeq_cluster.core.changes import Change, ItemChange, TaskChange
from codeq_cluster.core.checkpoint import Checkpoint, Report, checkpoint_bytes
from codeq_cluster.core.log_line import LINES_MAX, LogLine, line_id
from codeq_cluster.core.stepping import counted, durable_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Durable, More, State, Task
from codeq_cluster.core.view import View

_ENDED = (State.DONE, State.FAILED)


def reported(view: View, report: Report, before: Task, after: Task) -> tuple[Change, ...]:
    """Return the changes of a heartbeat that carries something, beside the lease's new end.

    Args:
        view: With the checkpoint and the log as they stand.
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
    if report.log:
        durable, rows = _logged(view, after, report.log)
        more, others = replace(more, durable=durable), (*others, *rows)
    if more != (after.more or More()):
        after = replace(after, more=more)
    return others if after == before else (TaskChange(before=before, after=after), *others)


def _logged(
    view: View, task: Task, texts: tuple[str, ...]
) -> tuple[Durable, tuple[ItemChange, ...]]:
    """Return what stands beside a task after some lines more, and the changes that lead there."""
    durable = durable_of(task)
    new = tuple(
        LogLine(
            tenant=task.tenant,
            id=line_id(task.id, number),
            at_ms=view.now_ms,
            attempt=task.attempts,
            text=each,
        )
        for number, each in enumerate(texts, start=durable.logged + 1)
    )
    over = durable.lines + len(new) - LINES_MAX
    oldest = view.beside(ItemKind.LOG, task.tenant, task.id)
    changes = tuple(ItemChange(before=row, after=None) for row in islice(oldest, max(0, over)))
    changes += tuple(ItemChange(before=None, after=row) for row in new)
    return counted(durable, changes), changes


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
