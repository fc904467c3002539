"""Shard replica: one shard of a node as a whole, for replacing or reopening its store."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.forwarded import forwarded
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.storage.shard import Shard


class ShardReplica:
    """One shard's store, group and engine; implements `snapshots.ports.SnapshotReplica`."""

    leader: str | None = forwarded("_engine.leader")
    serves_snapshots: bool = forwarded("_group.serves_snapshots")
    level: int = forwarded("_group.level")
    wanted_from: int = forwarded("_group.wanted_from")

    def __init__(self, store: Shard, group: RaftGroup, engine: Engine) -> None:
        self._store = store
        self._group = group
        self._engine = engine
        self._changing = asyncio.Lock()

    def hold(self) -> None:
        """Keep the log entries after a snapshot that is being read."""
        self._group.hold()

    def reaches(self, index: int) -> bool:
        """Return whether the log still has the entries after this one."""
        return self._group.status().log_first <= index

    def wants(self, index: int, term: int) -> bool:
        """Return whether a snapshot of that entry is ahead of this replica."""
        return (
            self._group.running
            and not self._group.status().is_leader
            and self._group.wants_snapshot(index, term)
        )

    async def exchange(self, index: int, term: int, members: bytes) -> bool:
        """Replace the state by the received snapshot, and continue from there.

        Returns False if the snapshot is no longer ahead of this replica; then nothing has changed.

        Raises:
            StorageFailed: The disk refused; `reopen` must follow.
            DataDirectoryRefused: The received state does not fit; `reopen` must follow.
        """
        async with self._changing:
            if not self.wants(index, term):
                return False
            failure = await self._pause()
            if failure is not None:
                raise StorageFailed(f"before a snapshot took its place: {failure}") from failure
            # No await from here to the end: no other code may see a closed store.
            puts, _ = self._group.rows_after_snapshot(index, term, members)
            self._store.replace(puts, index=index)
            self._engine.reload()
            self._group.resume()
            return True

    async def withdraw(self) -> None:
        """Stop making promises; `reopen` ends that."""
        async with self._changing:
            # A flush that fails now changes nothing: `reopen` reads the disk.
            await self._pause()

    async def reopen(self) -> None:
        """Continue with the state on disk, after the replica has withdrawn.

        Raises:
            DataDirectoryRefused: The store cannot be opened, or is damaged; may be tried again.
            StorageFailed: It cannot be read; may be tried again.
        """
        async with self._changing:
            await self._pause()
            self._store.withdraw()
            opening = asyncio.ensure_future(asyncio.to_thread(self._store.reopen))
            try:
                await asyncio.shield(opening)
            except asyncio.CancelledError:
                # A thread cannot be cancelled, and a stop of the node closes the store next.
                with suppress(StorageFailed, DataDirectoryRefused):
                    await opening
                raise
            self._engine.reload()
            self._group.resume()

    async def _pause(self) -> BaseException | None:
        """Pause the group; return the error of the flush in progress, or None."""
        idle: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._group.pause(idle.set_result)
        return await idle
