"""Triage: operators' actions on waiting and dead tasks, beyond requeueing and deleting them.

Each has an audit record, and a retry under the same request gets the same answer.
"""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.administering import named_tasks, revival, revived_under
from codeq_cluster.core.changes import Change, Decision
from codeq_cluster.core.operations import Purge, Revise, UndoRequeue
from codeq_cluster.core.outcomes import Changed, Rejected
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stepping import steps_of
from codeq_cluster.core.task import AttemptOutcome, State, Task
from codeq_cluster.core.transitions import cancelled, requeue_undone
from codeq_cluster.core.view import View

_WAITING = (State.READY, State.DELAYED, State.HELD)


def purge(view: View, operation: Purge, rules: LifetimeRules) -> Decision:
    """Cancel tasks that wait in a queue; claimed and ended ones are left alone."""
    assert operation.request
    count = 0
    changes: list[Change] = []
    policy = view.policy(operation.tenant, operation.queue)
    for task in named_tasks(view, operation.tenant, operation.ids):
        if task.ended_by != operation.request:
            if task.state not in _WAITING or task.command.lower() != operation.queue:
                continue
            changes.append(
                cancelled(task, rules, policy, request=operation.request, now_ms=view.now_ms)
            )
        count += 1
    return Decision(Changed(count), tuple(changes))


def revise(view: View, operation: Revise, rules: LifetimeRules) -> Decision:
    """Make a dead letter ready again with another payload, unless it has been revived meanwhile."""
    task = view.task(operation.id)
    if task is None or task.tenant != operation.tenant:
        return Decision(Changed(0))
    if revived_under(task, operation.request):
        return Decision(Changed(1))
    if task.endings != operation.endings:
        return Decision(Changed(0))
    by, request = operation.by, operation.request
    change = revival(view, task, rules, by=by, request=request, given=set())
    if change is None:
        return Decision(Changed(0))
    if isinstance(change, Rejected):
        return Decision(change)
    assert change.after is not None
    after = replace(change.after, payload_bytes=len(operation.payload.encode()))
    return Decision(Changed(1), (replace(change, after=after, payload=operation.payload),))


def undo_requeue(view: View, operation: UndoRequeue, rules: LifetimeRules) -> Decision:
    """Take a requeue back: its tasks that nobody has claimed become dead letters again."""
    assert operation.request
    count = 0
    changes: list[Change] = []
    for task in named_tasks(view, operation.tenant, operation.ids):
        if task.ended_by != operation.request:
            if not _waits_since(view, task, operation.requeue):
                continue
            policy = view.policy(task.tenant, task.command.lower())
            changes.append(requeue_undone(task, rules, policy, request=operation.request))
        count += 1
    return Decision(Changed(count), tuple(changes))


def _waits_since(view: View, task: Task, requeue: str) -> bool:
    """Return whether the task waits by this requeue and nobody has claimed it since."""
    if task.state not in (State.READY, State.HELD) or not task.history:
        return False
    last = task.history[-1]
    if last.outcome is not AttemptOutcome.REQUEUED or last.request.split(".", 1)[0] != requeue:
        return False
    # Who has parked a task has left a step, and no attempt.
    return all(step.at_ms < last.ended_ms for step in steps_of(view, task))
