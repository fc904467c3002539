"""Firing: what becomes of the instants of a schedule, and of the ends of its runs.

A firing and its tasks are one decision, and so are the end of a run and the run that waited for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from codeq_cluster.core import sending
from codeq_cluster.core.changes import Change, Decision, TaskChange
from codeq_cluster.core.courses import Course, Courses, over_budget, status_of
from codeq_cluster.core.outcomes import Changed, How, Rejected
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import FIRED_MAX, Due, FillBack, Fire, RunEnded, RunRow, Schedule
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.view import View


def fire(view: View, operation: Fire, rules: LifetimeRules) -> Decision:
    """Decide the next instants of a schedule, unless they are decided or it has changed.

    With the tenant's budget used up, the instants from there on stay due.
    """
    assert len(operation.runs) <= FIRED_MAX
    found = view.item(ItemKind.SCHEDULE, operation.tenant, operation.id)
    if (
        not isinstance(found, Schedule)
        or (found.generation, found.version) != (operation.generation, operation.version)
        or found.done_ms != operation.from_ms
        or found.paused_ms
    ):
        return Decision(Changed(0))
    course = Course(view, found, rules)
    for due in operation.runs:
        if course.at.is_over:
            break
        row = RunRow(name=str(due.at_ms), at_ms=due.at_ms, late=due.late)
        how = course.admit(row, found.plan.overlap)
        if how is How.LATER or over_budget(how):
            # Decided up to the one before.
            if isinstance(how, Rejected) and course.at.done_ms == found.done_ms:
                return Decision(how)
            course.at = replace(course.at, next_ms=due.at_ms)
            return Decision(Changed(1), course.changes)
        course.at = _fired(course.at, due, how)
    course.at = replace(
        course.at,
        done_ms=operation.done_ms,
        next_ms=operation.next_ms,
        missed=course.at.missed + operation.missed,
        zone_rules=operation.zone_rules,
    )
    return Decision(Changed(1), course.changes)


def fill_back(view: View, operation: FillBack, rules: LifetimeRules) -> Decision:
    """Take a step of a backfill, unless it is taken."""
    assert len(operation.runs) <= FIRED_MAX
    found = view.item(ItemKind.SCHEDULE, operation.tenant, operation.id)
    if not isinstance(found, Schedule) or found.generation != operation.generation:
        return Decision(Changed(0))
    walk = found.backfill
    if walk is None or walk.done_ms != operation.from_ms:
        return Decision(Changed(0))
    course = Course(view, found, rules)
    for due in operation.runs:
        name = f"{due.at_ms}.{walk.name}" if walk.force else str(due.at_ms)
        before = course.at
        how = course.admit(RunRow(name=name, at_ms=due.at_ms, late=True), walk.overlap)
        if how is How.LATER or over_budget(how):
            if isinstance(how, Rejected) and not course.changes:
                return Decision(how)
            break
        # A run whose task is kept leaves the schedule as it is.
        is_made = how in (How.CREATED, How.QUEUED) and course.at is not before
        walk = replace(walk, done_ms=due.at_ms, made=walk.made + is_made)
        course.at = replace(course.at, backfill=walk)
    else:
        walk = replace(walk, done_ms=operation.done_ms)
        is_over = walk.done_ms >= walk.to_ms
        course.at = replace(course.at, backfill=None if is_over else walk)
    return Decision(Changed(1), course.changes)


def ends(
    view: View,
    changes: Iterable[Change],
    rules: LifetimeRules,
    *,
    courses: Courses | None = None,
) -> Iterator[Change]:
    """Yield what the ends of runs cause: on their schedules, here or on another shard.

    Args:
        changes: Of the runs' tasks, among others.
        courses: Those that the decision has changed before, which are yielded as well.
    """
    courses = courses or Courses(view, rules)
    elsewhere: list[sending.Cause] = []
    for change in changes:
        task = change.first_end if isinstance(change, TaskChange) else None
        if task is None or task.more is None or task.more.run is None:
            continue
        end = RunEnded(
            tenant=task.tenant,
            run=task.more.run,
            status=status_of(task),
            ended_ms=task.updated_ms,
        )
        shard = end.home(rules.shards)
        if shard == shard_of(task.id, rules.shards):
            courses.ended(end)
        else:
            name = f"{task.id}.{task.endings}.{sending.RUN_PLACE}"
            elsewhere.append(sending.Cause(name, task.id, shard, end))
    yield from courses.changes
    yield from sending.sent(view, elsewhere)


def _fired(at: Schedule, due: Due, how: How | Rejected) -> Schedule:
    """Return the schedule after an instant that it had to decide."""
    after = replace(
        at,
        done_ms=due.at_ms,
        caught_up=at.caught_up + 1 if due.late else 0,
        missed=at.missed + due.missed + isinstance(how, Rejected),
    )
    if how not in (How.CREATED, How.QUEUED):
        return after
    return replace(
        after,
        last_ms=due.at_ms,
        last_local=due.local,
        last_fold=due.fold,
        made=at.made + 1,
    )
