"""Decide: one operation against one view, giving an answer and the changes that make it true.

Pure and deterministic in the view: the leader decides, and the log replicates its decisions.

A lease ends by a transition, never by the clock alone. Between a lease's last instant and the
`Advance` that notices it, its holder may still act. At every moment exactly one worker can act, and
no two decisions can disagree about which one.

An operation on a task carries a request; for a `Create` it is the task's id, for a `Staging` its
upload. Under the same request a retry changes nothing and gets the same answer, as long as the task
remembers the request:

- an abandon, a nack or a requeue: for `history_attempts_max` deliveries;
- a claim or a stage: for the lease;
- the others: for the task's life.

A retried abandon or nack of a task that was since requeued answers "returned", not "dead". A
requeue that was taken back is forgotten; a retry of it is a new one.
An undelivered abandon leaves no trace in the task. Its token, which it must carry, keeps it from
being done twice.

An item remembers its last writer: a topic, a pause, a subscription by its id, a replayed delivery.
A deleted item remembers nothing. A second deletion of a topic, a resume or an unsubscribe therefore
changes nothing and says so. A deletion of tasks counts missing ones as deleted.
A `Record` repeated in another millisecond is recorded twice under the same request.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from codeq_cluster.core import administering, delivering, importing, subscribing, triage
from codeq_cluster.core.backoff import backoff_ms
from codeq_cluster.core.changes import Decision, TaskChange
from codeq_cluster.core.claiming import claim
from codeq_cluster.core.expiry import advance
from codeq_cluster.core.items import ItemKind, Topic
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Create,
    Delete,
    DeleteTopic,
    Delivered,
    Heartbeat,
    Import,
    Nack,
    Operation,
    PauseQueue,
    Purge,
    PutTopic,
    Rebury,
    Record,
    RenewSubscription,
    Replay,
    Requeue,
    ResumeQueue,
    Revise,
    Staging,
    Submit,
    Subscribe,
    Swept,
    Undelivered,
    Unsubscribe,
)
from codeq_cluster.core.outcomes import (
    Cancelled,
    Changed,
    Created,
    Extended,
    Rejected,
    Rejection,
    Returned,
    Submitted,
)
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    Attempt,
    AttemptOutcome,
    Result,
    State,
    Task,
)
from codeq_cluster.core.transitions import (
    MAX_ATTEMPTS,
    attempt_of,
    cancelled,
    dead,
    delayed,
    extended,
    returned,
    submitted,
    undelivered,
)
from codeq_cluster.core.view import View

# Artifact sets stored for one task over all its attempts; each becomes a row to sweep at its end.
UPLOADS_MAX = 100


def decide(view: View, operation: Operation, rules: LifetimeRules) -> Decision:
    """Return the answer to `operation` and its changes.

    The caller advances the view before the next operation. The only effects on the view are the
    draws of `next_seq`, `fraction` and `turns`.
    """
    decision = _decided(view, operation, rules)
    if not decision.changes or isinstance(operation, Claim | Create | Heartbeat | Import):
        return decision  # None of them ends or deletes a task, and three of them are frequent.
    more = tuple(delivering.consequences(view, decision, rules))
    return Decision(decision.outcome, (*decision.changes, *more)) if more else decision


def _decided(  # noqa: C901, PLR0912 - a line an operation
    view: View, operation: Operation, rules: LifetimeRules
) -> Decision:
    match operation:
        case Create():
            return _create(view, operation, rules)
        case Claim():
            return claim(view, operation, rules)
        case Heartbeat():
            return _heartbeat(view, operation)
        case Abandon():
            return _abandon(view, operation, rules)
        case Nack():
            return _nack(view, operation, rules)
        case Submit():
            return _submit(view, operation, rules)
        case Cancel():
            return _cancel(view, operation, rules)
        case Advance():
            return advance(view, operation, rules)
        case Staging():
            return _stage(view, operation)
        case Delivered():
            return delivering.delivered(view, operation)
        case Undelivered():
            return delivering.undelivered(view, operation, rules)
        case Swept():
            return delivering.swept(view, operation)
        case Subscribe():
            return subscribing.subscribe(view, operation)
        case RenewSubscription():
            return subscribing.renew(view, operation)
        case Unsubscribe():
            return subscribing.unsubscribe(view, operation)
        case Record():
            return administering.record(view, operation, rules)
        case Import():
            decision = importing.take_over(view, operation, rules)
            return administering.import_on_record(view, operation, decision, rules)
        case (
            PutTopic()
            | DeleteTopic()
            | PauseQueue()
            | ResumeQueue()
            | Requeue()
            | Delete()
            | Purge()
            | Revise()
            | Rebury()
            | Replay()
        ):
            decision = _administered(view, operation, rules)
            return administering.on_record(view, operation, decision, rules)
        case _:
            assert_never(operation)


def _administered(  # noqa: C901 - a line an operation
    view: View,
    operation: administering.Administering,
    rules: LifetimeRules,
) -> Decision:
    match operation:
        case PutTopic():
            return administering.put_topic(view, operation)
        case DeleteTopic():
            return administering.delete_topic(view, operation)
        case PauseQueue():
            return administering.pause(view, operation)
        case ResumeQueue():
            return administering.resume(view, operation)
        case Requeue():
            return administering.requeue(view, operation, rules)
        case Delete():
            return administering.delete(view, operation)
        case Purge():
            return triage.purge(view, operation, rules)
        case Revise():
            return triage.revise(view, operation, rules)
        case Rebury():
            return triage.rebury(view, operation, rules)
        case Replay():
            return delivering.replay(view, operation)


def _create(view: View, operation: Create, rules: LifetimeRules) -> Decision:
    assert PRIORITY_MIN <= operation.priority <= PRIORITY_MAX
    assert operation.max_attempts >= 0
    existing = view.task(operation.id)
    if existing is not None:
        return Decision(_created_before(existing, operation))
    if operation.idempotency_key:
        row = view.keyed(operation.tenant, operation.idempotency_key)
        if row is not None:
            if row.fingerprint != operation.fingerprint:
                return Decision(Rejected(Rejection.IDEMPOTENCY_CONFLICT))
            keyed = view.task(row.task_id)
            assert keyed is not None  # A key's row is deleted with its task.
            return Decision(Created(keyed, replay=True, payload=view.payload(row.task_id)))
    topic = view.policy(operation.tenant, operation.command.lower()).topic
    refusal = _outside_tiers(topic, operation) or _over_budget(view, operation, rules)
    if refusal is not None:
        return Decision(refusal)
    change = TaskChange(
        before=None,
        after=_new_task(view, operation, topic, rules),
        payload=operation.payload,
        fingerprint=operation.fingerprint if operation.idempotency_key else "",
    )
    assert change.after is not None
    return Decision(Created(change.after), (change,))


def _created_before(existing: Task, operation: Create) -> Created | Rejected:
    """Answer a create whose id is taken: a retry, or another task should an id be drawn twice."""
    same = (
        existing.tenant == operation.tenant
        and existing.command == operation.command
        and existing.idempotency_key == operation.idempotency_key
    )
    return Created(existing) if same else Rejected(Rejection.IDEMPOTENCY_CONFLICT)


def _outside_tiers(topic: Topic | None, operation: Create) -> Rejected | None:
    """Return the refusal that names the topic's tiers, or None if they allow the priority.

    Tiers bind new tasks only. An existing, revived or imported task keeps the priority that it was
    accepted with.
    """
    if topic is None or not topic.priority_tiers:
        return None
    # A tier of 10 matches 9, because a request's priority of 10 is stored as 9.
    if operation.priority in (min(tier, PRIORITY_MAX) for tier in topic.priority_tiers):
        return None
    return Rejected(Rejection.INVALID_PRIORITY, ", ".join(map(str, topic.priority_tiers)))


def _over_budget(view: View, operation: Create, rules: LifetimeRules) -> Rejected | None:
    """Return the refusal that names the tenant's budget a new task would exceed, or None."""
    budget = rules.budget_of(operation.tenant)
    if not budget.binds_creates:
        return None
    usage = view.usage(operation.tenant)
    if budget.waiting_max and usage.waiting >= budget.waiting_max:
        return Rejected(Rejection.BUDGET_EXCEEDED, "readyTasks")
    stored_bytes = usage.stored_bytes + len(operation.payload.encode())
    if budget.bytes_max and stored_bytes > budget.bytes_max:
        return Rejected(Rejection.BUDGET_EXCEEDED, "storedBytes")
    return None


def _max_attempts(topic: Topic | None, operation: Create, rules: LifetimeRules) -> int:
    """Return a new task's deliveries: the number it asks for, within the topic's ceiling."""
    most = topic.max_attempts if topic is not None else 0
    if not most:
        return operation.max_attempts or rules.max_attempts_default
    return min(operation.max_attempts, most) or most


def _new_task(view: View, operation: Create, topic: Topic | None, rules: LifetimeRules) -> Task:
    now_ms = view.now_ms
    start_ms = operation.run_at_ms or now_ms + operation.delay_ms
    waits = start_ms > now_ms
    return Task(
        id=operation.id,
        tenant=operation.tenant,
        command=operation.command,
        priority=operation.priority,
        max_attempts=_max_attempts(topic, operation, rules),
        created_ms=now_ms,
        updated_ms=now_ms,
        state=State.DELAYED if waits else State.READY,
        seq=0 if waits else view.next_seq(),
        due_ms=start_ms if waits else 0,
        ready_ms=0 if waits else now_ms,
        expires_ms=now_ms + operation.ttl_ms if operation.ttl_ms else 0,
        webhook=operation.webhook,
        trace_parent=operation.trace_parent,
        trace_state=operation.trace_state,
        idempotency_key=operation.idempotency_key,
        run_at_ms=operation.run_at_ms,
        payload_bytes=len(operation.payload.encode()),
    )


def _heartbeat(view: View, operation: Heartbeat) -> Decision:
    assert operation.extend_ms >= 1
    task = _found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    refusal = _refusal(task, operation)
    if refusal is not None:
        return Decision(Rejected(refusal))
    lease_until_ms = view.now_ms + operation.extend_ms
    if lease_until_ms == task.lease_until_ms:
        return Decision(Extended(lease_until_ms))
    after = extended(task, lease_until_ms=lease_until_ms, now_ms=view.now_ms)
    return Decision(Extended(lease_until_ms), (TaskChange(before=task, after=after),))


def _abandon(view: View, operation: Abandon, rules: LifetimeRules) -> Decision:
    assert operation.request
    assert operation.token or not operation.undelivered
    task = _found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    before = _ended_by(task, operation.request)
    if before is not None:
        return Decision(_returned_before(task, before))
    refusal = _refusal(task, operation)
    if refusal is not None:
        return Decision(Rejected(refusal))
    if operation.undelivered:
        after = undelivered(task, seq=view.next_seq(), now_ms=view.now_ms)
        return Decision(Returned(dead=False), (TaskChange(before=task, after=after),))
    attempt = attempt_of(
        task, AttemptOutcome.ABANDONED, now_ms=view.now_ms, request=operation.request
    )
    return _give_back(view, task, attempt, rules, last_error=MAX_ATTEMPTS)


def _nack(view: View, operation: Nack, rules: LifetimeRules) -> Decision:
    assert operation.request
    task = _found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    before = _ended_by(task, operation.request)
    if before is not None:
        return Decision(_returned_before(task, before))
    refusal = _refusal(task, operation)
    if refusal is not None:
        return Decision(Rejected(refusal))
    last = task.attempts >= task.max_attempts
    attempt = attempt_of(
        task,
        AttemptOutcome.NACKED,
        now_ms=view.now_ms,
        error=operation.reason,
        request=operation.request,
        delay_ms=0 if last else _nack_delay_ms(view, task, operation, rules),
    )
    return _give_back(view, task, attempt, rules, last_error=operation.reason or MAX_ATTEMPTS)


def _nack_delay_ms(view: View, task: Task, operation: Nack, rules: LifetimeRules) -> int:
    if operation.delay_ms > 0:
        return min(operation.delay_ms, rules.backoff_max_ms)
    return backoff_ms(
        rules.backoff_policy,
        base_ms=rules.backoff_base_ms,
        max_ms=rules.backoff_max_ms,
        attempts=task.attempts,
        draw=view.fraction(),
    )


def _give_back(
    view: View, task: Task, attempt: Attempt, rules: LifetimeRules, *, last_error: str
) -> Decision:
    """End the attempt: the task dies of its last one, or waits for the attempt's delay."""
    if task.attempts >= task.max_attempts:
        policy = view.policy(task.tenant, task.command.lower())
        death = dead(task, rules, policy, error=last_error, now_ms=view.now_ms, ended=attempt)
        return Decision(Returned(dead=True), (death,))
    if attempt.delay_ms:
        after = delayed(task, attempt, rules)
    else:
        after = returned(task, attempt, rules, seq=view.next_seq())
    outcome = Returned(dead=False, delay_ms=attempt.delay_ms)
    return Decision(outcome, (TaskChange(before=task, after=after),))


def _submit(view: View, operation: Submit, rules: LifetimeRules) -> Decision:
    assert operation.request
    task = _found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    if task.has_result:
        stored = view.result(task.id)
        assert stored is not None
        if _says_the_same(stored, operation):
            return Decision(Submitted(stored))
    refusal = _refusal(task, operation)
    if refusal is not None:
        return Decision(Rejected(refusal))
    if not set(operation.uploads) <= set(task.uploads):
        # These artifacts were staged before the task died and an operator revived it, so they are
        # swept.
        return Decision(Rejected(Rejection.LEASE_LOST))
    policy = view.policy(task.tenant, task.command.lower())
    change = submitted(task, operation, rules, policy, now_ms=view.now_ms)
    assert change.result is not None
    return Decision(Submitted(change.result), (change,))


def _says_the_same(stored: Result, operation: Submit) -> bool:
    """Return whether the stored result is that of this submit, by its request or its content."""
    if stored.request == operation.request:
        return True
    return (
        stored.worker == operation.worker
        and stored.status == operation.status
        and stored.body == operation.body
        and stored.error == operation.error
        and stored.artifacts == operation.artifacts
    )


def _cancel(view: View, operation: Cancel, rules: LifetimeRules) -> Decision:
    assert operation.request
    task = _found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    if task.state.terminal:
        if task.ended_by == operation.request:
            return Decision(Cancelled(task))
        return Decision(Rejected(Rejection.ALREADY_TERMINAL))
    policy = view.policy(task.tenant, task.command.lower())
    change = cancelled(task, rules, policy, request=operation.request, now_ms=view.now_ms)
    assert change.after is not None
    return Decision(Cancelled(change.after), (change,))


def _stage(view: View, operation: Staging) -> Decision:
    task = _found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    refusal = _refusal(task, operation)
    if refusal is not None:
        return Decision(Rejected(refusal))
    if operation.upload in task.uploads:
        return Decision(Changed(1))
    if (
        view.item(ItemKind.SWEEP, task.tenant, delivering.sweep_id(task, operation.upload))
        is not None
    ):
        return Decision(Rejected(Rejection.LEASE_LOST))  # Staged before the death, as in `_submit`.
    if len(task.uploads) >= UPLOADS_MAX:
        return Decision(Rejected(Rejection.TOO_MANY, "uploads"))
    after = replace(task, uploads=(*task.uploads, operation.upload), updated_ms=view.now_ms)
    return Decision(Changed(1), (TaskChange(before=task, after=after),))


def _found(
    view: View, operation: Heartbeat | Abandon | Nack | Submit | Cancel | Staging
) -> Task | None:
    """Return the task if its tenant is the caller's; another tenant's does not exist for it."""
    task = view.task(operation.id)
    return task if task is not None and task.tenant == operation.tenant else None


def _refusal(
    task: Task, operation: Heartbeat | Abandon | Nack | Submit | Staging
) -> Rejection | None:
    """Return why the worker may not act on the task, or None when it holds the lease."""
    if task.state is not State.LEASED:
        if 0 < operation.token < task.lease_token or _cancelled_under(task, operation.worker):
            return Rejection.LEASE_LOST
        return Rejection.NOT_IN_PROGRESS
    if operation.token and operation.token != task.lease_token:
        return Rejection.LEASE_LOST
    if operation.worker != task.worker:
        return Rejection.NOT_OWNER
    return None


def _cancelled_under(task: Task, worker: str) -> bool:
    """Return whether a cancellation took away the lease that this worker held on the task."""
    if not task.history:
        return False
    last = task.history[-1]
    return last.outcome is AttemptOutcome.CANCELLED and last.worker == worker


def _ended_by(task: Task, request: str) -> Attempt | None:
    """Return the attempt that the request ended, if the history still holds it."""
    for attempt in reversed(task.history):
        if attempt.request == request:
            return attempt
    return None


def _returned_before(task: Task, attempt: Attempt) -> Returned:
    """Return the answer to the request that ended the attempt."""
    dead_by_it = task.state is State.DEAD and task.ended_by == attempt.request
    return Returned(dead=dead_by_it, delay_ms=attempt.delay_ms)
