"""Decide: one operation against one view, giving an answer and the changes that make it true.

Pure and deterministic in the view: the leader decides, and the log replicates its decisions.

A lease ends by a transition, never by the clock alone. Between a lease's last instant and the
`Advance` that notices it, its holder may still act. At every moment exactly one worker can act, and
no two decisions can disagree about which one.

An operation on a task carries a request; for a `Create` it is the task's id, for a `Staging` its
upload. Under the same request a retry changes nothing and gets the same answer, as long as the task
remembers the request:

- an abandon, a nack, a hold of a key, a queue or a limit, or a requeue: for `history_attempts_max`
  deliveries;
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

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard, get_args

from msgspec.structs import replace

from codeq_cluster.core import (
    auditing,
    delivering,
    depending,
    finishing,
    firing,
    flowing,
    gating,
    graphing,
    grouping,
    key_rules,
    lanes,
    lone_keys,
    relaying,
    reporting,
    rolls,
    setting_aside,
    stepping,
    subscribing,
    uniques,
)
from codeq_cluster.core.backoff import backoff_ms
from codeq_cluster.core.cancelling import ask_cancel, cancel, cancel_change
from codeq_cluster.core.changes import Change, Decision, TaskChange
from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.claiming import claim
from codeq_cluster.core.creating import create, create_keyed, create_tagged
from codeq_cluster.core.expiry import advance
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.handling import NOTHING_SAID
from codeq_cluster.core.holding import found, held, lease_until_ms
from codeq_cluster.core.holds import HoldKey, HoldLimit, HoldOperation, HoldQueue, Nack
from codeq_cluster.core.items import SetAside
from codeq_cluster.core.lane import Flow, Lane
from codeq_cluster.core.merging import create_unique
from codeq_cluster.core.new_task import Create, CreateKeyed, CreateTagged, CreateUnique
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Delivered,
    Finish,
    Heartbeat,
    Import,
    Operation,
    Staging,
    Submit,
    Swept,
    Undelivered,
)
from codeq_cluster.core.outcomes import (
    Changed,
    Created,
    Extended,
    GraphStands,
    GroupStands,
    Outcome,
    Rejected,
    Rejection,
    Returned,
)
from codeq_cluster.core.reject import Reject
from codeq_cluster.core.relays import RelaysMissed, RelaysTaken, TakeRelays
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import FillBack, Fire, TriggerSchedule
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tagging import change_tags
from codeq_cluster.core.tags import ChangeTags
from codeq_cluster.core.task import UPLOADS_MAX, Attempt, AttemptOutcome, More, State, Task
from codeq_cluster.core.transitions import (
    MAX_ATTEMPTS,
    REJECTED,
    attempt_of,
    dead,
    delayed,
    extended,
    held_back,
    returned,
    undelivered,
)
from codeq_cluster.core.unique import Holder
from codeq_cluster.core.view import View


def decide(view: View, operation: Operation, rules: LifetimeRules) -> Decision:
    """Return the answer to `operation` and its changes.

    The caller advances the view before the next operation. The only effects on the view are the
    draws of `next_seq`, `fraction` and `turns`.
    """
    of = type(operation)
    decision = _RULES[of](view, operation, rules)
    for change in decision.changes:
        # Asked of every decision, so without a call.
        thing = change.after if change.after is not None else change.before
        if (thing.more is not None) if thing.__class__ is Task else (thing.__class__ in _TIMED):
            decision = _with_shared_rows(view, operation, decision, rules)
            break
    if decision.changes and view.asides:
        ended = setting_aside.ended(view, decision.changes)
        decision = Decision(decision.outcome, (*decision.changes, *ended))
    if not decision.changes or of in _END_NOTHING:
        return decision
    more = tuple(delivering.consequences(view, decision, rules))
    return Decision(decision.outcome, (*decision.changes, *more)) if more else decision


def _with_shared_rows(
    view: View, operation: Operation, decision: Decision, rules: LifetimeRules
) -> Decision:
    """Add what the changes of tasks cause on rows they share: schedules, groups, edges, keys."""
    of, changes = type(operation), decision.changes
    if _share_keys_alone(changes):
        rows = lone_keys.counted(view, changes)
        if rows is not None:
            return Decision(decision.outcome, (*changes, *rows))
        return _with_last_states(decision.outcome, lanes.settled(view, changes))
    if of not in _END_NOTHING:
        changes = stepping.settled(view, changes)
    if of not in _FIRE and of not in _END_NOTHING:
        if of is not TakeRelays:  # It notes them itself, beside those that relays tell of.
            # First the next runs of schedules begin, because these may have keys.
            changes = (*changes, *firing.ends(view, changes, rules))
        changes = rolls.counted(view, changes, rules)
    changes = uniques.settled(view, changes)
    if of not in _END_NOTHING:
        changes = depending.settled(view, changes)
    # The leader asks for less if that did not fit an entry.
    most = operation.count if isinstance(operation, Advance) else lanes.WALK_CHANGES_MAX
    changes = lanes.settled(view, changes, walked_max=most)
    return _with_last_states(decision.outcome, reporting.settled(view, changes))


def _share_keys_alone(changes: tuple[Change, ...]) -> TypeGuard[tuple[TaskChange, ...]]:
    """Return whether tasks change that share nothing but their keys; quicker than asking for each.

    Most tasks with a key are such tasks.
    """
    seen: More | None = None
    for change in changes:
        if change.__class__ is not TaskChange:
            return False
        for task in (change.before, change.after):
            more = task.more if task is not None else None
            # A claim and an end leave it as it is.
            if more is None or more is seen:
                continue
            seen = more
            if (
                more.run is not None
                or more.member is not None
                or more.unique is not None
                or more.durable is not None
                or more.depends
                or more.dependents
                or more.checkpoint_bytes
            ):
                return False
    return True


def _with_last_states(outcome: Outcome, changes: tuple[Change, ...]) -> Decision:
    """Return a decision whose outcome shows its new tasks as its changes leave them."""
    if isinstance(outcome, Created) and not outcome.replay:
        # It may have to wait for its key.
        outcome = replace(outcome, task=_last_states((outcome.task,), changes)[0])
    elif isinstance(outcome, GroupStands | GraphStands):
        outcome = replace(outcome, tasks=_last_states(outcome.tasks, changes))
    return Decision(outcome, changes)


def _last_states(tasks: Sequence[Task], changes: Iterable[Change]) -> tuple[Task, ...]:
    """Return tasks as changes leave them, in one pass: a graph has hundreds of both."""
    last = {task.id: task for task in tasks}
    for change in changes:
        if isinstance(change.after, Task) and change.after.id in last:
            last[change.after.id] = change.after
    return tuple(last[task.id] for task in tasks)


def _heartbeat(view: View, operation: Heartbeat | Report, rules: LifetimeRules) -> Decision:
    assert operation.extend_ms >= 1
    task = held(view, operation)
    if isinstance(task, Rejected):
        return Decision(task)
    until_ms = view.now_ms + operation.extend_ms
    cancelling = None if task.more is None else task.more.cancelling
    if task.handling is not None or cancelling is not None:
        until_ms = lease_until_ms(task, operation.extend_ms, rules, now_ms=view.now_ms)
    after = task
    if until_ms != task.lease_until_ms:
        after = extended(task, lease_until_ms=until_ms, now_ms=view.now_ms)
    if isinstance(operation, Report):
        said = reporting.reported(view, operation, task, after)
        return Decision(Extended(until_ms, cancelling), said)
    if after is task:
        return Decision(Extended(until_ms, cancelling))
    return Decision(Extended(until_ms, cancelling), (TaskChange(before=task, after=after),))


def _abandon(view: View, operation: Abandon, rules: LifetimeRules) -> Decision:
    assert operation.request
    assert operation.token or not operation.undelivered
    task = _to_give_back(view, operation)
    if not isinstance(task, Task):
        return Decision(task)
    if operation.undelivered:
        if task.more is not None and task.more.cancelling is not None:
            # No worker has it, and none is to get it.
            change = cancel_change(view, task, rules, request=operation.request)
            return Decision(_CANCELLED, (change,))
        after = undelivered(task, seq=view.next_seq(), now_ms=view.now_ms)
        return Decision(Returned(dead=False), (TaskChange(before=task, after=after),))
    attempt = attempt_of(
        task, AttemptOutcome.ABANDONED, now_ms=view.now_ms, request=operation.request
    )
    last = task.attempts >= task.max_attempts
    return _give_back(view, task, attempt, rules, death=MAX_ATTEMPTS if last else "")


def _nack(view: View, operation: Nack | Reject, rules: LifetimeRules) -> Decision:
    assert operation.request
    task = _to_give_back(view, operation)
    if not isinstance(task, Task):
        return Decision(task)
    death = MAX_ATTEMPTS if task.attempts >= task.max_attempts else ""
    delay_ms = 0
    if isinstance(operation, Reject):
        death = REJECTED
    elif not death:
        delay_ms = _nack_delay_ms(view, task, operation, rules)
    attempt = attempt_of(
        task,
        AttemptOutcome.NACKED,
        now_ms=view.now_ms,
        error=operation.reason,
        request=operation.request,
        delay_ms=delay_ms,
    )
    return _give_back(view, task, attempt, rules, death=death and (operation.reason or death))


def _hold(view: View, operation: HoldOperation, rules: LifetimeRules) -> Decision:
    nack = operation.nack
    assert nack.request
    task = _to_give_back(view, nack)
    if not isinstance(task, Task):
        return Decision(task)
    queue = task.command.lower()
    said, outcome_of, held_by = _HOLDS[type(operation)]
    touched = gating.sharers(view, task) if isinstance(operation, HoldLimit) else {queue}
    if operation.commands and not touched <= set(map(str.lower, operation.commands)):
        return Decision(Rejected(Rejection.EVENT_TYPE_NOT_ALLOWED))
    # It decides about others' tasks, so the broker's own bound holds for a topic's backoff, too.
    delay_ms = min(_nack_delay_ms(view, task, nack, rules), rules.backoff_max_ms)
    holds = held_by(view, task, view.now_ms + delay_ms)
    if holds is None:
        return Decision(Rejected(Rejection.NOTHING_TO_HOLD, said))
    attempt = attempt_of(
        task,
        outcome_of,
        now_ms=view.now_ms,
        error=nack.reason,
        request=nack.request,
        delay_ms=delay_ms,
    )
    outcome = Returned(dead=False, delay_ms=delay_ms)
    if task.more is not None and task.more.cancelling is not None:
        outcome = _CANCELLED
        change = cancel_change(view, task, rules, request=nack.request, ended=attempt)
    else:
        seq = view.next_seq()
        if not isinstance(operation, HoldKey):
            first = view.first_ready(task.tenant, queue, task.priority)
            seq = max(1, first - 1) if first else seq
        change = TaskChange(before=task, after=held_back(task, attempt, rules, seq=seq))
    return Decision(outcome, (change, holds))


def _nack_delay_ms(view: View, task: Task, operation: Nack, rules: LifetimeRules) -> int:
    if operation.delay_ms > 0:
        return min(operation.delay_ms, rules.backoff_max_ms)
    topic = view.policy(task.tenant, task.command.lower()).topic
    own = task.handling or NOTHING_SAID
    topics = (topic.handling if topic is not None else None) or NOTHING_SAID
    return backoff_ms(
        own.backoff or topics.backoff or rules.backoff_policy,
        base_ms=own.backoff_base_ms or topics.backoff_base_ms or rules.backoff_base_ms,
        max_ms=own.backoff_max_ms or topics.backoff_max_ms or rules.backoff_max_ms,
        attempts=task.attempts,
        draw=view.fraction(),
    )


def _give_back(
    view: View, task: Task, attempt: Attempt, rules: LifetimeRules, *, death: str
) -> Decision:
    """End the attempt: the task dies of it if `death` says why, or waits for the attempt's delay.

    One that is to end ends here.
    """
    if task.more is not None and task.more.cancelling is not None:
        change = cancel_change(view, task, rules, request=attempt.request, ended=attempt)
        return Decision(_CANCELLED, (change,))
    if death:
        policy = view.policy(task.tenant, task.command.lower())
        change = dead(task, rules, policy, error=death, now_ms=view.now_ms, ended=attempt)
        return Decision(Returned(dead=True), (change,))
    if attempt.delay_ms:
        after = delayed(task, attempt, rules)
    else:
        after = returned(task, attempt, rules, seq=view.next_seq())
    outcome = Returned(dead=False, delay_ms=attempt.delay_ms)
    return Decision(outcome, (TaskChange(before=task, after=after),))


def _stage(view: View, operation: Staging, rules: LifetimeRules) -> Decision:
    assert operation.size >= 0
    task = held(view, operation)
    if isinstance(task, Rejected):
        return Decision(task)
    sizes = task.upload_sizes
    known = operation.upload in sizes
    growth = operation.size - sizes.get(operation.upload, 0)
    if known and not growth:
        return Decision(Changed(1))
    if (
        view.item(ItemKind.SWEEP, task.tenant, delivering.sweep_id(task, operation.upload))
        is not None
    ):
        return Decision(Rejected(Rejection.LEASE_LOST))  # Staged before the death, as in `_submit`.
    if not known and len(task.uploads) >= UPLOADS_MAX:
        return Decision(Rejected(Rejection.TOO_MANY, "uploads"))
    bytes_max = rules.upload_bytes_max(task.tenant)
    if bytes_max and growth > 0 and view.usage(task.tenant).stored_bytes + growth > bytes_max:
        return Decision(Rejected(Rejection.BUDGET_EXCEEDED, "storedBytes"))
    sizes[operation.upload] = operation.size
    after = replace(
        task,
        uploads=tuple(sizes),
        upload_bytes=tuple(sizes.values()),
        updated_ms=view.now_ms,
    )
    return Decision(Changed(1), (TaskChange(before=task, after=after),))


def _to_give_back(view: View, operation: Abandon | Nack | Reject) -> Task | Returned | Rejected:
    """Return the task if its worker may give it back.

    Otherwise return the answer: why it may not, or what the same request has done before.
    """
    task = found(view, operation)
    if task is not None:
        for attempt in reversed(task.history):
            if attempt.request == operation.request:
                return _returned_before(task, attempt)
    return held(view, operation)


def _returned_before(task: Task, attempt: Attempt) -> Returned:
    """Return the answer to the request that ended the attempt."""
    if task.state is State.FAILED and task.ended_by == attempt.request:
        return _CANCELLED
    dead_by_it = task.state is State.DEAD and task.ended_by == attempt.request
    return Returned(dead=dead_by_it, delay_ms=attempt.delay_ms)


_RULES: dict[type, Callable[[View, Any, LifetimeRules], Decision]] = {
    Create: create,
    CreateKeyed: create_keyed,
    CreateTagged: create_tagged,
    CreateUnique: create_unique,
    ChangeTags: change_tags,
    Claim: claim,
    Heartbeat: _heartbeat,
    Report: _heartbeat,
    Abandon: _abandon,
    Nack: _nack,
    Reject: _nack,
    HoldKey: _hold,
    HoldQueue: _hold,
    HoldLimit: _hold,
    Submit: finishing.submit,
    Finish: finishing.finish,
    Cancel: cancel,
    AskCancel: ask_cancel,
    Advance: advance,
    Staging: _stage,
    Delivered: delivering.delivered,
    Undelivered: delivering.undelivered,
    Swept: delivering.swept,
    TakeRelays: relaying.take,
    RelaysTaken: relaying.taken,
    RelaysMissed: relaying.missed,
    Fire: firing.fire,
    FillBack: firing.fill_back,
    SetAside: setting_aside.set_aside,
    **flowing.RULES,
    **grouping.RULES,
    **graphing.RULES,
    **stepping.RULES,
    **subscribing.RULES,
    **auditing.RULES,
}
assert _RULES.keys() == set(get_args(Operation)), "an operation without a rule"
_CANCELLED = Returned(dead=False, cancelled=True)
# By what a nack holds: the word, how the attempt ends, and the rule.
_HOLDS = {
    HoldKey: ("key", AttemptOutcome.KEY_HELD, key_rules.held),
    HoldQueue: ("queue", AttemptOutcome.QUEUE_HELD, gating.queue_held),
    HoldLimit: ("limit", AttemptOutcome.LIMIT_HELD, gating.limit_held),
}
# None of these ends or deletes a task, and most of them are frequent.
_END_NOTHING = frozenset(
    {
        *(Create, CreateKeyed, CreateTagged, CreateUnique, ChangeTags),
        *(Claim, Heartbeat, Import, Report, *stepping.RULES),
    }
)
# A decision changes these when their instants come; all else about keys follows.
_TIMED = frozenset({Flow, Lane, Holder})
# These note the ends that they cause themselves.
_FIRE = frozenset({Fire, FillBack, TriggerSchedule})
