"""Replica: one shard of a node as a whole, where its state is exchanged for a later one."""

from __future__ import annotations

import asyncio

from codeq_cluster.broker.engine import Engine
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.storage.rocks import RocksShard


class ShardReplica:
    """One shard's store, group and engine.

    Args:
        store: Holds log and state.
        group: Writes the log.
        engine: Holds what is made of the state.
    """

    def __init__(self, store: RocksShard, group: RaftGroup, engine: Engine) -> None:
        self._store = store
        self._group = group
        self._engine = engine

    @property
    def leader(self) -> str | None:
        """Return who leads the shard."""
        return self._engine.leader

    def hold(self) -> None:
        """Keep what follows a snapshot that is being read."""
        self._group.hold()

    def reaches(self, index: int) -> bool:
        """Tell whether the log still has what follows the entry."""
        return self._group.status().log_first <= index

    def wants(self, index: int, term: int) -> bool:
        """Tell whether a snapshot of that entry leads this replica forward."""
        return not self._group.status().is_leader and self._group.wants_snapshot(index, term)

    async def exchange(self, index: int, term: int) -> bool:
        """Put the received snapshot in the place of the state, and go on from there.

        False when it leads this replica forward no more; then nothing has changed.

        Raises:
            StorageFailed: The disk refused; the node must stop.
            DataDirectoryRefused: What was received does not fit; likewise.
        """
        if not self.wants(index, term):
            return False
        idle = asyncio.Event()
        self._group.pause(idle.set)
        await idle.wait()
        # From here to the end without another turn of the loop: nobody sees a closed store.
        puts, _ = self._group.rows_after_snapshot(index, term)
        self._store.replace(puts)
        self._engine.reload()
        self._group.resume()
        return True
