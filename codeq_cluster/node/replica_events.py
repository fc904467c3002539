"""Replica events: what happens to this node's replicas, for the parts that act on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from codeq_cluster.node.fatal import stop_at_once
from codeq_cluster.raft.ports import Events


class ReplicaEvents:
    """Passes on what groups and databases report.

    The parts that act on it are made of the replicas themselves, so they come after them. They
    register when they are made, and nothing is reported before the replicas start.
    """

    def __init__(self) -> None:
        self._on_behind: list[Callable[[int], None]] = []
        self._on_diverged: list[Callable[[int, int], None]] = []
        self._on_failed: list[Callable[[int, BaseException], None]] = []
        self._on_members: list[Callable[[], None]] = []

    def on_behind(self, call: Callable[[int], None]) -> None:
        """Call `call` with a shard whose leader no longer has the entries its replica needs."""
        self._on_behind.append(call)

    def on_diverged(self, call: Callable[[int, int], None]) -> None:
        """Call `call` with a shard and the first entry at which its state is not the majority's."""
        self._on_diverged.append(call)

    def on_failed(self, call: Callable[[int, BaseException], None]) -> None:
        """Call `call` with a shard and an error of its storage."""
        self._on_failed.append(call)

    def on_members(self, call: Callable[[], None]) -> None:
        """Call `call` when a group's membership has changed."""
        self._on_members.append(call)

    def failed(self, shard: int, error: BaseException) -> None:
        """Report that a shard's storage failed."""
        for call in self._on_failed:
            call(shard, error)

    def of(self, shard: int) -> Events:
        """Return where a shard's group reports to."""
        return Events(
            on_fatal=partial(stop_at_once, shard),
            on_behind=partial(self._behind, shard),
            on_diverged=partial(self._diverged, shard),
            on_storage_failed=partial(self.failed, shard),
            on_members=self._members,
        )

    def _behind(self, shard: int) -> None:
        for call in self._on_behind:
            call(shard)

    def _diverged(self, shard: int, index: int) -> None:
        for call in self._on_diverged:
            call(shard, index)

    def _members(self) -> None:
        for call in self._on_members:
            call()
