"""Expiry: changes that are due: ends of delays, leases and lifetimes, deletions of ended tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from codeq_cluster.core import bulking, gating, graphing, grouping
from codeq_cluster.core.bulk import BulkJob
from codeq_cluster.core.cancelling import cancel_change
from codeq_cluster.core.changes import Change, Decision, ItemChange, TaskChange
from codeq_cluster.core.dependencies import Dependencies, Walk
from codeq_cluster.core.gate import Gate
from codeq_cluster.core.groups import Group
from codeq_cluster.core.operations import Advance
from codeq_cluster.core.outcomes import Advanced
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import AttemptOutcome, State, Task, cancelling_of
from codeq_cluster.core.transitions import (
    LEASE_EXPIRED,
    MESSAGE_EXPIRED,
    attempt_of,
    dead,
    due,
    kept,
    returned,
)
from codeq_cluster.core.view import View

# What goes on by steps instead of ending.
_Stepping = Group | Walk | Dependencies | BulkJob


def advance(view: View, operation: Advance, rules: LifetimeRules) -> Decision:
    """Return the due changes, tasks before items, at most `operation.count` in total."""
    assert operation.count >= 1
    due_ids = view.due(operation.count, leases_too=operation.leases_too)
    changes: list[Change] = [_elapsed(view, task_id, rules) for task_id in due_ids]
    left = operation.count - len(changes)
    lapsed = view.lapsed(left) if left else ()
    changes += [
        gating.elapsed(view, item)
        if isinstance(item, Gate)
        else ItemChange(before=item, after=None)
        for item in lapsed
        if not isinstance(item, _Stepping)
    ]
    # A step may be as much work as all others together: the next one has the next entry.
    steps = _by_turns(item for item in lapsed if isinstance(item, _Stepping))
    if steps and isinstance(steps[0], Group):
        changes += grouping.elapsed(view, steps[0], rules, due_ids, most=left)
    elif steps and isinstance(steps[0], BulkJob):
        pause_ms = operation.pause_ms
        changes += bulking.elapsed(view, steps[0], rules, due_ids, most=left, pause_ms=pause_ms)
    elif steps:
        walks = [
            item
            for item in steps
            if isinstance(item, Walk | Dependencies) and item.id not in due_ids
        ]
        changes = list(graphing.elapsed(view, walks, rules, changes, most=left))
    return Decision(Advanced(len(changes)), tuple(changes))


def _by_turns(items: Iterable[_Stepping]) -> list[_Stepping]:
    """Return items in an order in which tenants take turns, each tenant's as they were."""
    turns: Counter[str] = Counter()

    def turn(item: _Stepping) -> int:
        turns[item.tenant] += 1
        return turns[item.tenant]

    return sorted(items, key=turn)


def _elapsed(view: View, task_id: str, rules: LifetimeRules) -> TaskChange:
    """Return the change of a task whose due instant has come."""
    task = view.task(task_id)
    assert task is not None
    now_ms = view.now_ms
    if task.state.terminal:
        assert task.retain_until_ms <= now_ms
        until_ms = grouping.kept_until_ms(view, task, rules)
        if until_ms > now_ms:
            return kept(task, until_ms=until_ms)
        return TaskChange(before=task, after=None)
    if task.state is State.LEASED:
        assert task.lease_until_ms <= now_ms
        return _lease_expired(view, task, rules)
    if 0 < task.expires_ms <= now_ms:
        policy = view.policy(task.tenant, task.command.lower())
        return dead(task, rules, policy, error=MESSAGE_EXPIRED, now_ms=now_ms)
    assert task.state is State.DELAYED
    assert task.due_ms <= now_ms
    return TaskChange(before=task, after=due(task, seq=view.next_seq(), now_ms=now_ms))


def _lease_expired(view: View, task: Task, rules: LifetimeRules) -> TaskChange:
    now_ms = view.now_ms
    cancelling = cancelling_of(task)
    if cancelling is not None and cancelling.deadline_ms <= now_ms:
        return cancel_change(view, task, rules, request="")
    attempt = attempt_of(task, AttemptOutcome.LEASE_EXPIRED, now_ms=now_ms)
    if cancelling is not None:
        return cancel_change(view, task, rules, request="", ended=attempt)
    if task.attempts >= task.max_attempts:
        policy = view.policy(task.tenant, task.command.lower())
        return dead(task, rules, policy, error=LEASE_EXPIRED, now_ms=now_ms, ended=attempt)
    return TaskChange(before=task, after=returned(task, attempt, rules, seq=view.next_seq()))
