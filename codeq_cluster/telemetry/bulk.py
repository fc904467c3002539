"""Bulk: counts what becomes of the parts of bulk jobs, and the tasks that they change."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.core.bulk import ActionKind, BulkJob
from codeq_cluster.telemetry.loop_metrics import LoopCounter

_DONE, _STOPPED = "DONE", "STOPPED"


class BulkMetrics:
    """The counters of bulk jobs, each of which begins at 0."""

    def __init__(self, counter: Callable[..., LoopCounter]) -> None:
        self._begun = counter("codeq_bulk_parts_begun", "Parts of bulk jobs begun.")
        self._begun.inc(by=0)
        self._ended = counter("codeq_bulk_parts_ended", "Parts that ended.", "status")
        for status in (_DONE, _STOPPED):
            self._ended.inc(status, by=0)
        self._changed = counter(
            "codeq_bulk_tasks_changed", "Tasks that bulk jobs have changed.", "action"
        )
        for action in ActionKind:
            self._changed.inc(action.value, by=0)

    def changed(self, before: BulkJob | None, after: BulkJob) -> None:
        """Count the events of one change of a part; `before` is None for a new one."""
        if before is None:
            self._begun.inc()
            return
        if after.changed > before.changed:
            self._changed.inc(after.action.kind.value, by=after.changed - before.changed)
        if after.ended_ms and not before.ended_ms:
            self._ended.inc(_STOPPED if after.stopped_by else _DONE)
