"""The change that cancels a task, under the policy of its queue."""

from __future__ import annotations

from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import Task
from codeq_cluster.core.transitions import cancelled
from codeq_cluster.core.view import View


def cancel_change(view: View, task: Task, rules: LifetimeRules, *, request: str) -> TaskChange:
    """Return the change that cancels a task that has not ended."""
    policy = view.policy(task.tenant, task.command.lower())
    return cancelled(task, rules, policy, request=request, now_ms=view.now_ms)
