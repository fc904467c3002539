"""Scheduling: what people do with schedules."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.changes import Decision, ItemChange
from codeq_cluster.core.courses import Course
from codeq_cluster.core.outcomes import Changed, How, Rejected, Rejection, ScheduleStands, Triggered
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import (
    SCHEDULES_MAX,
    BackfillSchedule,
    DeleteSchedule,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    RunRow,
    Schedule,
    TriggerSchedule,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import SCHEDULES, count_of, moved
from codeq_cluster.core.view import View

_Named = (
    PutSchedule
    | DeleteSchedule
    | PauseSchedule
    | ResumeSchedule
    | TriggerSchedule
    | BackfillSchedule
)


def put(view: View, operation: PutSchedule, _: LifetimeRules) -> Decision:
    """Create or change a schedule; what was decided of its instants stays decided."""
    found = _found(view, operation)
    if found is None:
        return _new(view, operation)
    if found.request == operation.request:
        return Decision(ScheduleStands(found, made=found.version == 1))
    if operation.own and found.plan.owner != operation.plan.owner:
        return Decision(Rejected(Rejection.OTHER_OWNER, found.plan.owner))
    if operation.revision < found.revision and operation.revision:
        return Decision(Rejected(Rejection.STALE_REVISION, str(found.revision)))
    after = replace(found, revision=max(found.revision, operation.revision))
    if operation.plan != found.plan:
        after = replace(
            after,
            plan=operation.plan,
            version=found.version + 1,
            updated_ms=view.now_ms,
            request=operation.request,
        )
        was_idle = (found.is_over or not found.next_ms) and not found.paused_ms
        if was_idle or operation.plan.timing != found.plan.timing:
            after = _from_now(after, operation)
    if after == found:
        return Decision(ScheduleStands(found))
    return Decision(ScheduleStands(after), (ItemChange(before=found, after=after),))


def delete(view: View, operation: DeleteSchedule, _: LifetimeRules) -> Decision:
    """Delete a schedule; its open runs go on, and those that wait for them are gone."""
    found = _found(view, operation)
    if found is None:
        return Decision(Changed(0))
    if operation.revision < found.revision and operation.revision:
        return Decision(Rejected(Rejection.STALE_REVISION, str(found.revision)))
    gone = ItemChange(before=found, after=None)
    return Decision(Changed(1), (gone, tallied(view, operation.tenant, -1)))


def pause(view: View, operation: PauseSchedule, _: LifetimeRules) -> Decision:
    """Let it fire no more."""
    found = _found(view, operation)
    if found is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    if found.paused_ms:
        return Decision(ScheduleStands(found))
    after = replace(found, paused_ms=view.now_ms, paused_by=operation.by, request=operation.request)
    return Decision(ScheduleStands(after), (ItemChange(before=found, after=after),))


def resume(view: View, operation: ResumeSchedule, rules: LifetimeRules) -> Decision:
    """Let it fire again, from now on or from where it stopped."""
    found = _found(view, operation)
    if found is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    if not found.paused_ms:
        return Decision(ScheduleStands(found))
    after = replace(found, paused_ms=0, paused_by="", failures=0, request=operation.request)
    if not operation.catch_up:
        after = _from_now(after, operation)
        if operation.version not in (0, found.version):
            # Another calendar was asked than that of the plan, so the leader asks this one at once.
            after = replace(after, next_ms=after.done_ms + 1)
    course = Course(view, found, rules)
    course.at = after
    course.go_on()
    return Decision(ScheduleStands(course.at), course.changes)


def trigger(view: View, operation: TriggerSchedule, rules: LifetimeRules) -> Decision:
    """Make a run now, once for each name."""
    found = _found(view, operation)
    if found is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    if any(row.name == operation.name for row in found.queued):
        return Decision(Triggered(How.QUEUED))
    course = Course(view, found, rules)
    task_id = course.task_id(operation.name)
    if any(row.name == operation.name for row in (*found.open, *found.recent)):
        return Decision(Triggered(How.CREATED, task_id))
    row = RunRow(name=operation.name, at_ms=operation.at_ms)
    how = course.admit(row, operation.overlap or found.plan.overlap)
    if isinstance(how, Rejected):
        return Decision(how)
    if how is How.SKIPPED:
        return Decision(Triggered(how))  # It counts instants, and this is none.
    return Decision(Triggered(how, task_id if how is How.CREATED else ""), course.changes)


def backfill(view: View, operation: BackfillSchedule, _: LifetimeRules) -> Decision:
    """Begin a walk over past instants; a schedule has one at a time."""
    found = _found(view, operation)
    if found is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    if found.backfill is not None and found.backfill.name != operation.backfill.name:
        return Decision(Rejected(Rejection.BACKFILL_RUNNING))
    if found.backfill is not None or found.request == operation.request:
        return Decision(ScheduleStands(found))
    after = replace(found, backfill=operation.backfill, request=operation.request)
    return Decision(ScheduleStands(after), (ItemChange(before=found, after=after),))


def tallied(view: View, tenant: str, more: int) -> ItemChange:
    """Return the change of the tenant's number of schedules on the shard."""
    found = view.item(ItemKind.TALLY, tenant, SCHEDULES)
    return ItemChange(before=found, after=moved(found, tenant, SCHEDULES, more))


def is_full(view: View, tenant: str, *, begun: int = 0) -> bool:
    """Return whether the tenant may have no more schedules on the shard, with some just begun."""
    return count_of(view.item(ItemKind.TALLY, tenant, SCHEDULES)) + begun >= SCHEDULES_MAX


def _new(view: View, operation: PutSchedule) -> Decision:
    if is_full(view, operation.tenant):
        return Decision(Rejected(Rejection.TOO_MANY, "schedules"))
    made = Schedule(
        tenant=operation.tenant,
        id=operation.id,
        plan=operation.plan,
        generation=view.next_seq(),
        done_ms=operation.at_ms,
        next_ms=operation.next_ms,
        zone_rules=operation.zone_rules,
        revision=operation.revision,
        created_ms=view.now_ms,
        updated_ms=view.now_ms,
        request=operation.request,
    )
    new = ItemChange(before=None, after=made)
    return Decision(ScheduleStands(made, made=True), (new, tallied(view, operation.tenant, 1)))


def _from_now(at: Schedule, operation: PutSchedule | ResumeSchedule) -> Schedule:
    """Return the schedule with its next instant found again: none before now, none decided before.

    If the caller's clock is behind what is decided, the leader asks the calendar at once.
    """
    done_ms = max(operation.at_ms, at.done_ms)
    return replace(
        at,
        done_ms=done_ms,
        next_ms=operation.next_ms and max(operation.next_ms, done_ms + 1),
        zone_rules=operation.zone_rules,
    )


def _found(view: View, operation: _Named) -> Schedule | None:
    found = view.item(ItemKind.SCHEDULE, operation.tenant, operation.id)
    return found if isinstance(found, Schedule) else None
