"""Tagging: the tags of a task that is there are changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from codeq_cluster.core.changes import Decision, TaskChange
from codeq_cluster.core.holding import found
from codeq_cluster.core.outcomes import Rejected, Rejection, Tagged
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.selecting import tags_of
from codeq_cluster.core.tags import TAGS_MAX, ChangeTags, in_order
from codeq_cluster.core.task import More, Task
from codeq_cluster.core.view import View


def change_tags(view: View, operation: ChangeTags, rules: LifetimeRules) -> Decision:
    """Put and remove tags of a task; repeated, it changes nothing.

    When the task was updated stays as it is: that is part of its course, and an ended one has its
    place by it.
    """
    del rules
    assert not {name for name, _ in operation.put} & set(operation.remove)
    task = found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    tags = tags_after(task, put=operation.put, remove=operation.remove)
    if tags == tags_of(task):
        return Decision(Tagged(task.id, tags))
    if len(tags) > TAGS_MAX:
        return Decision(Rejected(Rejection.TOO_MANY_TAGS, str(TAGS_MAX)))
    return Decision(Tagged(task.id, tags), (TaskChange(before=task, after=tagged(task, tags)),))


def tags_after(
    task: Task, *, put: Sequence[tuple[str, str]], remove: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """Return what the tags of a task are after a change; there may be too many of them."""
    wanted = dict(tags_of(task)) | dict(put)
    for name in remove:
        wanted.pop(name, None)
    return in_order(wanted)


def tagged(task: Task, tags: tuple[tuple[str, str], ...]) -> Task:
    """Return a task with these tags."""
    return replace(task, more=replace(task.more or More(), tags=tags))
