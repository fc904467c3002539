"""Cancelling: the end of a task on demand, at once or after a grace for its worker.

With a grace the lease stays, and its end moves to the deadline at the latest; heartbeats move it no
further. A result counts until then. Whatever else ends the lease ends the task, CANCELLED: the
worker gives it back, its lease expires. So the deadline needs no timer of its own.
"""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.changes import Decision, TaskChange
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.holding import found
from codeq_cluster.core.operations import Cancel
from codeq_cluster.core.outcomes import Cancelled, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import Attempt, Cancelling, More, State, Task, cancelling_of
from codeq_cluster.core.transitions import cancel_asked, cancelled
from codeq_cluster.core.view import View


def cancel(view: View, operation: Cancel, rules: LifetimeRules) -> Decision:
    """End a task that has not ended, even while a worker holds it."""
    assert operation.request
    task = found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    if task.state.terminal:
        if task.ended_by == operation.request:
            return Decision(Cancelled(task))
        return Decision(Rejected(Rejection.ALREADY_TERMINAL))
    change = cancel_change(view, task, rules, request=operation.request)
    assert change.after is not None
    return Decision(Cancelled(change.after), (change,))


def ask_cancel(view: View, operation: AskCancel, rules: LifetimeRules) -> Decision:
    """Let the worker of a task end it in time; end a task at once that nobody holds."""
    assert operation.request
    assert operation.grace_ms >= 0
    task = found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    before = cancelling_of(task)
    if before is not None and before.request == operation.request:
        return Decision(Cancelled(task))
    if task.state.terminal:
        return Decision(Rejected(Rejection.ALREADY_TERMINAL))
    asked = Cancelling(
        reason=operation.reason,
        deadline_ms=view.now_ms + operation.grace_ms,
        dependents=operation.dependents,
        request=operation.request,
    )
    if task.state is State.LEASED and operation.grace_ms:
        after = cancel_asked(task, _joined(before, asked), now_ms=view.now_ms)
        return Decision(Cancelled(after), (TaskChange(before=task, after=after),))
    change = cancel_with(view, task, rules, asked)
    assert change.after is not None
    return Decision(Cancelled(change.after), (change,))


def cancel_change(
    view: View, task: Task, rules: LifetimeRules, *, request: str, ended: Attempt | None = None
) -> TaskChange:
    """Return the change that cancels a task that has not ended; see `cancelled`."""
    policy = view.policy(task.tenant, task.command.lower())
    return cancelled(task, rules, policy, request=request, now_ms=view.now_ms, ended=ended)


def cancel_with(view: View, task: Task, rules: LifetimeRules, asked: Cancelling) -> TaskChange:
    """Return the change that cancels a task, which keeps what this and earlier ones have said."""
    change = cancel_change(view, task, rules, request=asked.request)
    assert change.after is not None
    said = _joined(cancelling_of(task), asked)
    more = replace(change.after.more or More(), cancelling=said)
    return replace(change, after=replace(change.after, more=more))


def _joined(before: Cancelling | None, asked: Cancelling) -> Cancelling:
    """Return what two cancels say: the second may hurry the worker, and takes nothing back."""
    if before is None:
        return asked
    return replace(
        asked,
        reason=asked.reason or before.reason,
        deadline_ms=min(asked.deadline_ms, before.deadline_ms),
        dependents=asked.dependents or before.dependents,
    )


def taken_along(parent: str, now_ms: int) -> Cancelling:
    """Return what the cancel of a task says of one that waits for it."""
    return Cancelling(
        reason=f"cancelled with task {parent}",
        deadline_ms=now_ms,
        dependents=True,
        request=parent,
    )
