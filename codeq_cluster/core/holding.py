"""Holding: whether a caller may act on a task, by its tenant and by its lease."""

from __future__ import annotations

from codeq_cluster.core.operations import Abandon, Cancel, Heartbeat, Nack, Staging, Submit
from codeq_cluster.core.outcomes import Rejection
from codeq_cluster.core.task import AttemptOutcome, State, Task
from codeq_cluster.core.view import View


def found(
    view: View, operation: Heartbeat | Abandon | Nack | Submit | Cancel | Staging
) -> Task | None:
    """Return the task if its tenant is the caller's; another tenant's does not exist for it."""
    task = view.task(operation.id)
    return task if task is not None and task.tenant == operation.tenant else None


def refusal_of(
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
