"""Bulking: begins and stops the parts of bulk jobs, and takes their steps."""

from __future__ import annotations

from collections.abc import Collection
from typing import assert_never

from msgspec.structs import replace

from codeq_cluster.core.administering import revival
from codeq_cluster.core.audit_record import recorded
from codeq_cluster.core.bulk import (
    CHANGED_MAX,
    JOBS_MAX,
    KEPT_JOBS,
    KEPT_MS,
    LIVE_JOBS,
    LIVE_MAX,
    LOOKED_MAX,
    SPARED_MS,
    STEP_MS,
    ActionKind,
    BulkAction,
    BulkJob,
    StartBulk,
    StopBulk,
)
from codeq_cluster.core.cancelling import cancel_change, cancel_with
from codeq_cluster.core.changes import Change, Decision, ItemChange, TaskChange
from codeq_cluster.core.creating import has_tier
from codeq_cluster.core.outcomes import BulkStands, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.selecting import steps_of, tags_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tagging import tagged, tags_after
from codeq_cluster.core.tags import TAGS_MAX, shown_tag
from codeq_cluster.core.task import Cancelling, State, Task
from codeq_cluster.core.transitions import due
from codeq_cluster.core.view import View


def start(view: View, operation: StartBulk, rules: LifetimeRules) -> Decision:
    """Begin a job here, or answer with the one that the same request has begun."""
    del rules
    found = view.item(ItemKind.BULK, operation.tenant, operation.id)
    if isinstance(found, BulkJob):
        if (found.select, found.action) != (operation.select, operation.action):
            return Decision(Rejected(Rejection.IDEMPOTENCY_CONFLICT))
        return Decision(BulkStands(found))
    jobs = list(view.bulk_jobs(operation.tenant))
    if sum(not job.ended_ms for job in jobs) >= LIVE_MAX:
        return Decision(Rejected(Rejection.TOO_MANY, LIVE_JOBS))
    job = BulkJob(
        tenant=operation.tenant,
        id=operation.id,
        select=operation.select,
        action=operation.action,
        until_ms=view.now_ms,
        by=operation.by,
        request=operation.request,
        # Not at once, so that its two audit records have different instants, and names. And not at
        # the same time on all shards: the steps of one would wait for those of the others.
        expires_ms=view.now_ms + STEP_MS + int(view.fraction() * STEP_MS),
    )
    changes: list[Change] = [ItemChange(before=None, after=job)]
    if len(jobs) >= JOBS_MAX:
        old_ms = view.now_ms - SPARED_MS
        ended = [each for each in jobs if each.ended_ms and each.until_ms <= old_ms]
        if not ended:
            return Decision(Rejected(Rejection.TOO_MANY, KEPT_JOBS))
        first = min(ended, key=lambda each: each.ended_ms)
        changes.append(ItemChange(before=first, after=None))
    return Decision(BulkStands(job, made=True), tuple(changes))


def stop(view: View, operation: StopBulk, rules: LifetimeRules) -> Decision:
    """Let a job do no more here; one that has ended stays as it is."""
    del rules
    found = view.item(ItemKind.BULK, operation.tenant, operation.id)
    if not isinstance(found, BulkJob):
        return Decision(Rejected(Rejection.NOT_FOUND))
    if found.ended_ms:
        return Decision(BulkStands(found))
    job = replace(_ended(found, view.now_ms), stopped_by=operation.by or "-")
    return Decision(BulkStands(job), (ItemChange(before=found, after=job),))


def elapsed(
    view: View,
    job: BulkJob,
    rules: LifetimeRules,
    busy: Collection[str],
    *,
    most: int,
    pause_ms: int,
) -> list[Change]:
    """Return what time does with a job: its next step, or that it is forgotten.

    Args:
        job: Whose instant has come.
        busy: The tasks that the decision changes already; the walk waits in front of these.
        most: How many tasks the step may change; fewer than `CHANGED_MAX` if so many did not fit an
            entry.
        pause_ms: The next step comes so much later, or `STEP_MS` later if that is more.
    """
    if job.ended_ms:
        return [ItemChange(before=job, after=None)]
    changes: list[Change] = []
    given: set[str] = set()  # Unique keys that this step has handed out.
    walked, looked, selected, unreadable = job.walked, 0, 0, 0
    is_over, changed_max = True, min(CHANGED_MAX, most)
    looked_max = steps_of(LOOKED_MAX, job.select.tags)
    rows = view.walk(job.tenant, job.select.tags, only=job.select.only, after=job.walked)
    for position, task_id in rows:
        if len(changes) == changed_max or looked == looked_max or task_id in busy:
            is_over = False
            break
        walked, looked = position, looked + 1
        if not task_id:
            continue
        task = view.readable(task_id)
        if task is None:
            unreadable += 1
            continue
        if not job.fits(task):
            continue
        selected += 1
        change = _changed(view, job, task, rules, given)
        if change is not None:
            changes.append(change)
    after = replace(
        job,
        walked=walked,
        looked=job.looked + looked,
        selected=job.selected + selected,
        changed=job.changed + len(changes),
        expires_ms=view.now_ms + max(STEP_MS, pause_ms),
        unreadable=job.unreadable + unreadable,
    )
    if is_over:
        after = _ended(after, view.now_ms)
        if after.changed:
            changes.append(_end_recorded(view, after, rules))
    return [*changes, ItemChange(before=job, after=after)]


def said_of(action: BulkAction, job: StartBulk) -> str:
    """Return what the audit record of a start says: the action, and the selection."""
    select, only = job.select, job.select.only
    said = [
        *(f"tag={shown_tag(*tag)}" for tag in select.tags),
        *([f"command={select.queue}"] if select.queue else []),
        *([f"states={','.join(each.name for each in select.states)}"] if select.states else []),
        *([f"schedule={only.schedule}"] if only.schedule else []),
        *([f"group={only.group}"] if only.group else []),
        *([f"from={only.created_from_ms}"] if only.created_from_ms else []),
        *([f"before={only.created_before_ms}"] if only.created_before_ms else []),
    ]
    return f"{action.kind.value} {' '.join(said)}"


def _changed(
    view: View, job: BulkJob, task: Task, rules: LifetimeRules, given: set[str]
) -> TaskChange | None:
    """Return what the action changes of a task; None if it leaves the task alone."""
    action = job.action
    if not action.applies(task):
        return None
    match action.kind:
        case ActionKind.CANCEL:
            return _cancelled(view, job, task, rules)
        case ActionKind.REQUEUE:
            change = revival(view, task, rules, by=job.by, request=job.id, given=given)
            return change if isinstance(change, TaskChange) else None
        case ActionKind.DELETE:
            return TaskChange(before=task, after=None)
        case ActionKind.PRIORITY:
            return _prioritized(view, task, action.priority)
        case ActionKind.RUN_NOW:
            now_ms = view.now_ms
            return TaskChange(before=task, after=due(task, seq=view.next_seq(), now_ms=now_ms))
        case ActionKind.TAG:
            tags = tags_after(task, put=action.put, remove=action.remove)
            if tags == tags_of(task) or len(tags) > TAGS_MAX:
                return None
            return TaskChange(before=task, after=tagged(task, tags))
        case _:
            assert_never(action.kind)


def _cancelled(view: View, job: BulkJob, task: Task, rules: LifetimeRules) -> TaskChange:
    if not job.action.reason:
        return cancel_change(view, task, rules, request=job.id)
    asked = Cancelling(reason=job.action.reason, deadline_ms=view.now_ms, request=job.id)
    return cancel_with(view, task, rules, asked)


def _prioritized(view: View, task: Task, priority: int) -> TaskChange | None:
    topic = view.policy(task.tenant, task.command.lower()).topic
    if topic is not None and not has_tier(topic, priority):
        return None
    after = replace(task, priority=priority, updated_ms=view.now_ms)
    if task.state is State.HELD and not task.waits_for_others:
        # It goes through its key again: it may go before others now.
        after = replace(after, state=State.READY, ready_ms=view.now_ms)
    return TaskChange(before=task, after=after)


def _ended(job: BulkJob, now_ms: int) -> BulkJob:
    return replace(job, ended_ms=now_ms, expires_ms=now_ms + KEPT_MS)


def _end_recorded(view: View, job: BulkJob, rules: LifetimeRules) -> ItemChange:
    number = job.changed
    tasks = f"{number} {'task' if number == 1 else 'tasks'} on one shard"
    said = f"bulk.{job.action.kind.value}", job.id, tasks
    return recorded(view, rules, said, tenant=job.tenant, by=job.by, request=job.request)
