"""Tasks: updates the metrics of tasks, groups, dependencies and bulk jobs from durable changes."""

from __future__ import annotations

from codeq_cluster.core.bulk import BulkJob
from codeq_cluster.core.changes import Change, ItemChange
from codeq_cluster.core.dependencies import Dependencies
from codeq_cluster.core.groups import Group
from codeq_cluster.core.task import AttemptOutcome, State, Task
from codeq_cluster.telemetry.history import Flow, History
from codeq_cluster.telemetry.metrics import Metrics


class TaskObserver:
    """Counts each entry and each change once, on the node that led it."""

    def __init__(self, metrics: Metrics, history: History) -> None:
        self._metrics = metrics
        self._history = history
        self.item_failed = metrics.item_failures.inc

    def committed(self, *, shard: int, mutations: int, commit_s: float) -> None:
        """Record one entry of this leader."""
        self._metrics.entry_mutations.observe(mutations, shard)
        self._metrics.commit.observe(commit_s, shard)

    def changed(self, change: Change) -> None:
        """Count the events of one change."""
        if isinstance(change, ItemChange):
            self._item_changed(change)
            return
        before, after = change.before, change.after
        if after is None or change.restored:
            return
        if before is None:
            if change.imported:
                self._metrics.task_imported(after.command)
            else:
                self._metrics.task_created(after.command)
                self._history.count(after.tenant, after.command.lower(), Flow.CREATED)
            return
        if after.state is State.LEASED and before.state is State.READY:
            self._metrics.task_claimed(after.command)
            self._history.count(after.tenant, after.command.lower(), Flow.STARTED)
        if before.state is State.LEASED and _lease_expired(after):
            self._metrics.lease_expired(after.command)
        if after.state.terminal and not before.state.terminal:
            status = Flow.COMPLETED if after.state is State.DONE else Flow.FAILED
            latency_ms = after.updated_ms - after.created_ms
            self._metrics.task_completed(after.command, status.name, latency_ms / 1000)
            self._history.count(after.tenant, after.command.lower(), status)

    def _item_changed(self, change: ItemChange) -> None:
        before, after = change.before, change.after
        if isinstance(after, Group):
            self._metrics.groups.changed(before if isinstance(before, Group) else None, after)
        elif isinstance(after, Dependencies):
            row = before if isinstance(before, Dependencies) else None
            self._metrics.dependencies.changed(row, after)
        elif isinstance(after, BulkJob):
            self._metrics.bulk.changed(before if isinstance(before, BulkJob) else None, after)


def _lease_expired(after: Task) -> bool:
    return (
        after.state is not State.LEASED
        and bool(after.history)
        and after.history[-1].outcome is AttemptOutcome.LEASE_EXPIRED
    )
