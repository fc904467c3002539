"""Administering: operators' actions on queues and on ended tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from codeq_cluster.core.changes import Change, Decision, ItemChange, TaskChange
from codeq_cluster.core.items import KIND_OF, WEBHOOK_KEY_ID, WEIGHT_MAX, Pause, Topic, WebhookKey
from codeq_cluster.core.lane import FlowRule
from codeq_cluster.core.operations import (
    Delete,
    DeleteTopic,
    PauseQueue,
    PutTopic,
    Requeue,
    ResumeQueue,
    RotateWebhookKey,
)
from codeq_cluster.core.outcomes import Changed, Rejected, Rejection, TopicStands
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind, StoredItem
from codeq_cluster.core.task import AttemptOutcome, State, Task
from codeq_cluster.core.transitions import may_revive, revived
from codeq_cluster.core.unique import scope_of, unique_key
from codeq_cluster.core.uniques import taken
from codeq_cluster.core.view import View

# Ids of one operation, so that it fits an entry of 3 MiB. The sweeps of deleted tasks weigh most:
# 48 x 100 uploads x about 600 bytes.
IDS_MAX = 48


def named_tasks(view: View, tenant: str, ids: Sequence[str]) -> Iterator[Task]:
    """Yield the tenant's tasks that an operation names, each once; others are left alone."""
    assert len(ids) <= IDS_MAX
    for task_id in dict.fromkeys(ids):
        task = view.task(task_id)
        if task is not None and task.tenant == tenant:
            yield task


def requeue(view: View, operation: Requeue, rules: LifetimeRules) -> Decision:
    """Make dead letters ready again; tasks already revived by this request count as well.

    One whose unique key is held stays dead; if it is the only one that is named, that is refused.
    """
    count = 0
    changes: list[Change] = []
    given: set[str] = set()  # Unique keys that these have got.
    for task in named_tasks(view, operation.tenant, operation.ids):
        if not revived_under(task, operation.request):
            by, request = operation.by, operation.request
            change = revival(view, task, rules, by=by, request=request, given=given)
            if isinstance(change, Rejected) and len(operation.ids) == 1:
                return Decision(change)
            if not isinstance(change, TaskChange):
                continue  # It stays as it is, and the others go on.
            changes.append(change)
        count += 1
    return Decision(Changed(count), tuple(changes))


def revival(
    view: View, task: Task, rules: LifetimeRules, *, by: str, request: str, given: set[str]
) -> TaskChange | Rejected | None:
    """Return the change that revives a dead letter, or why its unique key is not free.

    None for another task. `given` are the scopes of the unique keys that the decision has given to
    others; that of this one is added.
    """
    if not may_revive(task, now_ms=view.now_ms):
        return None
    refusal = taken(view, task, rules.shards, but=given)
    if refusal is not None:
        return refusal
    if unique_key(task):
        given.add(scope_of(task))
    seq, now_ms = view.next_seq(), view.now_ms
    after = revived(task, rules, seq=seq, by=by, request=request, now_ms=now_ms)
    return TaskChange(before=task, after=after)


def revived_under(task: Task, request: str) -> bool:
    """Return whether the request has revived the task before, whatever happened to it since."""
    return any(
        each.outcome is AttemptOutcome.REQUEUED and each.request == request for each in task.history
    )


def delete(view: View, operation: Delete, _: LifetimeRules) -> Decision:
    """Delete terminal tasks; missing tasks count as deleted, because a retry finds them gone."""
    assert len(operation.ids) <= IDS_MAX
    count = 0
    changes: list[Change] = []
    for task_id in dict.fromkeys(operation.ids):
        task = view.task(task_id)
        if task is not None:
            if task.tenant != operation.tenant or not task.state.terminal:
                continue
            if operation.dead_only and task.state is not State.DEAD:
                continue
            changes.append(TaskChange(before=task, after=None))
        count += 1
    return Decision(Changed(count), tuple(changes))


_NO_FLOW = FlowRule("", "", 0, None, 0)


def rule_on(topic: Topic, shard: int) -> FlowRule:
    """Return the rules of a topic for a shard."""
    return FlowRule(
        topic.tenant,
        topic.id,
        topic.rule_seq,
        topic.per_key,
        shard,
        topic.per_queue,
        topic.pinned,
        topic.limit,
    )


def put_topic(view: View, operation: PutTopic, _: LifetimeRules) -> Decision:
    """Create a topic, or change all of it but its flow."""
    found = view.item(ItemKind.TOPIC, operation.tenant, operation.name.lower())
    assert found is None or isinstance(found, Topic)
    if found is None:
        return stands(view, operation)
    return stands(view, operation, rule_on(found, 0))


def stands(view: View, operation: PutTopic, flow: FlowRule = _NO_FLOW) -> Decision:
    """Create a topic, or change it under its next version; equal values change nothing."""
    assert 1 <= operation.weight <= WEIGHT_MAX
    assert min(operation.max_attempts, operation.retention_s, operation.max_consumers) >= 0
    assert operation.handling is None or operation.handling.is_sound
    queue = operation.name.lower()
    found = view.item(ItemKind.TOPIC, operation.tenant, queue)
    assert found is None or isinstance(found, Topic)
    now_ms = view.now_ms
    topic = Topic(
        tenant=operation.tenant,
        id=queue,
        name=operation.name,
        version=found.version + 1 if found is not None else 1,
        priority_tiers=operation.priority_tiers,
        max_attempts=operation.max_attempts,
        dead_letter=operation.dead_letter.lower(),
        retention_s=operation.retention_s,
        max_consumers=operation.max_consumers,
        weight=operation.weight,
        handling=operation.handling,
        created_ms=found.created_ms if found is not None else now_ms,
        updated_ms=now_ms,
        request=operation.request,
        per_key=flow.per_key,
        rule_seq=flow.seq,
        per_queue=flow.per_queue,
        pinned=flow.pinned,
        limit=flow.limit,
    )
    if found is not None:
        made_now = found.version == 1 and found.request == operation.request
        same = replace(
            topic, version=found.version, updated_ms=found.updated_ms, request=found.request
        )
        if same == found:
            return Decision(TopicStands(found, made=made_now))
    if found is None and _full(view, Topic, operation.tenant):
        return Decision(Rejected(Rejection.TOO_MANY, "topics"))
    change = ItemChange(before=found, after=topic)
    return Decision(TopicStands(topic, made=found is None), (change,))


def delete_topic(view: View, operation: DeleteTopic, _: LifetimeRules) -> Decision:
    """Delete a topic; a missing one counts as deleted."""
    return _without(view, ItemKind.TOPIC, operation.tenant, operation.name.lower())


def pause(view: View, operation: PauseQueue, _: LifetimeRules) -> Decision:
    """Pause a queue; a paused one keeps its first pause and the operator named there."""
    queue = operation.queue.lower()
    found = view.item(ItemKind.PAUSE, operation.tenant, queue)
    if isinstance(found, Pause):
        return Decision(Changed(1 if found.request == operation.request else 0))
    if _full(view, Pause, operation.tenant):
        return Decision(Rejected(Rejection.TOO_MANY, "paused queues"))
    item = Pause(
        tenant=operation.tenant,
        id=queue,
        by=operation.by,
        since_ms=view.now_ms,
        request=operation.request,
    )
    return Decision(Changed(1), (ItemChange(before=None, after=item),))


def resume(view: View, operation: ResumeQueue, _: LifetimeRules) -> Decision:
    """Resume a queue; one that is not paused counts as resumed."""
    return _without(view, ItemKind.PAUSE, operation.tenant, operation.queue.lower())


def rotate_webhook_key(view: View, operation: RotateWebhookKey, _: LifetimeRules) -> Decision:
    """Begin the key's next version, once for each request."""
    assert operation.overlap_ms >= 0
    found = view.item(ItemKind.WEBHOOK_KEY, operation.tenant, WEBHOOK_KEY_ID)
    assert found is None or isinstance(found, WebhookKey)
    if found is not None and found.request == operation.request:
        return Decision(Changed(1))
    item = WebhookKey(
        tenant=operation.tenant,
        version=(found.version if found is not None else 1) + 1,
        previous_until_ms=view.now_ms + operation.overlap_ms,
        rotated_ms=view.now_ms,
        request=operation.request,
    )
    return Decision(Changed(1), (ItemChange(before=found, after=item),))


def _full(view: View, kind: type[StoredItem], tenant: str) -> bool:
    return view.count_items(KIND_OF[kind], tenant, kind.count_max) == kind.count_max


def _without(view: View, kind: ItemKind, tenant: str, item_id: str) -> Decision:
    found = view.item(kind, tenant, item_id)
    if found is None:
        return Decision(Changed(0))
    return Decision(Changed(1), (ItemChange(before=found, after=None),))
