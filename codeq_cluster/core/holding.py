"""Holding: whether a caller may act on a task, by its tenant and by its lease."""

from __future__ import annotations

from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.durable import Park, RecordStep, SendSignal
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.operations import Abandon, Cancel, Heartbeat, Staging, Submit
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.reject import Reject
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.tags import ChangeTags
from codeq_cluster.core.task import AttemptOutcome, State, Task
from codeq_cluster.core.view import View

_OfHolder = Heartbeat | Report | Abandon | Nack | Reject | Submit | Staging | RecordStep | Park
_OfAnyone = Cancel | AskCancel | SendSignal | ChangeTags


def found(view: View, operation: _OfHolder | _OfAnyone) -> Task | None:
    """Return the task if its tenant is the caller's; another tenant's does not exist for it."""
    task = view.task(operation.id)
    return task if task is not None and task.tenant == operation.tenant else None


def held(view: View, operation: _OfHolder) -> Task | Rejected:
    """Return the task if the worker holds it, else why it may not act on it."""
    task = view.task(operation.id)
    if task is None or task.tenant != operation.tenant:
        return Rejected(Rejection.NOT_FOUND)
    refusal = refusal_of(task, operation)
    return task if refusal is None else Rejected(refusal)


def refusal_of(task: Task, operation: _OfHolder) -> Rejection | None:
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


def lease_until_ms(task: Task, extend_ms: int, rules: LifetimeRules, *, now_ms: int) -> int:
    """Return when a lease ends that is extended now.

    The task's time limit bounds it, and the deadline if the task is to end.
    """
    until_ms = now_ms + extend_ms
    if task.handling is not None and task.handling.timeout_ms:
        # A worker that does not know the limit must not hold the task for ever. What the claim
        # asked for stays.
        last_ms = task.claimed_ms + task.handling.timeout_ms + rules.overtime_ms
        until_ms = min(until_ms, max(last_ms, task.lease_until_ms))
    if task.more is not None and task.more.cancelling is not None:
        until_ms = min(until_ms, task.more.cancelling.deadline_ms)
    return until_ms


def _cancelled_under(task: Task, worker: str) -> bool:
    """Return whether a cancellation took away the lease that this worker held on the task."""
    if not task.history:
        return False
    last = task.history[-1]
    return last.outcome is AttemptOutcome.CANCELLED and last.worker == worker
