"""Dependencies: counts the tasks that wait for others, and how their waits end."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.core.dependencies import DEAD, Dependencies, Verdict
from codeq_cluster.telemetry.loop_metrics import LoopCounter

_MET = "met"
_IMPOSSIBLE = "impossible"


class DependencyMetrics:
    """The counters of dependents, each of which begins at 0."""

    def __init__(self, counter: Callable[..., LoopCounter]) -> None:
        self._begun = counter("codeq_dependent_begun", "Tasks that began to wait for others.")
        self._ended = counter("codeq_dependent_ended", "Waits for others that ended.", "outcome")
        self._held = counter(
            "codeq_dependent_held", "Dead letters that began to hold up a task that waits for them."
        )
        self._begun.inc(by=0)
        self._held.inc(by=0)
        for outcome in (_MET, _IMPOSSIBLE):
            self._ended.inc(outcome, by=0)

    def changed(self, before: Dependencies | None, after: Dependencies) -> None:
        """Count the events of one change of a row; `before` is None for a new one."""
        if before is None:
            self._begun.inc()
        outcome = _outcome(after)
        if outcome and outcome != _outcome(before):
            self._ended.inc(outcome)
        if held := _holders(after) - _holders(before):
            self._held.inc(by=len(held))


def _outcome(row: Dependencies | None) -> str:
    """Return how the wait has ended; empty while it has not."""
    if row is None:
        return ""
    if any(each.verdict is Verdict.IMPOSSIBLE for each in row.of):
        return _IMPOSSIBLE
    return _MET if row.all_met else ""


def _holders(row: Dependencies | None) -> set[str]:
    """Return the dead letters that may be requeued, for which the task waits."""
    if row is None:
        return set()
    return {each.parent for each in row.of if each.status == DEAD and each.verdict is Verdict.WAITS}
