"""Selecting: which of a tenant's tasks a list shows, and which a bulk job is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from codeq_cluster.core.bounds import Instant, NameOrNone, QueueOrNone, anything, sound, text
from codeq_cluster.core.tags import TAGS_MAX
from codeq_cluster.core.task import State, Task, worker_shown

_TEXT_BYTES_MAX = 65_536


class TaskFilter(Struct, frozen=True, array_like=True, kw_only=True):
    """Selects tasks by what stands in them.

    Attributes:
        error_part: Part of the error, ignoring case; empty for any.
        created_from_ms: Created then or later; 0 for any, as is `created_before_ms`.
        worker: The holder of the lease, with or without its name; empty for any.
        schedule: The schedule that made it; empty for any.
        group: The group that it is a member of; empty for any.
    """

    error_part: Annotated[str, text(_TEXT_BYTES_MAX)] = ""
    created_from_ms: Instant = 0
    created_before_ms: Instant = 0
    worker: Annotated[str, text(_TEXT_BYTES_MAX)] = ""
    schedule: NameOrNone = ""
    group: NameOrNone = ""

    def fits(self, task: Task) -> bool:
        """Return whether the task is selected."""
        return (
            (not self.error_part or self.error_part.lower() in task.error.lower())
            and self.created_from_ms <= task.created_ms
            and (not self.created_before_ms or task.created_ms < self.created_before_ms)
            and (not self.worker or self.worker in (task.worker, worker_shown(task)))
            and (not self.schedule or self.schedule == _schedule_of(task))
            and (not self.group or self.group == group_of(task))
        )


ALL_TASKS = TaskFilter()


class Selection(Struct, frozen=True, array_like=True, kw_only=True):
    """The tasks of a tenant that a bulk job is about.

    Attributes:
        tags: (name, value), all of which a task must have; their rows are walked.
        queue: In lower case; empty for every queue.
        states: Empty for every state.
        only: Selects among them.
    """

    tags: Annotated[tuple[tuple[str, str], ...], Meta(max_length=TAGS_MAX), anything] = ()
    queue: QueueOrNone = ""
    states: Annotated[tuple[State, ...], Meta(max_length=len(State)), anything] = ()
    only: Annotated[TaskFilter, sound] = ALL_TASKS

    def fits(self, task: Task) -> bool:
        """Return whether the task is selected, apart from its tenant."""
        return (not self.states or task.state in self.states) and is_among(
            task, tags=self.tags, queue=self.queue, only=self.only
        )


def is_among(
    task: Task, *, tags: tuple[tuple[str, str], ...], queue: str, only: TaskFilter
) -> bool:
    """Return whether a task has all of these tags, is of the queue if any, and fits."""
    return (
        set(tags) <= set(tags_of(task)) and queue in ("", task.command.lower()) and only.fits(task)
    )


def steps_of(leaps: int, tags: Sequence[tuple[str, str]]) -> int:
    """Return how many steps of a walk make so many leaps: a step makes one for each tag."""
    return max(1, leaps // max(1, len(tags)))


def tags_of(task: Task) -> tuple[tuple[str, str], ...]:
    """Return the tags of a task; none for most."""
    return () if task.more is None else task.more.tags


def _schedule_of(task: Task) -> str:
    run = task.more.run if task.more is not None else None
    return "" if run is None else run.schedule


def group_of(task: Task) -> str:
    """Return the group that a task is a member of, or ""."""
    member = task.more.member if task.more is not None else None
    return "" if member is None else member.group
