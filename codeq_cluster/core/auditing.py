"""Auditing: the record that an operator's action leaves in the same entry.

An action that changes nothing leaves no record: it is a replay, or there was nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from codeq_cluster.core import (
    administering,
    bulking,
    delivering,
    flowing,
    import_record,
    key_rules,
    limiting,
    scheduling,
    setting_aside,
    triage,
)
from codeq_cluster.core.audit_record import Said, recorded
from codeq_cluster.core.bulk import StartBulk, StopBulk
from codeq_cluster.core.changes import Decision, ItemChange
from codeq_cluster.core.importing import take_over
from codeq_cluster.core.items import WEBHOOK_KEY_ID
from codeq_cluster.core.lane import SetKey
from codeq_cluster.core.limit import DeleteLimit, PutLimit
from codeq_cluster.core.operations import (
    Delete,
    DeleteTopic,
    Import,
    PauseQueue,
    Purge,
    PutFlow,
    PutTopic,
    Record,
    Replay,
    Requeue,
    ResumeQueue,
    Retry,
    Revise,
    RotateWebhookKey,
    UndoRequeue,
)
from codeq_cluster.core.outcomes import (
    BulkStands,
    Changed,
    Imported,
    LimitStands,
    ScheduleStands,
    TopicStands,
)
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import (
    BackfillSchedule,
    DeleteSchedule,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    TriggerSchedule,
)
from codeq_cluster.core.view import View

_Rule = Callable[[View, Any, LifetimeRules], Decision]


def record(view: View, operation: Record, rules: LifetimeRules) -> Decision:
    """Add an audit record; the same request has at most one per millisecond."""
    said = operation.action, operation.target, operation.detail
    change = _record(view, operation, rules, said)
    return Decision(Changed(1), (change,) if change.before is None else ())


def import_on_record(view: View, operation: Import, rules: LifetimeRules) -> Decision:
    """Import, and leave one record however many parts and shards the import has."""
    decision = take_over(view, operation, rules)
    if not decision.changes:
        return decision
    assert isinstance(decision.outcome, Imported)
    number = 0 if operation.callbacks_only else decision.outcome.imported
    record_id, before = import_record.placed(view, operation)
    detail = import_record.brought(tasks=number, items=decision.outcome.items_imported)
    if before is not None:
        detail = import_record.summed(before.detail, detail)
    said = import_record.ACTION, operation.source, detail
    change = _record(view, operation, rules, said, record_id=record_id)
    return Decision(decision.outcome, (*decision.changes, change))


def _put(_: PutTopic | PutFlow, decision: Decision) -> Said:
    assert isinstance(decision.outcome, TopicStands)
    topic = decision.outcome.topic
    return "topic.put", topic.id, f"version {topic.version}"


def _limited(_: PutLimit, decision: Decision) -> Said:
    assert isinstance(decision.outcome, LimitStands)
    limit = decision.outcome.limit
    return "limit.put", limit.id, f"version {limit.version}"


def _rotated(operation: RotateWebhookKey, _: Decision) -> Said:
    until = f"the previous key signs for {operation.overlap_ms // 1000} s more"
    return "webhook-key.rotate", WEBHOOK_KEY_ID, until


def _deleted(operation: Delete, decision: Decision) -> Said:
    return _several("dlq.delete" if operation.dead_only else "task.delete")(operation, decision)


def _purged(operation: Purge, decision: Decision) -> Said:
    number = len(decision.changes)
    tasks = f"{number} {'task' if number == 1 else 'tasks'} on one shard"
    return "queue.purge", operation.queue, tasks


def _scheduled(_: PutSchedule, decision: Decision) -> Said:
    assert isinstance(decision.outcome, ScheduleStands)
    schedule = decision.outcome.schedule
    return "schedule.put", schedule.id, f"version {schedule.version}"


def _key_set(operation: SetKey, _: Decision) -> Said:
    return f"key.{'delete' if operation.own is None else 'put'}", operation.queue, operation.key


def _of_schedule(action: str) -> Callable[[Any, Decision], Said]:
    return lambda operation, _: (f"schedule.{action}", operation.id, "")


def _bulk_started(operation: StartBulk, _: Decision) -> Said | None:
    # The other shards begin the same job.
    said = bulking.said_of(operation.action, operation)
    return ("bulk.start", operation.id, said) if operation.leads else None


def _bulk_stopped(operation: StopBulk, decision: Decision) -> Said:
    assert isinstance(decision.outcome, BulkStands)
    return "bulk.stop", operation.id, f"after {decision.outcome.job.changed} tasks on one shard"


def _several(action: str) -> Callable[[Any, Decision], Said]:
    """Return what is said of an action on the targets `ids`: the first, and how many they are."""

    def said(operation: Any, _: Decision) -> Said:
        ids = operation.ids
        return action, ids[0], f"{len(ids)} on one shard" if len(ids) > 1 else ""

    return said


# By operation: its rule, and what its record says; None for no record.
_ACTIONS: dict[type, tuple[_Rule, Callable[[Any, Decision], Said | None]]] = {
    PutTopic: (administering.put_topic, _put),
    PutFlow: (flowing.put_flow, _put),
    DeleteTopic: (
        flowing.drop_topic,
        lambda operation, _: ("topic.delete", operation.name.lower(), ""),
    ),
    PutLimit: (limiting.put_limit, _limited),
    DeleteLimit: (
        limiting.delete_limit,
        lambda operation, _: ("limit.delete", operation.name.lower(), ""),
    ),
    SetKey: (key_rules.set_key, _key_set),
    PauseQueue: (
        administering.pause,
        lambda operation, _: ("queue.pause", operation.queue.lower(), ""),
    ),
    ResumeQueue: (
        administering.resume,
        lambda operation, _: ("queue.resume", operation.queue.lower(), ""),
    ),
    RotateWebhookKey: (administering.rotate_webhook_key, _rotated),
    Requeue: (administering.requeue, _several("dlq.requeue")),
    Delete: (administering.delete, _deleted),
    Purge: (triage.purge, _purged),
    Revise: (triage.revise, lambda operation, _: ("dlq.revise", operation.id, "")),
    UndoRequeue: (triage.undo_requeue, _several("dlq.undo")),
    Replay: (delivering.replay, _several("delivery.replay")),
    Retry: (setting_aside.retry, _several("aside.retry")),
    PutSchedule: (scheduling.put, _scheduled),
    DeleteSchedule: (scheduling.delete, _of_schedule("delete")),
    PauseSchedule: (scheduling.pause, _of_schedule("pause")),
    ResumeSchedule: (scheduling.resume, _of_schedule("resume")),
    TriggerSchedule: (scheduling.trigger, _of_schedule("trigger")),
    BackfillSchedule: (scheduling.backfill, _of_schedule("backfill")),
    StartBulk: (bulking.start, _bulk_started),
    StopBulk: (bulking.stop, _bulk_stopped),
}


def _act(view: View, operation: Any, rules: LifetimeRules) -> Decision:
    """Decide an action, and add its record if it changes something."""
    rule, said = _ACTIONS[type(operation)]
    decision = rule(view, operation, rules)
    if not decision.changes:
        return decision
    text = said(operation, decision)
    if text is None:
        return decision
    author = operation.topic if isinstance(operation, PutFlow) else operation
    change = _record(view, author, rules, text)
    return Decision(decision.outcome, (*decision.changes, change))


RULES: dict[type, _Rule] = {
    Record: record,
    Import: import_on_record,
    **dict.fromkeys(_ACTIONS, _act),
}


def _record(
    view: View, operation: Any, rules: LifetimeRules, said: Said, *, record_id: str = ""
) -> ItemChange:
    return recorded(
        view,
        rules,
        said,
        tenant=operation.tenant,
        by=operation.by,
        request=operation.request,
        record_id=record_id,
    )
