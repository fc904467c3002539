"""Creating: the task that comes of what its producer says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec.structs import replace

from codeq_cluster.core.bounds import SEQ_MAX
from codeq_cluster.core.budget import NO_BUDGET, Budget
from codeq_cluster.core.changes import Decision, TaskChange
from codeq_cluster.core.dependencies import Dependencies, waiting_for
from codeq_cluster.core.handling import of_new_task
from codeq_cluster.core.items import Topic
from codeq_cluster.core.limit import pin_said, scope_of_limit
from codeq_cluster.core.new_task import Create, CreateKeyed, CreateTagged
from codeq_cluster.core.outcomes import Created, Rejected, Rejection
from codeq_cluster.core.placing import is_misplaced, once_name
from codeq_cluster.core.relays import RelayedTask
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import PRIORITY_MAX, PRIORITY_MIN, More, State, Task
from codeq_cluster.core.transitions import waiting
from codeq_cluster.core.view import View

# Of the tasks that one decision makes: the tenant, and the name that the key is known under.
OnceNames: TypeAlias = set[tuple[str, str]]


def create(view: View, operation: Create, rules: LifetimeRules) -> Decision:
    """Make a task, or answer with the one that an earlier create made."""
    assert operation.id
    assert PRIORITY_MIN <= operation.priority <= PRIORITY_MAX
    assert operation.max_attempts >= 0
    assert operation.handling is None or operation.handling.is_sound
    existing = view.task(operation.id)
    if existing is not None:
        return Decision(created_before(existing, operation))
    if operation.idempotency_key:
        row = view.keyed(operation.tenant, once_name(operation))
        if row is not None:
            if row.fingerprint != operation.fingerprint:
                return Decision(Rejected(Rejection.IDEMPOTENCY_CONFLICT))
            keyed = view.task(row.task_id)
            assert keyed is not None  # A key's row is deleted with its task.
            return Decision(Created(keyed, replay=True, payload=view.payload(row.task_id)))
    queue = operation.command.lower()
    topic = view.policy(operation.tenant, queue).topic
    if view.pins and is_misplaced(operation, rules.shards, view.pins):
        place = view.pins[operation.tenant, queue]
        return Decision(Rejected(Rejection.MISPLACED, pin_said(queue, place)))
    refusal = _refusal(view, operation, topic, rules)
    if refusal is not None:
        return Decision(refusal)
    more = _more(view, operation, rules, None) if view.pins else None
    task = _new_task(operation, topic, rules, now_ms=view.now_ms, next_seq=view.next_seq, more=more)
    return Decision(Created(task), (_change(task, operation),))


def create_keyed(view: View, operation: CreateKeyed, rules: LifetimeRules) -> Decision:
    """Make a task that has a key; see `create`."""
    assert operation.create.key
    return create(view, operation.create, rules)


def create_tagged(view: View, operation: CreateTagged, rules: LifetimeRules) -> Decision:
    """Make a task that has tags or metadata; see `create`."""
    assert operation.create.tags or operation.create.metadata
    return create(view, operation.create, rules)


def refusal_of_new(
    view: View,
    operation: Create,
    rules: LifetimeRules,
    *,
    begun: int,
    queues: set[str] | None = None,
) -> Rejected | None:
    """Return why a task is not made now, or None.

    Args:
        begun: How many tasks the decision has made before this one, less the waiting ones that it
            has ended.
        queues: Those that the tasks before this one begin; its own is added.
    """
    topic = view.policy(operation.tenant, operation.command.lower()).topic
    return _refusal(view, operation, topic, rules, begun=begun, queues=queues)


def _refusal(
    view: View,
    operation: Create,
    topic: Topic | None,
    rules: LifetimeRules,
    *,
    begun: int = 0,
    queues: set[str] | None = None,
) -> Rejected | None:
    budget = rules.budget_of(operation.tenant)
    refusal = None
    if topic is not None:
        refusal = outside_tiers(topic, operation) or _above_burst(view, topic, operation)
    if refusal is None and budget != NO_BUDGET:
        refusal = _over_budget(view, operation, budget, begun=begun)
    if refusal is None:
        refusal = too_many_queues(view, operation, operation.tenant, rules, queues)
    return refusal


def created_before(existing: Task, operation: Create) -> Created | Rejected:
    """Answer a create whose id is taken: a retry, or another task should an id be drawn twice."""
    same = (
        existing.tenant == operation.tenant
        and existing.command == operation.command
        and existing.idempotency_key == operation.idempotency_key
    )
    return Created(existing) if same else Rejected(Rejection.IDEMPOTENCY_CONFLICT)


def outside_tiers(topic: Topic, operation: Create) -> Rejected | None:
    """Return the refusal that names the topic's tiers, or None if they allow the priority.

    Tiers bind new tasks only. An existing, revived or imported task keeps the priority that it was
    accepted with.
    """
    if has_tier(topic, operation.priority):
        return None
    return Rejected(Rejection.INVALID_PRIORITY, ", ".join(map(str, topic.priority_tiers)))


def has_tier(topic: Topic, priority: int) -> bool:
    """Return whether a topic allows a priority; without tiers it allows all."""
    tiers = topic.priority_tiers
    # A tier of 10 matches 9, because a request's priority of 10 is stored as 9.
    return not tiers or priority in (min(tier, PRIORITY_MAX) for tier in tiers)


def _above_burst(view: View, topic: Topic, operation: Create) -> Rejected | None:
    """Return the refusal that names the burst which a new task would always exceed, or None.

    If the burst is lowered later, tasks that are there cost the burst.
    """
    shared = view.flow(topic.tenant, scope_of_limit(topic.limit)) if topic.limit else None
    of_key = topic.per_key if operation.key else None
    for rule in (of_key, topic.per_queue, shared.per_queue if shared is not None else None):
        rate = rule.rate if rule is not None else None
        if rate is not None and operation.cost > rate.burst:
            return Rejected(Rejection.INVALID_COST, str(rate.burst))
    return None


def _over_budget(view: View, operation: Create, budget: Budget, *, begun: int) -> Rejected | None:
    """Return the refusal that names the tenant's budget a new task would exceed, or None."""
    if not budget.binds_creates:
        return None
    usage = view.usage(operation.tenant)
    if budget.waiting_max and usage.waiting + begun >= budget.waiting_max:
        return Rejected(Rejection.BUDGET_EXCEEDED, "readyTasks")
    # Those begun are about as large.
    stored_bytes = usage.stored_bytes + (max(0, begun) + 1) * len(operation.payload.encode())
    if budget.bytes_max and stored_bytes > budget.bytes_max:
        return Rejected(Rejection.BUDGET_EXCEEDED, "storedBytes")
    return None


def too_many_queues(
    view: View,
    operation: Create,
    tenant: str,
    rules: LifetimeRules,
    begun: set[str] | None = None,
) -> Rejected | None:
    """Return the refusal that names the bound on queues, or None if the task's may begin.

    Args:
        operation: The task; its tenant may be missing.
        begun: The queues that the decision begins besides; the task's own is added.
    """
    queue = operation.command.lower()
    begun = set() if begun is None else begun
    if queue in begun or view.has_queue(tenant, queue):
        return None
    if rules.allows_another_queue(view.most_queues(tenant) + len(begun)):
        begun.add(queue)
        return None
    return Rejected(Rejection.TOO_MANY, str(rules.queues_max))


def made(
    view: View,
    operation: Create,
    rules: LifetimeRules,
    *,
    more: More | None = None,
    caused_ms: int = 0,
    keys: OnceNames | None = None,
) -> TaskChange | None:
    """Return the new task of a cause that is decided; None if it, or its key, is there already.

    Nothing refuses it, since what causes it is done. Its delay and its time to live begin at
    `caused_ms`, or now: also if that is later, by the clock of another shard that is ahead.

    `keys` are those of the other tasks that the decision makes, which are not in the view; its own
    is added.
    """
    if view.task(operation.id) is not None:
        return None
    key = operation.tenant, once_name(operation)
    if operation.idempotency_key:
        keys = set() if keys is None else keys
        if key in keys or view.keyed(*key) is not None:
            return None
        keys.add(key)
    return new_change(view, operation, rules, more=more, caused_ms=min(caused_ms, view.now_ms))


def new_change(
    view: View,
    operation: Create,
    rules: LifetimeRules,
    *,
    more: More | None = None,
    caused_ms: int = 0,
) -> TaskChange:
    """Return the new task of a create that nothing refuses; see `made`."""
    topic = view.policy(operation.tenant, operation.command.lower()).topic
    more = _more(view, operation, rules, more) if view.pins else more
    task = _new_task(
        operation,
        topic,
        rules,
        now_ms=view.now_ms,
        next_seq=view.next_seq,
        more=more,
        caused_ms=caused_ms,
    )
    return _change(task, operation)


def start_of(operation: Create, *, caused_ms: int) -> int:
    """Return the earliest start that a create asks for."""
    return operation.run_at_ms or caused_ms + operation.delay_ms


def replaced(task: Task, operation: Create, *, now_ms: int) -> Task:
    """READY, DELAYED or HELD → the same state: a later create of its unique key says otherwise."""
    assert task.state in (State.READY, State.DELAYED, State.HELD)
    assert task.more is not None
    return replace(
        task,
        more=replace(task.more, tags=operation.tags, metadata=operation.metadata),
        priority=operation.priority,
        payload_bytes=len(operation.payload.encode()),
        run_at_ms=operation.run_at_ms,
        expires_ms=now_ms + operation.ttl_ms if operation.ttl_ms else 0,
        updated_ms=now_ms,
    )


def _more(view: View, operation: Create, rules: LifetimeRules, more: More | None) -> More | None:
    """Return what a new task has beside its fields, with a mark if it is where its queue is."""
    pinned = view.pins.get((operation.tenant, operation.command.lower()), "")
    if not pinned or is_misplaced(operation, rules.shards, view.pins):
        return more
    return replace(more or More(), pinned=pinned, cost=operation.cost)


def _change(task: Task, operation: Create) -> TaskChange:
    return TaskChange(
        before=None,
        after=task,
        payload=operation.payload,
        fingerprint=operation.fingerprint if operation.idempotency_key else "",
    )


def _new_task(
    operation: Create,
    topic: Topic | None,
    rules: LifetimeRules,
    *,
    now_ms: int,
    next_seq: Callable[[], int],
    more: More | None = None,
    caused_ms: int = 0,
) -> Task:
    caused_ms = caused_ms or now_ms
    start_ms = operation.run_at_ms or caused_ms + operation.delay_ms
    waits = start_ms > now_ms
    # What it asks for itself, within its topic's bounds.
    max_attempts = operation.max_attempts or rules.max_attempts_default
    handling = operation.handling
    if topic is not None:
        if topic.max_attempts:
            max_attempts = min(operation.max_attempts, topic.max_attempts) or topic.max_attempts
        handling = of_new_task(handling, topic.handling)
    if operation.key:
        key, cost = operation.key, operation.cost
        # Most have nothing else, and to make it is quicker than to replace it.
        if more is None:
            more = More(key=key, cost=cost, slotless=True)
        else:
            more = replace(more, key=key, cost=cost, slotless=True)
    if operation.tags or operation.metadata:
        more = replace(more or More(), tags=operation.tags, metadata=operation.metadata)
    return Task(
        id=operation.id,
        tenant=operation.tenant,
        command=operation.command,
        priority=operation.priority,
        max_attempts=max_attempts,
        created_ms=now_ms,
        updated_ms=now_ms,
        state=State.DELAYED if waits else State.READY,
        seq=0 if waits else next_seq(),
        due_ms=start_ms if waits else 0,
        ready_ms=0 if waits else now_ms,
        expires_ms=caused_ms + operation.ttl_ms if operation.ttl_ms else 0,
        webhook=operation.webhook,
        trace_parent=operation.trace_parent,
        trace_state=operation.trace_state,
        idempotency_key=operation.idempotency_key,
        run_at_ms=operation.run_at_ms,
        payload_bytes=len(operation.payload.encode()),
        handling=handling,
        more=more,
    )


def on_its_way(effect: RelayedTask, *, now_ms: int) -> tuple[Task, Dependencies | None]:
    """Return the task of a relay that has not arrived, as it would have begun."""
    task = _new_task(
        effect.create,
        None,
        LifetimeRules(),
        now_ms=now_ms,
        next_seq=lambda: SEQ_MAX,  # Its place is given when it arrives.
        more=effect.more,
    )
    if not effect.needs:
        return task, None
    row = waiting_for(task, effect.needs)
    task = replace(task, more=replace(task.more or effect.more, depends=True))
    return waiting(task, seq=SEQ_MAX, now_ms=now_ms), row
