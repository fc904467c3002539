"""Replica: one shard of a node as a whole, where its store is exchanged or opened anew."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from codeq_cluster.broker.engine import Engine
from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.storage.shard import Shard


class ShardReplica:
    """One shard's store, group and engine.

    Args:
        store: Holds log and state.
        group: Writes the log.
        engine: Holds what is made of the state.
    """

    def __init__(self, store: Shard, group: RaftGroup, engine: Engine) -> None:
        self._store = store
        self._group = group
        self._engine = engine
        self._changing = asyncio.Lock()

    @property
    def leader(self) -> str | None:
        """Return who leads the shard."""
        return self._engine.leader

    @property
    def lends(self) -> bool:
        """Tell whether peers may have this replica's state."""
        return self._group.lends

    @property
    def level(self) -> int:
        """Return the level of the formats in use."""
        return self._group.level

    @property
    def wanted_from(self) -> int:
        """Return the first entry whose state is of use to this replica."""
        return self._group.wanted_from

    def hold(self) -> None:
        """Keep what follows a snapshot that is being read."""
        self._group.hold()

    def reaches(self, index: int) -> bool:
        """Tell whether the log still has what follows the entry."""
        return self._group.status().log_first <= index

    def wants(self, index: int, term: int) -> bool:
        """Tell whether a snapshot of that entry leads this replica forward."""
        return (
            self._group.running
            and not self._group.status().is_leader
            and self._group.wants_snapshot(index, term)
        )

    async def exchange(self, index: int, term: int, members: bytes) -> bool:
        """Put the received snapshot in the place of the state, and go on from there.

        False when it leads this replica forward no more; then nothing has changed.

        Raises:
            StorageFailed: The disk refused; `reopen` has to follow.
            DataDirectoryRefused: What was received does not fit; likewise.
        """
        async with self._changing:
            if not self.wants(index, term):
                return False
            failure = await self._pause()
            if failure is not None:
                raise StorageFailed(f"before a snapshot took its place: {failure}") from failure
            # From here to the end without another turn of the loop: nobody sees a closed store.
            puts, _ = self._group.rows_after_snapshot(index, term, members)
            self._store.replace(puts, index=index)
            self._engine.reload()
            self._group.resume()
            return True

    async def withdraw(self) -> None:
        """Promise nothing any more; `reopen` ends that."""
        async with self._changing:
            # A flush that fails now is as good as one that never was: the disk is read anew.
            await self._pause()

    async def reopen(self) -> None:
        """Go on with what the disk holds, once the replica has withdrawn.

        Raises:
            DataDirectoryRefused: The store cannot be opened, or is damaged; may be tried again.
            StorageFailed: It cannot be read; likewise.
        """
        async with self._changing:
            await self._pause()
            self._store.withdraw()
            opening = asyncio.ensure_future(asyncio.to_thread(self._store.reopen))
            try:
                await asyncio.shield(opening)
            except asyncio.CancelledError:
                # A thread cannot be cancelled, and whoever stops the node closes the store next.
                with suppress(StorageFailed, DataDirectoryRefused):
                    await opening
                raise
            self._engine.reload()
            self._group.resume()

    async def _pause(self) -> BaseException | None:
        """Pause the group; return what the flush under way failed with."""
        idle: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._group.pause(idle.set_result)
        return await idle
