"""Transitions: a task's next value, one function for each arrow of the lifecycle.

A transition asserts its start; the decision to allow it was made before. It sets only the fields
that the new state uses, so equal situations are equal values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.items import Policy
from codeq_cluster.core.operations import Claim, Submit
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import (
    COMPLETED,
    FAILED,
    HISTORY_ERROR_CHARS_MAX,
    Attempt,
    AttemptOutcome,
    Cancelling,
    More,
    Result,
    State,
    Task,
)

CANCELLED = "CANCELLED"
LEASE_EXPIRED = "LEASE_EXPIRED"
MAX_ATTEMPTS = "MAX_ATTEMPTS"
MESSAGE_EXPIRED = "MESSAGE_EXPIRED"
REJECTED = "REJECTED"

# Of deliveries that do not count: their workers hold others with the task.
HELD_BACK = frozenset(
    (AttemptOutcome.KEY_HELD, AttemptOutcome.QUEUE_HELD, AttemptOutcome.LIMIT_HELD)
)

# The fields that a lease alone uses.
_NO_LEASE: Final[Mapping[str, Any]] = {
    "worker": "",
    "worker_name": "",
    "lease_until_ms": 0,
    "claim": "",
    "claimed_ms": 0,
}


def leased(task: Task, claim: Claim, *, now_ms: int) -> Task:
    """READY → LEASED: one more delivery, under a token that no earlier lease of the task had."""
    assert task.state is State.READY
    return replace(
        task,
        state=State.LEASED,
        attempts=task.attempts + 1,
        seq=0,
        worker=claim.worker,
        worker_name=claim.worker_name,
        lease_until_ms=now_ms + claim.lease_ms,
        lease_token=task.lease_token + 1,
        claim=claim.request,
        claimed_ms=now_ms,
        updated_ms=now_ms,
    )


def extended(task: Task, *, lease_until_ms: int, now_ms: int) -> Task:
    """LEASED → LEASED: the lease ends at another instant."""
    assert task.state is State.LEASED
    return replace(task, lease_until_ms=lease_until_ms, updated_ms=now_ms)


def cancel_asked(task: Task, asked: Cancelling, *, now_ms: int) -> Task:
    """LEASED → LEASED: the lease ends at the deadline at the latest, and the task with it."""
    assert task.state is State.LEASED
    return replace(
        task,
        more=replace(task.more or More(), cancelling=asked),
        lease_until_ms=min(task.lease_until_ms, asked.deadline_ms),
        updated_ms=now_ms,
    )


def due(task: Task, *, seq: int, now_ms: int) -> Task:
    """DELAYED → READY, at the tail of its priority."""
    assert task.state is State.DELAYED
    return replace(task, state=State.READY, seq=seq, due_ms=0, ready_ms=now_ms, updated_ms=now_ms)


def held(task: Task, *, seq: int, now_ms: int) -> Task:
    """READY → HELD, at this place of its key's order."""
    assert task.state is State.READY
    return replace(task, state=State.HELD, seq=seq, ready_ms=0, updated_ms=now_ms)


def admitted(task: Task, *, seq: int, now_ms: int) -> Task:
    """HELD → READY, at the tail of its priority."""
    assert task.state is State.HELD
    return replace(task, state=State.READY, seq=seq, ready_ms=now_ms, updated_ms=now_ms)


def waiting(task: Task, *, seq: int, now_ms: int) -> Task:
    """READY or DELAYED → HELD, until its dependencies are met; `seq` is by the time of that."""
    assert task.state in (State.READY, State.DELAYED)
    more = replace(task.more or More(), waits=True)
    return replace(
        task, state=State.HELD, seq=seq, due_ms=0, ready_ms=0, updated_ms=now_ms, more=more
    )


def released(task: Task, *, start_ms: int, seq: int, now_ms: int) -> Task:
    """HELD → READY, or DELAYED if it is not to start yet: its dependencies are met."""
    assert task.waits_for_others
    more = replace(task.more or More(), waits=False)
    if start_ms > now_ms:
        return replace(
            task, state=State.DELAYED, seq=0, due_ms=start_ms, updated_ms=now_ms, more=more
        )
    return replace(task, state=State.READY, seq=seq, ready_ms=now_ms, updated_ms=now_ms, more=more)


def returned(task: Task, ended: Attempt, rules: LifetimeRules, *, seq: int) -> Task:
    """LEASED → READY, at the tail of its priority.

    Args:
        ended: The delivery that has ended.
        seq: A newly drawn number.
    """
    assert task.state is State.LEASED
    return replace(
        task,
        state=State.READY,
        seq=seq,
        ready_ms=ended.ended_ms,
        **_NO_LEASE,
        updated_ms=ended.ended_ms,
        history=_history(task, ended, rules),
    )


def undelivered(task: Task, *, seq: int, now_ms: int) -> Task:
    """LEASED → READY, as if the claim had never happened: no worker saw the task."""
    assert task.state is State.LEASED
    return replace(
        task,
        state=State.READY,
        attempts=task.attempts - 1,
        seq=seq,
        ready_ms=now_ms,
        **_NO_LEASE,
        updated_ms=now_ms,
    )


def held_back(task: Task, ended: Attempt, rules: LifetimeRules, *, seq: int) -> Task:
    """LEASED → READY, held with its key or queue: the delivery is remembered, not counted."""
    assert ended.outcome in HELD_BACK
    return replace(returned(task, ended, rules, seq=seq), attempts=task.attempts - 1)


def delayed(task: Task, ended: Attempt, rules: LifetimeRules) -> Task:
    """LEASED → DELAYED, for the delay that the attempt ended with."""
    assert task.state is State.LEASED
    assert ended.delay_ms > 0
    return replace(
        task,
        state=State.DELAYED,
        due_ms=ended.ended_ms + ended.delay_ms,
        **_NO_LEASE,
        updated_ms=ended.ended_ms,
        history=_history(task, ended, rules),
    )


def parked(task: Task, *, until_ms: int, now_ms: int) -> Task:
    """LEASED → DELAYED, as if the claim had never happened: its function waits, and no worker."""
    assert task.state is State.LEASED
    assert until_ms > now_ms
    return replace(
        task,
        state=State.DELAYED,
        attempts=task.attempts - 1,
        due_ms=until_ms,
        **_NO_LEASE,
        updated_ms=now_ms,
    )


def awake(more: More | None) -> More:
    """Return what a task has that waits for nothing any more."""
    assert more is not None
    assert more.durable is not None
    return replace(more, durable=replace(more.durable, parked_at="", keeps_key=False))


def submitted(
    task: Task, operation: Submit, rules: LifetimeRules, policy: Policy, *, now_ms: int
) -> TaskChange:
    """LEASED → DONE or FAILED, as the worker reports."""
    assert task.state is State.LEASED
    assert operation.status in (COMPLETED, FAILED)
    done = operation.status == COMPLETED
    attempt = attempt_of(
        task,
        AttemptOutcome.COMPLETED if done else AttemptOutcome.FAILED,
        now_ms=now_ms,
        error=operation.error,
        request=operation.request,
    )
    result = Result(
        task_id=task.id,
        status=operation.status,
        body=operation.body,
        error=operation.error,
        artifacts=operation.artifacts,
        completed_ms=now_ms,
        worker=operation.worker,
        request=operation.request,
    )
    state = State.DONE if done else State.FAILED
    return _terminal(task, state, result, rules, policy, ended=attempt, uploads=operation.uploads)


def cancelled(
    task: Task,
    rules: LifetimeRules,
    policy: Policy,
    *,
    request: str,
    now_ms: int,
    ended: Attempt | None = None,
) -> TaskChange:
    """READY, DELAYED, HELD or LEASED → FAILED; also ends a delivery under way.

    Args:
        task: Not terminal.
        request: Id of the request that ends it; empty for the end of its lease.
        ended: The delivery that its worker or its lease has ended; None if the cancel ends it.
    """
    assert not task.state.terminal
    attempt = ended
    if attempt is None and task.state is State.LEASED:
        attempt = attempt_of(task, AttemptOutcome.CANCELLED, now_ms=now_ms, request=request)
    result = _broker_result(task, CANCELLED, request=request, now_ms=now_ms)
    return _terminal(task, State.FAILED, result, rules, policy, ended=attempt)


def unmet(
    task: Task, rules: LifetimeRules, policy: Policy, *, error: str, now_ms: int
) -> TaskChange:
    """HELD → FAILED: a task that it depends on has not ended as it must."""
    assert task.waits_for_others
    result = _broker_result(task, error, request="", now_ms=now_ms)
    return _terminal(task, State.FAILED, result, rules, policy, ended=None)


def dead(
    task: Task,
    rules: LifetimeRules,
    policy: Policy,
    *,
    error: str,
    now_ms: int,
    ended: Attempt | None = None,
) -> TaskChange:
    """READY, DELAYED, HELD or LEASED → DEAD.

    Args:
        task: Not terminal.
        policy: Of its queue; names the queue that keeps it as a dead letter.
        error: The reason, as operators read it.
        ended: The delivery that was one too many; None for a task that was waiting.
    """
    assert not task.state.terminal
    assert (ended is not None) == (task.state is State.LEASED)
    request = ended.request if ended is not None else ""
    result = _broker_result(task, error, request=request, now_ms=now_ms)
    return _terminal(task, State.DEAD, result, rules, policy, ended=ended)


def may_revive(task: Task, *, now_ms: int) -> bool:
    """Return whether a task is a dead letter, and none whose time has ended or that is deleted.

    A deleted one may stay for some entries, while the rows beside it go.
    """
    return task.state is State.DEAD and now_ms < task.retain_until_ms


def revived(
    task: Task, rules: LifetimeRules, *, seq: int, by: str, request: str, now_ms: int
) -> Task:
    """DEAD → READY, with its attempts restored and no time to live; the history keeps its death."""
    assert may_revive(task, now_ms=now_ms)
    death = Attempt(
        worker=by,
        started_ms=task.updated_ms,
        ended_ms=now_ms,
        outcome=AttemptOutcome.REQUEUED,
        error=task.error[:HISTORY_ERROR_CHARS_MAX],
        request=request,
    )
    return replace(
        task,
        state=State.READY,
        attempts=0,
        seq=seq,
        ready_ms=now_ms,
        expires_ms=0,
        retain_until_ms=0,
        error="",
        updated_ms=now_ms,
        ended_by="",
        has_result=False,
        result_bytes=0,
        dead_queue="",
        history=_history(task, death, rules),
    )


def requeue_undone(task: Task, rules: LifetimeRules, policy: Policy, *, request: str) -> TaskChange:
    """READY or HELD → DEAD, as it was before: undoes the requeue at the end of its history.

    The attempts are counted from the history, whose bound may hide the first of them, and which has
    those before a step began them anew.
    """
    assert task.state in (State.READY, State.HELD)
    revival = task.history[-1]
    assert revival.outcome is AttemptOutcome.REQUEUED
    history = task.history[:-1]
    lives = [n for n, each in enumerate(history, 1) if each.outcome is AttemptOutcome.REQUEUED]
    life = history[max(lives, default=0) :]
    counted = sum(each.outcome not in HELD_BACK for each in life)
    result = _broker_result(task, revival.error, request=request, now_ms=revival.started_ms)
    buried = _terminal(task, State.DEAD, result, rules, policy, ended=None)
    assert buried.after is not None
    after = replace(
        buried.after,
        attempts=min(counted, task.max_attempts),
        endings=task.endings,
        history=history,
    )
    return replace(buried, after=after, restored=True)


def attempt_of(
    task: Task,
    outcome: AttemptOutcome,
    *,
    now_ms: int,
    error: str = "",
    request: str = "",
    delay_ms: int = 0,
) -> Attempt:
    """Return the delivery under way as an attempt that ends now."""
    return Attempt(
        worker=task.worker,
        worker_name=task.worker_name,
        started_ms=task.claimed_ms,
        ended_ms=now_ms,
        outcome=outcome,
        error=error[:HISTORY_ERROR_CHARS_MAX],
        request=request,
        delay_ms=delay_ms,
    )


def _broker_result(task: Task, error: str, *, request: str, now_ms: int) -> Result:
    """Return the FAILED result that the broker itself gives a task; it has no worker."""
    return Result(task_id=task.id, status=FAILED, error=error, completed_ms=now_ms, request=request)


def _terminal(
    task: Task,
    state: State,
    result: Result,
    rules: LifetimeRules,
    policy: Policy,
    *,
    ended: Attempt | None,
    uploads: tuple[str, ...] = (),
) -> TaskChange:
    now_ms = result.completed_ms
    topic = policy.topic
    dead_queue = ""
    if state is State.DEAD:
        dead_queue = (topic.dead_letter if topic is not None else "") or task.command.lower()
    retain_until_ms = now_ms + retention_ms(state, rules, policy)
    if task.idempotency_key:
        # The key's row is deleted with its task, so the task must stay for as long as the key is
        # promised.
        retain_until_ms = max(retain_until_ms, task.created_ms + rules.key_retention_ms)
    unique = task.more.unique if task.more is not None else None
    if unique is not None:
        # The same for the keys that lead to it, and for a throttle: its row goes with its task.
        merged_ms = unique.merged_ms + rules.key_retention_ms if unique.merged else 0
        retain_until_ms = max(retain_until_ms, merged_ms, unique.held_until_ms)
    sizes = task.upload_sizes if uploads else {}
    more = task.more
    if more is not None:
        if more.waits:
            more = replace(more, waits=False)
        if more.durable is not None and more.durable.parked_at:
            more = awake(more)
    after = replace(
        task,
        state=state,
        seq=0,
        due_ms=0,
        retain_until_ms=retain_until_ms,
        **_NO_LEASE,
        error=result.error,
        updated_ms=now_ms,
        ended_by=result.request,
        has_result=True,
        result_bytes=len(result.body.encode()) + len(result.error.encode()),
        uploads=uploads,
        upload_bytes=tuple(map(sizes.__getitem__, uploads)),
        endings=task.endings + 1,
        dead_queue=dead_queue,
        history=task.history if ended is None else _history(task, ended, rules),
        more=more,
    )
    return TaskChange(before=task, after=after, result=result)


def retention_ms(state: State, rules: LifetimeRules, policy: Policy) -> int:
    """Return how long a queue's tasks are kept in a terminal state."""
    if state is State.DEAD:
        return rules.dlq_retention_ms
    by_topic_s = policy.topic.retention_s if policy.topic is not None else 0
    return by_topic_s * 1000 or rules.retention_ms


def kept(task: Task, *, until_ms: int) -> TaskChange:
    """Keep an ended member longer, because its group has not ended or has done so just now."""
    assert task.state.terminal
    return TaskChange(before=task, after=replace(task, retain_until_ms=until_ms))


def _history(task: Task, ended: Attempt, rules: LifetimeRules) -> tuple[Attempt, ...]:
    return (*task.history, ended)[-rules.history_attempts_max :]
