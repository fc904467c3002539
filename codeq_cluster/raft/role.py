"""Role: which node leads, as last reported to the source of entries."""

from __future__ import annotations

import logging
from collections.abc import Callable

from codeq_cluster.raft.elections import Elections
from codeq_cluster.raft.ports import EntrySource
from codeq_cluster.raft.safe_syncobj import SafeSyncObj

_log = logging.getLogger(__name__)


class Role:
    """Reports the leader to one replica's source, timer and waiting callers.

    `Leader` reports this node's own leadership to the source, once its term's first entry is
    applied. A leadership is ended before the source learns of the next leader.

    Args:
        shard: Number of the shard, for the log.
        source: Learns which node to follow.
        elections: Its timer is armed when a leader is lost.
        on_end: Called when this replica no longer leads the term that it led.

    Attributes:
        changes: How often the known leader changed since the start, including to none.
    """

    def __init__(
        self, *, shard: int, source: EntrySource, elections: Elections, on_end: Callable[[], None]
    ) -> None:
        self._shard = shard
        self._source = source
        self._elections = elections
        self._on_end = on_end
        self._known: tuple[int, bool, str | None] = (0, False, None)
        self.changes = 0

    def begin(self, term: int) -> None:
        """Start without a leader."""
        self._known = (term, False, None)
        self._source.follow(None)

    def note(self, engine: SafeSyncObj, now: Callable[[], float]) -> None:
        """Report what changed about the leader since the last call."""
        role = engine.role()
        if role == self._known:
            return
        before, self._known = self._known, role
        term, leads, leader = role
        if before[1] and (not leads or term != before[0]):
            self._on_end()
        if (leads, leader) != before[1:]:
            self.changes += leader != before[2]
            _log.info(
                "leader changed",
                extra={"shard": self._shard, "term": term, "leader": leader, "self": leads},
            )
            if not leads:
                self._source.follow(leader)
        if leader is None and before[2] is not None and not engine.is_candidate():
            self._elections.unseated(now())

    def forget_leader(self, engine: SafeSyncObj) -> None:
        """Forget the leader: it has been silent for too long."""
        if engine.leader() is None:
            return
        engine.step_down()
        self.changes += 1
        self.begin(engine.term())
