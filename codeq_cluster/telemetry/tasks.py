"""Tasks: updates the task metrics from durable changes."""

from __future__ import annotations

from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.task import AttemptOutcome, State, Task
from codeq_cluster.telemetry.history import Flow, History
from codeq_cluster.telemetry.metrics import Metrics


class TaskObserver:
    """Counts each entry and each change once, on the node that led it."""

    def __init__(self, metrics: Metrics, history: History) -> None:
        self._metrics = metrics
        self._history = history

    def committed(self, *, shard: int, mutations: int, commit_s: float) -> None:
        """Record one entry of this leader."""
        self._metrics.entry_applied(shard, mutations=mutations, commit_s=commit_s)

    def changed(self, change: TaskChange) -> None:
        """Count the events of one change of a task."""
        before, after = change.before, change.after
        if after is None or change.restored:
            return
        if before is None:
            if change.imported:
                self._metrics.task_imported(after.command)
            else:
                self._metrics.task_created(after.command)
                self._flowed(after, Flow.CREATED)
            return
        if after.state is State.LEASED and before.state is State.READY:
            self._metrics.task_claimed(after.command)
            self._flowed(after, Flow.STARTED)
        if _lease_expired(before, after):
            self._metrics.lease_expired(after.command)
        if after.state.terminal and not before.state.terminal:
            self._metrics.task_completed(
                after.command,
                "COMPLETED" if after.state is State.DONE else "FAILED",
                (after.updated_ms - after.created_ms) / 1000,
            )
            self._flowed(after, Flow.COMPLETED if after.state is State.DONE else Flow.FAILED)

    def _flowed(self, task: Task, flow: Flow) -> None:
        self._history.count(task.tenant, task.command.lower(), flow)


def _lease_expired(before: Task, after: Task) -> bool:
    return (
        before.state is State.LEASED
        and after.state is not State.LEASED
        and bool(after.history)
        and after.history[-1].outcome is AttemptOutcome.LEASE_EXPIRED
    )
