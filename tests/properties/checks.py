"""Checks: conditions that hold for every decision, whatever the operation."""

from __future__ import annotations

from codeq_cluster.core.changes import Decision, ItemChange, TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.explaining import Facts, Reason, explain
from codeq_cluster.core.items import KIND_OF, Delivery, Sweep
from codeq_cluster.core.operations import Claim, Finish, Import, Operation, Submit
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import State, Task
from docs.tools.transitions import arrow_of, is_note
from tests.fakes.dict_view import DictView

REASONS = {
    State.READY: {
        Reason.EXPIRING,
        Reason.QUEUE_PAUSED,
        Reason.CONSUMER_LIMIT,
        Reason.IN_FLIGHT_LIMIT,
        Reason.BEHIND_OTHERS,
        Reason.NO_CLAIM,
    },
    State.HELD: {
        Reason.EXPIRING,
        Reason.WAITING_FOR,
        Reason.KEY_BUSY,
        Reason.KEY_STOPPED,
        Reason.KEY_HELD,
        Reason.KEY_PAUSED,
        Reason.RATE_LIMITED,
    },
    State.DELAYED: {
        Reason.EXPIRING,
        Reason.BECOMING_READY,
        Reason.BACKING_OFF,
        Reason.SCHEDULED,
    },
    State.LEASED: {Reason.RUNNING, Reason.LEASE_EXPIRED},
    State.DONE: {Reason.COMPLETED},
    State.FAILED: {Reason.FAILED, Reason.CANCELLED},
    State.DEAD: {Reason.DEAD_LETTER},
}

# A task with one of these reasons is never handed out.
_CLOSED = {Reason.QUEUE_PAUSED, Reason.CONSUMER_LIMIT, Reason.IN_FLIGHT_LIMIT, Reason.EXPIRING}


def check_changes(decision: Decision) -> None:
    """Check that a decision changes each task or item at most once."""
    names = []
    for change in decision.changes:
        thing = change.after or change.before
        assert thing is not None
        kind = "task" if isinstance(thing, Task) else KIND_OF[type(thing)]
        names.append((kind, thing.tenant, thing.id))

    assert len(names) == len(set(names))


def check_arrows(operation: Operation, decision: Decision) -> None:
    """Check that a task changes along its lifecycle's table; an import keeps its state."""
    if not isinstance(operation, Import):
        changes = [each for each in decision.changes if isinstance(each, TaskChange)]

        assert all(is_note(change) or arrow_of(operation, change) for change in changes)


def check_deliveries(decision: Decision) -> None:
    """Check that each end of a task with a webhook, and nothing else, makes one delivery.

    Taking a requeue back does not count as an end.
    """
    told = {
        change.after.task_id: change.body
        for change in decision.changes
        if isinstance(change, ItemChange)
        and isinstance(change.after, Delivery)
        and change.body is not None
    }
    ended = {
        change.after.id: change.result
        for change in decision.changes
        if isinstance(change, TaskChange)
        and change.after is not None
        and change.after.webhook
        and not change.restored
        and change.after.state.terminal
        and change.before is not None
        and not change.before.state.terminal
    }

    assert told == ended


def check_artifacts(decision: Decision, kept: tuple[str, ...]) -> None:
    """Check that a task's end sweeps uploads outside its result, and its deletion the others."""
    swept = {
        (change.after.task_id, change.after.upload)
        for change in decision.changes
        if isinstance(change, ItemChange)
        and isinstance(change.after, Sweep)
        and change.before is None
    }
    unneeded: set[tuple[str, str]] = set()
    for change in decision.changes:
        if not isinstance(change, TaskChange) or change.before is None:
            continue
        if change.after is None:
            unneeded |= {(change.before.id, upload) for upload in change.before.uploads}
        elif change.after.state.terminal:
            others = set(change.before.uploads) - set(kept)
            unneeded |= {(change.before.id, upload) for upload in others}

    assert swept == unneeded


def check_bounds(view: DictView, decision: Decision, rules: LifetimeRules) -> None:
    """Check that handed-out tasks respect pauses and bounds; the view is after the decision."""
    for change in decision.changes:
        task = change.after
        if not isinstance(change, TaskChange) or not isinstance(task, Task):
            continue
        if task.state is not State.LEASED:
            continue
        if change.before is not None and change.before.state is State.LEASED:
            continue
        queue = task.command.lower()
        policy = view.policy(task.tenant, queue)
        leased_max = rules.budget_of(task.tenant).leased_max

        assert not policy.paused
        assert not policy.max_consumers or view.leased(task.tenant, queue) <= policy.max_consumers
        assert not leased_max or view.usage(task.tenant).leased <= leased_max


def kept_by(operation: object) -> tuple[str, ...]:
    """Return the uploads that the operation's result refers to."""
    said = operation.submit if isinstance(operation, Finish) else operation
    return said.uploads if isinstance(said, Submit) else ()


def explained(
    view: DictView,
    task: Task,
    rules: LifetimeRules,
    *,
    ahead: int,
    stopper: str,
    key_paused: bool,
    held_until_ms: int,
    limited_until_ms: int,
) -> Reason:
    """Return a task's reason, checked against its state and against what a claim would do."""
    queue = task.command.lower()
    facts = Facts(
        now_ms=view.now_ms,
        policy=view.policy(task.tenant, queue),
        leased=view.leased(task.tenant, queue),
        tenant_leased=view.usage(task.tenant).leased,
        tenant_leased_max=rules.budget_of(task.tenant).leased_max,
        ahead=ahead,
        stopper=stopper,
        key_paused=key_paused,
        held_until_ms=held_until_ms,
        limited_until_ms=limited_until_ms,
    )
    explanation = explain(task, facts)
    reason = explanation.reason
    held = task.state is State.LEASED and task.lease_until_ms > view.now_ms

    assert reason in REASONS[task.state]
    assert reason.waiting == (not task.state.terminal and not held)
    assert explanation.until_ms == 0 or explanation.until_ms > view.now_ms
    if reason is Reason.NO_CLAIM:
        assert [task.id] == _claimed(view, task, rules)
    elif reason in _CLOSED:
        assert task.id not in _claimed(view, task, rules)
    return reason


def look(tenant: str, queue: str) -> Claim:
    """Return a claim of one task of a queue, to be decided and not carried out."""
    return Claim(
        request="a look", tenant=tenant, worker="ann", commands=(queue,), count=1, lease_ms=1
    )


def _claimed(view: DictView, task: Task, rules: LifetimeRules) -> list[str]:
    """Return the tasks that a claim of the task's queue would get now, without claiming."""
    outcome = decide(view, look(task.tenant, task.command), rules).outcome
    return [each.id for each in outcome.tasks] if isinstance(outcome, Claimed) else []
