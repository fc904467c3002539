"""Auditing: the record that an operator's action leaves in the same entry.

An action that changes nothing leaves no record: it is a replay, or there was nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from codeq_cluster.core import (
    administering,
    delivering,
    flowing,
    import_record,
    key_rules,
    scheduling,
    setting_aside,
    triage,
)
from codeq_cluster.core.changes import Decision, ItemChange
from codeq_cluster.core.importing import take_over
from codeq_cluster.core.items import WEBHOOK_KEY_ID, Audit, audit_id
from codeq_cluster.core.lane import SetKey
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
from codeq_cluster.core.outcomes import Changed, Imported, ScheduleStands, TopicStands
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import (
    BackfillSchedule,
    DeleteSchedule,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    TriggerSchedule,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.view import View

_Rule = Callable[[View, Any, LifetimeRules], Decision]
_Said = tuple[str, str, str]  # The action, its target and a detail.


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


def _put(_: PutTopic | PutFlow, decision: Decision) -> _Said:
    assert isinstance(decision.outcome, TopicStands)
    topic = decision.outcome.topic
    return "topic.put", topic.id, f"version {topic.version}"


def _rotated(operation: RotateWebhookKey, _: Decision) -> _Said:
    until = f"the previous key signs for {operation.overlap_ms // 1000} s more"
    return "webhook-key.rotate", WEBHOOK_KEY_ID, until


def _deleted(operation: Delete, decision: Decision) -> _Said:
    return _several("dlq.delete" if operation.dead_only else "task.delete")(operation, decision)


def _purged(operation: Purge, decision: Decision) -> _Said:
    number = len(decision.changes)
    tasks = f"{number} {'task' if number == 1 else 'tasks'} on one shard"
    return "queue.purge", operation.queue, tasks


def _scheduled(_: PutSchedule, decision: Decision) -> _Said:
    assert isinstance(decision.outcome, ScheduleStands)
    schedule = decision.outcome.schedule
    return "schedule.put", schedule.id, f"version {schedule.version}"


def _key_set(operation: SetKey, _: Decision) -> _Said:
    return f"key.{'delete' if operation.own is None else 'put'}", operation.queue, operation.key


def _of_schedule(action: str) -> Callable[[Any, Decision], _Said]:
    return lambda operation, _: (f"schedule.{action}", operation.id, "")


def _several(action: str) -> Callable[[Any, Decision], _Said]:
    """Return what is said of an action on the targets `ids`: the first, and how many they are."""

    def said(operation: Any, _: Decision) -> _Said:
        ids = operation.ids
        return action, ids[0], f"{len(ids)} on one shard" if len(ids) > 1 else ""

    return said


# By operation: its rule, and what its record says.
_ACTIONS: dict[type, tuple[_Rule, Callable[[Any, Decision], _Said]]] = {
    PutTopic: (administering.put_topic, _put),
    PutFlow: (flowing.put_flow, _put),
    DeleteTopic: (
        flowing.drop_topic,
        lambda operation, _: ("topic.delete", operation.name.lower(), ""),
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
}


def _act(view: View, operation: Any, rules: LifetimeRules) -> Decision:
    """Decide an action, and add its record if it changes something."""
    rule, said = _ACTIONS[type(operation)]
    decision = rule(view, operation, rules)
    if not decision.changes:
        return decision
    author = operation.topic if isinstance(operation, PutFlow) else operation
    change = _record(view, author, rules, said(operation, decision))
    return Decision(decision.outcome, (*decision.changes, change))


RULES: dict[type, _Rule] = {
    Record: record,
    Import: import_on_record,
    **dict.fromkeys(_ACTIONS, _act),
}


def _record(
    view: View, operation: Any, rules: LifetimeRules, said: _Said, *, record_id: str = ""
) -> ItemChange:
    now_ms = view.now_ms
    action, target, detail = said
    item = Audit(
        tenant=operation.tenant,
        id=record_id or audit_id(now_ms, operation.request),
        at_ms=now_ms,
        actor=operation.by,
        action=action,
        target=target,
        detail=detail,
        request=operation.request,
        expires_ms=now_ms + rules.audit_retention_ms,
    )
    # A retry may do the rest in the same millisecond: that is one action, and its last record
    # stays.
    return ItemChange(before=view.item(ItemKind.AUDIT, item.tenant, item.id), after=item)
