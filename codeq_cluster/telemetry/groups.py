"""Groups: counts what becomes of groups and of their members."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.core.groups import DEAD, Group, status_of
from codeq_cluster.core.task import COMPLETED, FAILED
from codeq_cluster.core.transitions import CANCELLED
from codeq_cluster.telemetry.loop_metrics import LoopCounter

_ENDS = (COMPLETED, FAILED, CANCELLED)
_MEMBER_ENDS = (*_ENDS, DEAD)


class GroupMetrics:
    """The counters of groups, each of which begins at 0."""

    def __init__(self, counter: Callable[..., LoopCounter]) -> None:
        self._begun = counter("codeq_group_begun", "Groups begun.")
        self._begun.inc(by=0)
        self._ended = counter("codeq_group_ended", "Groups that ended.", "status")
        for status in _ENDS:
            self._ended.inc(status, by=0)
        self._members = counter("codeq_group_members_ended", "Members that ended.", "status")
        for status in _MEMBER_ENDS:
            self._members.inc(status, by=0)

    def changed(self, before: Group | None, after: Group) -> None:
        """Count the events of one change of a group; `before` is None for a new one."""
        if before is None:
            self._begun.inc()
        for status in _MEMBER_ENDS:
            field = status.lower()
            ended = getattr(after, field) - (getattr(before, field) if before is not None else 0)
            if ended:
                self._members.inc(status, by=ended)
        if after.ended_ms and (before is None or not before.ended_ms):
            self._ended.inc(status_of(after))
