"""Node backups: a node's shards as backups are taken from them."""

from __future__ import annotations

from pathlib import Path

from codeq_cluster.broker.catalogue import Catalogue
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.ports import Shards
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.storage.rocks import RocksShard


class BackupShard:
    """One shard's replica on this node, brought up to its leader first.

    Args:
        shard: Its number.
        store: Holds the replica.
        shards: Asks leaders.
        catalogue: Knows what is applied on this node.
        group: Knows the formats in use.
    """

    def __init__(
        self,
        shard: int,
        store: RocksShard,
        *,
        shards: Shards,
        catalogue: Catalogue,
        group: RaftGroup,
    ) -> None:
        self._shard = shard
        self._store = store
        self._shards = shards
        self._catalogue = catalogue
        self._group = group

    @property
    def level(self) -> int:
        """Return the level of the formats in use."""
        return self._group.level

    def checkpoint(self, path: Path) -> None:
        """Make a copy of the shard as it is now; blocks, raises StorageFailed."""
        self._store.checkpoint(path)

    async def settled(self, *, timeout_s: float) -> None:
        """Wait until all that was acknowledged before the call is applied here."""
        deadline = deadline_in(timeout_s)
        there = await self._shards.read(self._shard, (), deadline=deadline)
        await self._catalogue.settled(self._shard, there.applied_index)
