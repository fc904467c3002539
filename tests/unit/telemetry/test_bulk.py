"""Bulk jobs: each part counts once when it begins and ends, and each task that it changes once."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from codeq_cluster.core.bulk import ActionKind, BulkAction, BulkJob
from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.selecting import Selection
from codeq_cluster.telemetry.history import History
from codeq_cluster.telemetry.metrics import Metrics
from codeq_cluster.telemetry.tasks import TaskObserver


def test_parts_and_their_tasks_are_counted_by_their_changes() -> None:
    """A step counts the tasks of that step; what is forgotten counts nothing."""
    metrics = Metrics()
    observer = TaskObserver(metrics, History(list, lambda: 0.0))
    new = BulkJob(
        tenant="acme",
        id="j",
        select=Selection(queue="render"),
        action=BulkAction(kind=ActionKind.CANCEL),
        until_ms=1,
        expires_ms=2,
    )
    step = replace(new, looked=60, selected=50, changed=48)
    done = replace(step, looked=70, selected=55, changed=50, ended_ms=3)
    stopped = replace(new, ended_ms=3, stopped_by="ann")
    for rows in ((None, new, step, done, None), (None, new, stopped, None)):
        for before, after in pairwise(rows):
            observer.changed(ItemChange(before=before, after=after))
    lines = metrics.scrape().decode().splitlines()

    assert "codeq_bulk_parts_begun_total 2.0" in lines
    assert 'codeq_bulk_parts_ended_total{status="DONE"} 1.0' in lines
    assert 'codeq_bulk_parts_ended_total{status="STOPPED"} 1.0' in lines
    assert 'codeq_bulk_tasks_changed_total{action="cancel"} 50.0' in lines
    assert 'codeq_bulk_tasks_changed_total{action="runNow"} 0.0' in lines
