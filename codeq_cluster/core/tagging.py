"""Tagging: the tags of a task that is there are changed."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.changes import Decision, TaskChange
from codeq_cluster.core.holding import found
from codeq_cluster.core.outcomes import Rejected, Rejection, Tagged
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.tags import TAGS_MAX, ChangeTags, in_order
from codeq_cluster.core.task import More, Task
from codeq_cluster.core.view import View


def tags_of(task: Task) -> tuple[tuple[str, str], ...]:
    """Return the tags of a task; none for most."""
    return () if task.more is None else task.more.tags


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
    before = tags_of(task)
    wanted = dict(before) | dict(operation.put)
    for name in operation.remove:
        wanted.pop(name, None)
    tags = in_order(wanted)
    if tags == before:
        return Decision(Tagged(task.id, tags))
    if len(tags) > TAGS_MAX:
        return Decision(Rejected(Rejection.TOO_MANY_TAGS, str(TAGS_MAX)))
    after = replace(task, more=replace(task.more or More(), tags=tags))
    return Decision(Tagged(task.id, tags), (TaskChange(before=task, after=after),))
