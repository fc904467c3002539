"""Dependencies: each wait counts when it begins and ends, and each dead letter that holds it."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.dependencies import DEAD, Dependencies, Dependency
from codeq_cluster.core.task import COMPLETED, FAILED
from codeq_cluster.telemetry.history import History
from codeq_cluster.telemetry.metrics import Metrics
from codeq_cluster.telemetry.tasks import TaskObserver

FIRST, SECOND = "0" * 32, "1" * 32
NEW = Dependencies(
    tenant="acme",
    id="2" * 32,
    of=(Dependency(parent=FIRST, name="a"), Dependency(parent=SECOND, name="b")),
)


def _row(first: str, second: str) -> Dependencies:
    of = (
        replace(each, status=status) for each, status in zip(NEW.of, (first, second), strict=True)
    )
    return replace(NEW, of=tuple(of))


def test_waits_are_counted_by_the_changes_of_their_rows() -> None:
    """One is held twice, by one dead letter and again after its requeue, and then runs."""
    metrics = Metrics()
    observer = TaskObserver(metrics, History(list, lambda: 0.0))
    met = (NEW, _row(DEAD, ""), replace(_row(DEAD, ""), asked=1), NEW, _row(DEAD, ""))
    ran = (None, *met, _row(COMPLETED, ""), _row(COMPLETED, COMPLETED), None)
    lost = (None, NEW, _row("", FAILED), replace(_row(COMPLETED, FAILED), expires_ms=0), None)
    at_once = (None, _row(COMPLETED, COMPLETED), None)
    for rows in (ran, lost, at_once):
        for before, after in pairwise(rows):
            observer.changed(ItemChange(before=before, after=after))
    text = metrics.scrape().decode()

    assert "codeq_dependent_begun_total 3.0" in text
    assert "codeq_dependent_held_total 2.0" in text
    assert 'codeq_dependent_ended_total{outcome="met"} 2.0' in text
    assert 'codeq_dependent_ended_total{outcome="impossible"} 1.0' in text
