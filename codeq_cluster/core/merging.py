"""Merging: a create with a unique key makes a task, or gives what it says to the one that is there.

A create that changes a task leaves a `Merged`, so that its repetition changes nothing, whatever
others have made of the task since. One decision finds the holder and acts on it, in one log: no two
tasks can come to hold a key.
"""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core import stepping
from codeq_cluster.core.changes import Change, Decision, ItemChange, TaskChange
from codeq_cluster.core.creating import (
    created_before,
    new_change,
    outside_tiers,
    refusal_of_new,
    replaced,
    start_of,
)
from codeq_cluster.core.limit import pin_said
from codeq_cluster.core.new_task import Create, CreateUnique
from codeq_cluster.core.outcomes import Created, Rejected, Rejection
from codeq_cluster.core.placing import is_misplaced, once_name
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import More, Role, State, Task, Unique
from codeq_cluster.core.transitions import waiting
from codeq_cluster.core.unique import (
    How,
    Merged,
    On,
    UniqueTerms,
    merged_id,
    placed_by,
    scope_of,
    unique_of,
)
from codeq_cluster.core.uniques import conflict, holder_of
from codeq_cluster.core.view import View

MERGES_MAX = 1000  # Idempotency keys of later creates that lead to one task; each is a row.
# Without an idempotency key a create is repeated by the node alone, within its request's time: see
# `limits.requestTimeoutMs`.
REPEATED_MS = 300_000


def create_unique(view: View, operation: CreateUnique, rules: LifetimeRules) -> Decision:
    """Make a task that has a unique key, or do with the one that holds it what the create says."""
    create = operation.create
    terms = create.unique
    assert create.id
    assert terms is not None
    assert terms.is_sound
    before = _before(view, create)
    if before is not None:
        return Decision(before)
    row = holder_of(view, create.tenant, scope_of(create))
    if row is None:
        return _made(view, create, terms, rules, Role.HOLDER)
    if terms.on is On.REJECT:
        return Decision(conflict(view, row))
    holder = view.task(row.task_id)
    assert holder is not None
    if terms.on.replaces and row.next_id:
        # It is worked on after the holder, even if that waits: what was said last has to be there.
        following = view.task(row.next_id)
        assert following is not None
        return _merged(view, create, terms, rules, following)
    if terms.on is On.KEEP_LAST and not _waits(holder):
        return _made(view, create, terms, rules, Role.NEXT)
    return _merged(view, create, terms, rules, holder)


def _before(view: View, create: Create) -> Created | Rejected | None:
    """Return the answer to a create that has been here before, or None."""
    existing = view.task(create.id)
    if existing is not None:
        return _again(created_before(existing, create))
    if create.idempotency_key:
        row = view.keyed(create.tenant, once_name(create))
        if row is not None:
            if row.fingerprint != create.fingerprint:
                return Rejected(Rejection.IDEMPOTENCY_CONFLICT)
            keyed = view.task(row.task_id)
            assert keyed is not None  # A key's row is deleted with its task.
            return _again(Created(keyed, replay=True, payload=view.payload(keyed.id)))
    found = _merged_before(view, create)
    task = view.task(found.task_id) if found is not None else None
    if found is None or task is None:
        return None
    if found.fingerprint != create.fingerprint:
        return Rejected(Rejection.IDEMPOTENCY_CONFLICT)
    replay = bool(create.idempotency_key)
    return Created(task, replay=replay, payload=view.payload(task.id), unique=found.how)


def _merged_before(view: View, create: Create) -> Merged | None:
    name = merged_id(once_name(create) or create.id)
    found = view.item(ItemKind.MERGED, create.tenant, name)
    assert found is None or isinstance(found, Merged)
    return found


def _again(answer: Created | Rejected) -> Created | Rejected:
    """Return the answer to a repeated create: what the first one has done."""
    if not isinstance(answer, Created):
        return answer
    unique = unique_of(answer.task)
    waits = unique is not None and unique.role is Role.NEXT
    return replace(answer, unique=How.QUEUED if waits else How.CREATED)


def _made(
    view: View, create: Create, terms: UniqueTerms, rules: LifetimeRules, role: Role
) -> Decision:
    # The one that is next stays beside its holder, wherever that is.
    misplaced = view.pins and is_misplaced(create, rules.shards, view.pins)
    if role is Role.HOLDER and misplaced:
        queue = create.command.lower()
        place = view.pins[create.tenant, queue]
        return Decision(Rejected(Rejection.MISPLACED, pin_said(queue, place)))
    refusal = refusal_of_new(view, create, rules, begun=0)
    if refusal is not None:
        return Decision(refusal)
    now_ms = view.now_ms
    throttled = role is Role.HOLDER and terms.throttle_ms
    unique = Unique(
        key=terms.key,
        until=terms.until,
        role=role,
        throttle_ms=terms.throttle_ms,
        held_until_ms=now_ms + terms.throttle_ms if throttled else 0,
        latest_ms=now_ms + terms.max_wait_ms if terms.debounce_ms else 0,
    )
    if terms.debounce_ms:
        create = replace(create, delay_ms=terms.debounce_ms)
    change = new_change(view, create, rules, more=More(unique=unique))
    task = change.after
    assert task is not None
    if role is Role.NEXT:
        seq, start_ms = task.seq or view.next_seq(), task.due_ms
        task = waiting(task, seq=seq, now_ms=now_ms)
        task = _with(task, replace(unique, start_ms=start_ms))
        change = replace(change, after=task)
    how = How.QUEUED if role is Role.NEXT else How.CREATED
    return Decision(Created(task, unique=how), (change,))


def _merged(
    view: View, create: Create, terms: UniqueTerms, rules: LifetimeRules, found: Task
) -> Decision:
    """Give what a create says to a task that is there, as far as its terms want that."""
    unique = unique_of(found)
    assert unique is not None
    if create.idempotency_key and unique.merged >= MERGES_MAX:
        return Decision(Rejected(Rejection.TOO_MANY_MERGES, str(MERGES_MAX)))
    how, task, payload = How.RETURNED, found, None
    rows: list[Change] = []
    if _waits(found) and terms.on.replaces:
        refusal = _refused(view, create, rules, found)
        if refusal is not None:
            return Decision(refusal)
        how, payload = How.REPLACED, create.payload
        task, gone = stepping.without_log(view, _replaced(view, create, terms, found))
        rows.extend(gone)
    elif _waits(found) and terms.debounce_ms:
        start_ms, latest_ms = _start(create, terms, unique, found, now_ms=view.now_ms)
        task = _starting(view, found, start_ms=start_ms)
        task = _with(task, replace(_unique(task), latest_ms=latest_ms))
    if create.idempotency_key or how is How.REPLACED:
        task, row = _remembered(view, create, rules, task, how)
        rows.append(row)
    if task is not found:
        rows.insert(0, TaskChange(before=found, after=task, payload=payload))
    shown = payload if payload is not None else view.payload(found.id)
    return Decision(Created(task, payload=shown, unique=how), tuple(rows))


def _refused(view: View, create: Create, rules: LifetimeRules, found: Task) -> Rejected | None:
    """Return why a task cannot get what a create says, or None."""
    topic = view.policy(create.tenant, create.command.lower()).topic
    refusal = outside_tiers(topic, create) if topic is not None else None
    bytes_max = rules.budget_of(create.tenant).bytes_max
    growth = len(create.payload.encode()) - found.payload_bytes
    if refusal is not None or not bytes_max or growth <= 0:
        return refusal
    over = view.usage(create.tenant).stored_bytes + growth > bytes_max
    return Rejected(Rejection.BUDGET_EXCEEDED, "storedBytes") if over else None


def _replaced(view: View, create: Create, terms: UniqueTerms, found: Task) -> Task:
    now_ms = view.now_ms
    unique = _unique(found)
    start_ms, latest_ms = _start(create, terms, unique, found, now_ms=now_ms)
    task = replaced(found, create, now_ms=now_ms)
    unique = replace(unique, revision=unique.revision + 1, latest_ms=latest_ms)
    return _starting(view, _with(task, unique), start_ms=start_ms)


def _start(
    create: Create, terms: UniqueTerms, unique: Unique, found: Task, *, now_ms: int
) -> tuple[int, int]:
    """Return when a task is to start after a create, and the latest start of its debounce."""
    latest_ms = unique.latest_ms
    if terms.debounce_ms:
        latest_ms = latest_ms or now_ms + terms.max_wait_ms
        start_ms = min(now_ms + terms.debounce_ms, latest_ms)
    else:
        start_ms = start_of(create, caused_ms=now_ms)
    if found.attempts:
        start_ms = max(start_ms, found.due_ms)  # It backs off.
    return start_ms, latest_ms


def _starting(view: View, task: Task, *, start_ms: int) -> Task:
    """Return a waiting task with another start; one that is next begins no earlier than that."""
    now_ms = view.now_ms
    unique = _unique(task)
    if unique.role is Role.NEXT:
        return _with(task, replace(unique, start_ms=start_ms if start_ms > now_ms else 0))
    if start_ms > now_ms:
        more = task.more or More()
        if task.state is not State.DELAYED and more.keeps_place:
            more = replace(more, keeps_place=False)
        return replace(
            task,
            state=State.DELAYED,
            seq=0,
            ready_ms=0,
            due_ms=start_ms,
            updated_ms=now_ms,
            more=more,
        )
    # A HELD one goes through its key again: it may go before others now.
    return replace(
        task,
        state=State.READY,
        seq=task.seq or view.next_seq(),
        ready_ms=task.ready_ms or now_ms,
        due_ms=0,
        updated_ms=now_ms,
    )


def _remembered(
    view: View, create: Create, rules: LifetimeRules, task: Task, how: How
) -> tuple[Task, ItemChange]:
    """Return the task and the row by which a repetition of the create is found."""
    key, now_ms = once_name(create), view.now_ms
    kept_ms = rules.key_retention_ms if key else REPEATED_MS
    pinned = task.more.pinned if task.more is not None else ""
    row = Merged(
        tenant=create.tenant,
        id=merged_id(key or create.id),
        placed_by=pinned or placed_by(create),
        task_id=task.id,
        how=how,
        fingerprint=create.fingerprint,
        expires_ms=now_ms + kept_ms,
    )
    if key:
        unique = _unique(task)
        task = _with(task, replace(unique, merged=unique.merged + 1, merged_ms=now_ms))
        if task.state.terminal:
            until_ms = max(task.retain_until_ms, now_ms + kept_ms)
            task = replace(task, retain_until_ms=until_ms)
    return task, ItemChange(before=_merged_before(view, create), after=row)


def _waits(task: Task) -> bool:
    """Return whether a task waits to begin; what has recorded steps has begun."""
    if task.more is not None and task.more.durable is not None and task.more.durable.steps:
        return False
    return task.state in (State.READY, State.DELAYED, State.HELD)


def _unique(task: Task) -> Unique:
    unique = unique_of(task)
    assert unique is not None
    return unique


def _with(task: Task, unique: Unique) -> Task:
    return replace(task, more=replace(task.more or More(), unique=unique))
