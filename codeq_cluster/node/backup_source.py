"""Backup source: a node's shards as sources of backups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.errors import StorageFailed
from codeq_cluster.forwarded import forwarded
from codeq_cluster.node.disk_guard import DiskGuard
from codeq_cluster.node.parts import NodeParts
from codeq_cluster.raft.group import RaftGroup

_SPILL_AGAIN_S = 0.05  # Pause while the database waits for its background work.


class BackupShard:
    """One shard's replica on this node, brought up to its leader before a backup."""

    level: int = forwarded("_group.level")

    def __init__(self, shard: int, parts: NodeParts) -> None:
        self._shard = shard
        self._parts = parts
        self._store = parts.storage.shards[shard]
        self._group = parts.replicas.groups[shard]

    def watched(self) -> Callable[[], str]:
        """Start to watch the replica; the returned function says what has gone wrong since."""
        disk_guard = self._parts.recovery.disk_guard
        return watch(self._shard, disk_guard=disk_guard, group=self._group)

    def checkpoint(self, path: Path) -> None:
        """Copy the shard's present state to a directory; blocks, raises StorageFailed."""
        self._store.checkpoint(path)

    async def settled(self, *, timeout_s: float) -> None:
        """Wait until everything acknowledged before the call is in the database here.

        Raises:
            StorageFailed: The database failed, or took no write in time.
        """
        deadline = deadline_in(timeout_s)
        there = await self._parts.calls.router.read(self._shard, (), deadline=deadline)
        await self._parts.replicas.catalogue.settled(self._shard, there.applied_index)
        while not self._store.spill():
            if asyncio.get_running_loop().time() > deadline:
                raise StorageFailed(f"the database of shard {self._shard} takes no writes")
            await asyncio.sleep(_SPILL_AGAIN_S)


def watch(shard: int, *, disk_guard: DiskGuard, group: RaftGroup) -> Callable[[], str]:
    """Start to watch a replica; the returned function says what has gone wrong since.

    It returns a text for the operator, empty if nothing is wrong; call it on the loop.
    """
    before = None if shard in disk_guard.out else disk_guard.latest(shard)

    def wrong() -> str:
        # A replica that is back counts as well: an earlier copy may be of the wrong state.
        out = disk_guard.latest(shard)
        if out is not None and out is not before:
            return out.text
        others = ", ".join(group.status().in_doubt)
        return others and f"its state is not that of {others}, and no majority has been heard"

    return wrong
