"""Explaining: the one reason why a task is in its state.

At every instant a task has exactly one reason. If several apply, it is the one that must end first.
"""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from codeq_cluster.core.dependencies import DEAD, DEPENDENCY_FAILED, DEPENDENCY_UNKNOWN, Dependency
from codeq_cluster.core.items import NO_POLICY, TASK, Policy, aside_id
from codeq_cluster.core.lane import lane_of
from codeq_cluster.core.task import AttemptOutcome, Role, State, Task, cancelling_of, worker_shown
from codeq_cluster.core.transitions import CANCELLED
from codeq_cluster.core.unique import unique_of


class Reason(StrEnum):
    """Why a task is not running, or that it is; the words are the wire's codes."""

    SCHEDULED = "scheduled"
    BACKING_OFF = "backing-off"
    PARKED = "parked"
    BECOMING_READY = "becoming-ready"
    EXPIRING = "expiring"
    QUEUE_PAUSED = "queue-paused"
    QUEUE_HELD = "queue-held"
    LIMIT_HELD = "limit-held"
    CONSUMER_LIMIT = "consumer-limit"
    WAITING_FOR = "waiting-for"
    KEY_BUSY = "key-busy"
    KEY_STOPPED = "key-stopped"
    KEY_HELD = "key-held"
    KEY_PAUSED = "key-paused"
    RATE_LIMITED = "rate-limited"
    IN_FLIGHT_LIMIT = "in-flight-limit"
    BEHIND_OTHERS = "behind-others"
    NO_CLAIM = "no-claim"
    RUNNING = "running"
    LEASE_EXPIRED = "lease-expired"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead-letter"
    SET_ASIDE = "set-aside"

    @property
    def waiting(self) -> bool:
        """Return whether the task waits for something."""
        return self not in _NOT_WAITING


_NOT_WAITING = frozenset(
    (Reason.RUNNING, Reason.COMPLETED, Reason.FAILED, Reason.CANCELLED, Reason.DEAD_LETTER)
)


class SharedLimit(Struct, frozen=True, kw_only=True):
    """The limit that a task's queue shares with others.

    Attributes:
        running: Tasks of all its queues in progress.
        running_max: How many may be; 0 for any number.
        held_until_ms: Until when a worker holds it; 0 if none does.
        limited_until_ms: When its rate gives a token; 0 if there is one.
    """

    name: str
    running: int = 0
    running_max: int = 0
    held_until_ms: int = 0
    limited_until_ms: int = 0


class Facts(Struct, frozen=True, kw_only=True):
    """The facts that explain a task's state.

    Attributes:
        leased: Tasks of its queue in progress on all shards.
        tenant_leased: Tasks of its tenant in progress on all shards.
        tenant_leased_max: The tenant's budget for tasks in progress; 0 for none.
        ahead: Ready tasks of its queue and shard before it, counted up to a bound.
        set_aside: The broker failed at it and waits for an admin.
        stopper: The dead letter that stops its key; empty if none does.
        key_paused: An admin has paused its key.
        held_until_ms: Until when a worker has held its key, or its queue if it is ready; 0 if none
            has.
        limited_until_ms: When its key, or its queue if it is ready, has the tokens for its next
            task; 0 if it waits for none.
        before: A task that takes a place of its key, or holds its unique key; empty if none does,
            or none is known.
        running: Tasks of its key in progress, if none of them is known.
        looked_at: Tasks in progress of its queue among which none of its key was found.
        throttled_until_ms: When that one lets go of the unique key at the latest; 0 for no bound.
        waits_for: What it depends on and still waits for.
        signal: What it is parked for; empty if it waits for time alone.
        limit: What its queue shares; None for nothing.
    """

    now_ms: int
    policy: Policy = NO_POLICY
    leased: int = 0
    tenant_leased: int = 0
    tenant_leased_max: int = 0
    ahead: int = 0
    set_aside: bool = False
    stopper: str = ""
    key_paused: bool = False
    held_until_ms: int = 0
    limited_until_ms: int = 0
    before: str = ""
    running: int = 0
    looked_at: int = 0
    throttled_until_ms: int = 0
    waits_for: tuple[Dependency, ...] = ()
    signal: str = ""
    limit: SharedLimit | None = None


class Explanation(Struct, frozen=True, array_like=True, tag="explanation"):
    """The reason, as a code and in words.

    Attributes:
        until_ms: When the delay or lease that is the reason ends, Unix milliseconds; 0 without one.
    """

    reason: Reason
    text: str
    until_ms: int = 0


def explain(task: Task, facts: Facts) -> Explanation:
    """Return why the task is in its state."""
    # An ended task stays ended: only its deletion is set aside.
    if facts.set_aside and not task.state.terminal:
        return set_aside(task.id)
    waits = task.state in (State.READY, State.DELAYED, State.HELD)
    if waits and 0 < task.expires_ms <= facts.now_ms:
        return Explanation(Reason.EXPIRING, "its time to live is over; it is about to die")
    match task.state:
        case State.READY:
            return _ready(facts)
        case State.DELAYED:
            return _delayed(task, facts)
        case State.HELD:
            return _held(task, facts)
        case State.LEASED:
            return _leased(task, facts)
        case State.DONE:
            return Explanation(Reason.COMPLETED, "it is finished")
        case State.FAILED:
            return _failed(task)
        case State.DEAD:
            text = f"it is a dead letter of queue {task.dead_queue}: {task.error}"
            return Explanation(Reason.DEAD_LETTER, text)
        case _:
            assert_never(task.state)


def set_aside(task_id: str) -> Explanation:
    """Return that a task is set aside; why is for its admin alone, who can also retry it."""
    text = f"the broker failed at it and set it aside; see aside show {aside_id(TASK, task_id)}"
    return Explanation(Reason.SET_ASIDE, text)


def by_limit(limit: SharedLimit, now_ms: int) -> Explanation | None:
    """Return why a ready task waits for the limit that its queue shares; None if it does not."""
    if limit.held_until_ms > now_ms:
        text = f"a worker asked that nothing of limit {limit.name} goes before then"
        return Explanation(Reason.LIMIT_HELD, text, limit.held_until_ms)
    if 0 < limit.running_max <= limit.running:
        text = f"{limit.running} tasks are in progress, as many as limit {limit.name} allows"
        return Explanation(Reason.CONSUMER_LIMIT, text)
    if limit.limited_until_ms > now_ms:
        text = f"limit {limit.name} has used up its rate; the next task of its queues may go then"
        return Explanation(Reason.RATE_LIMITED, text, limit.limited_until_ms)
    return None


def _ready(facts: Facts) -> Explanation:
    policy = facts.policy
    if policy.paused:
        return Explanation(Reason.QUEUE_PAUSED, "its queue is paused; resume it")
    if facts.held_until_ms > facts.now_ms:
        text = "a worker asked that nothing of its queue goes before then"
        return Explanation(Reason.QUEUE_HELD, text, facts.held_until_ms)
    if 0 < policy.max_consumers <= facts.leased:
        text = f"{facts.leased} tasks of its queue are in progress, as many as its topic allows"
        return Explanation(Reason.CONSUMER_LIMIT, text)
    if facts.limited_until_ms > facts.now_ms:
        text = "its queue has used up its rate; the next task of it may go then"
        return Explanation(Reason.RATE_LIMITED, text, facts.limited_until_ms)
    if facts.limit is not None and (waits := by_limit(facts.limit, facts.now_ms)):
        return waits
    if 0 < facts.tenant_leased_max <= facts.tenant_leased:
        text = f"{facts.tenant_leased} tasks of its tenant are in progress, which is its budget"
        return Explanation(Reason.IN_FLIGHT_LIMIT, text)
    if facts.ahead:
        text = f"ready tasks of its queue that go before it on its shard: {facts.ahead}"
        return Explanation(Reason.BEHIND_OTHERS, text)
    return Explanation(Reason.NO_CLAIM, "it is next; no worker has claimed it yet")


def _delayed(task: Task, facts: Facts) -> Explanation:
    if task.due_ms <= facts.now_ms:
        return Explanation(Reason.BECOMING_READY, "its delay is over; it is about to be ready")
    until_ms = min(task.due_ms, task.expires_ms or task.due_ms)
    if task.parked_at:
        what = f"signal {facts.signal}, and at most until then" if facts.signal else "that time"
        text = f"its function waits at step {task.parked_at} for {what}; no worker holds it"
        return Explanation(Reason.PARKED, text, until_ms)
    if task.attempts:
        text = f"attempt {task.attempts} of {task.max_attempts} was given back; it backs off"
        return Explanation(Reason.BACKING_OFF, text, until_ms)
    return Explanation(Reason.SCHEDULED, "its start time has not come", until_ms)


def _held(task: Task, facts: Facts) -> Explanation:
    unique = unique_of(task)
    if unique is not None and unique.role is Role.NEXT:
        text = f"task {facts.before} holds its unique key {unique.key}; it is next"
        return Explanation(Reason.KEY_BUSY, text, facts.throttled_until_ms)
    if task.waits_for_others:
        return Explanation(Reason.WAITING_FOR, _waiting_for(facts.waits_for))
    key = lane_of(task)
    if facts.stopper:
        text = f"dead letter {facts.stopper} stops its key {key}; requeue or delete that one"
        return Explanation(Reason.KEY_STOPPED, text)
    if facts.key_paused:
        return Explanation(Reason.KEY_PAUSED, f"its key {key} is paused; resume the key")
    if facts.held_until_ms > facts.now_ms:
        text = f"a worker asked that nothing of its key {key} goes before then"
        return Explanation(Reason.KEY_HELD, text, facts.held_until_ms)
    if facts.limited_until_ms > facts.now_ms:
        text = f"its key {key} has used up its rate; the next task of it may go then"
        return Explanation(Reason.RATE_LIMITED, text, facts.limited_until_ms)
    if facts.before:
        return Explanation(Reason.KEY_BUSY, f"task {facts.before} goes before it, by its key {key}")
    if facts.running:
        text = (
            f"tasks of its key {key} in progress: {facts.running}; none of them is among the first "
            f"{facts.looked_at} in progress of its queue, which were looked at"
        )
        return Explanation(Reason.KEY_BUSY, text)
    return Explanation(Reason.KEY_BUSY, f"its key {key} is about to be free")


def _failed(task: Task) -> Explanation:
    if was_cancelled(task):
        return Explanation(Reason.CANCELLED, f"it was cancelled{_why(task)}")
    by_others = task.error.startswith((DEPENDENCY_FAILED, DEPENDENCY_UNKNOWN))
    if by_others and not task.attempts:
        return Explanation(Reason.FAILED, f"it did not run: {task.error}")
    return Explanation(Reason.FAILED, "its worker reported that it failed")


def _waiting_for(waits_for: tuple[Dependency, ...]) -> str:
    # A dead letter needs somebody to act, so it is named before those that go on by themselves.
    for each in waits_for:
        if each.status == DEAD:
            return f"it waits for dead letter {each.parent}; requeue or delete that one"
    if not waits_for:
        return "what it waits for is about to be decided"
    others = f" and {len(waits_for) - 1} others" if len(waits_for) > 1 else ""
    return f"it waits for the end of task {waits_for[0].parent}{others}"


def _leased(task: Task, facts: Facts) -> Explanation:
    if task.lease_until_ms <= facts.now_ms:
        return Explanation(Reason.LEASE_EXPIRED, "its lease is over; it is about to be given back")
    text = f"{worker_shown(task)} holds it"
    if task.more is not None and task.more.progress is not None:
        said = task.more.progress
        text += f", {said.done} of {said.total} done" if said.total else f", {said.done} done"
    if cancelling_of(task) is not None:
        text += f"; it is to end, CANCELLED if its worker reports no result{_why(task)}"
    return Explanation(Reason.RUNNING, text, task.lease_until_ms)


def _why(task: Task) -> str:
    asked = cancelling_of(task)
    return "" if asked is None or not asked.reason else f": {asked.reason}"


def was_cancelled(task: Task) -> bool:
    """Return whether a task was cancelled; a worker may report the same text as its error."""
    said_by_worker = task.history and task.history[-1].outcome is AttemptOutcome.FAILED
    return task.error == CANCELLED and not said_by_worker
