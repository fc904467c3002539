"""Groups: each counts once when it begins and ends, and each member once when it ends."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.groups import Group
from codeq_cluster.telemetry.history import History
from codeq_cluster.telemetry.metrics import Metrics
from codeq_cluster.telemetry.tasks import TaskObserver


def test_groups_and_members_are_counted_by_their_changes() -> None:
    """A change that ends nothing counts nothing; one that ends several members counts each."""
    metrics = Metrics()
    observer = TaskObserver(metrics, History(list, lambda: 0.0))
    new = Group(tenant="acme", id="g", generation=1, rows=4, live=4, created_ms=1, expires_ms=9)
    sealed = replace(new, sealed_ms=2, expires_ms=0)
    some = replace(sealed, live=1, completed=2, dead=1)
    ended = replace(some, live=0, cancelled=1, ended_ms=3, expires_ms=9)
    rows = (None, new, sealed, some, ended, replace(ended, expires_ms=10), None)
    for before, after in pairwise(rows):
        observer.changed(ItemChange(before=before, after=after))
    text = metrics.scrape().decode()

    assert "codeq_group_begun_total 1.0" in text
    assert {"COMPLETED": 2, "FAILED": 0, "CANCELLED": 1, "DEAD": 1} == {
        status: int(float(line.rpartition(" ")[2]))
        for status in ("COMPLETED", "FAILED", "CANCELLED", "DEAD")
        for line in text.splitlines()
        if line.startswith(f'codeq_group_members_ended_total{{status="{status}"}}')
    }
    assert 'codeq_group_ended_total{status="FAILED"} 1.0' in text
    assert 'codeq_group_ended_total{status="COMPLETED"} 0.0' in text
