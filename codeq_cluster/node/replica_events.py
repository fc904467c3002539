"""Replica events: what happens to this node's replicas, for the parts that act on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from codeq_cluster.node.fatal import stop_at_once
from codeq_cluster.raft.ports import Events


def _nobody(*_event: object) -> None:
    pass


class ReplicaEvents:
    """Passes on what groups and databases report.

    The parts that act on it are made of the replicas themselves, so they come after them. They set
    their calls when they are made, and nothing is reported before the replicas start.

    Attributes:
        on_behind: Called with a shard whose leader no longer has the entries its replica needs.
        on_diverged: Called with a shard and the first entry at which its state is not the
            majority's.
        on_failed: Called with a shard and an error of its storage.
        on_members: Called when a group's membership has changed.
    """

    def __init__(self) -> None:
        self.on_behind: Callable[[int], None] = _nobody
        self.on_diverged: Callable[[int, int], None] = _nobody
        self.on_failed: Callable[[int, BaseException], None] = _nobody
        self.on_members: Callable[[], None] = _nobody

    def failed(self, shard: int, error: BaseException) -> None:
        """Report that a shard's storage failed."""
        self.on_failed(shard, error)

    def of(self, shard: int) -> Events:
        """Return where a shard's group reports to."""
        return Events(
            on_fatal=partial(stop_at_once, shard),
            on_behind=lambda: self.on_behind(shard),
            on_diverged=lambda index: self.on_diverged(shard, index),
            on_storage_failed=partial(self.failed, shard),
            on_members=self._members,
        )

    def _members(self) -> None:
        self.on_members()
