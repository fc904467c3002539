"""Server: serves the state of the shards that this node leads to peers that are behind.

A peer asks for one chunk at a time and names its position, so the server knows of a transfer only
the time of its last chunk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from codeq_cluster.errors import CodeqError, NotLeader
from codeq_cluster.snapshots import manifest as manifests
from codeq_cluster.snapshots.checkpoint import Snapshots
from codeq_cluster.snapshots.manifest import SnapshotManifest
from codeq_cluster.snapshots.ports import TAKE, SnapshotReplica

log = logging.getLogger(__name__)

_UNREAD_S_MAX = 120.0  # A snapshot unread for this long is deleted.


@dataclass(slots=True)
class _Served:
    """A snapshot that peers read from."""

    manifest: SnapshotManifest
    read_at: float


class SnapshotServer:
    """Serves this node's snapshots to peers, at most one per shard.

    Args:
        stores: By shard.
        replicas: By shard.
        on_taken: Called with (shard, seconds) of every snapshot made.
    """

    def __init__(
        self,
        *,
        stores: Sequence[Snapshots],
        replicas: Sequence[SnapshotReplica],
        on_taken: Callable[[int, float], None],
    ) -> None:
        self._stores = stores
        self._replicas = replicas
        self._on_taken = on_taken
        self._served: dict[int, _Served] = {}
        self._void: list[tuple[int, SnapshotManifest]] = []
        self._taking = [asyncio.Lock() for _ in stores]
        self._reloads = [0 for _ in stores]

    async def serve(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Answer a peer.

        Raises:
            NotLeader: This node does not lead the shard.
            ValueError: The body does not fit the method.
            StorageFailed: The disk refused.
        """
        del timeout_s
        if method == TAKE:
            shard, at_least = msgspec.convert(body, tuple[int, int])
            manifest = await self._take(peer, shard, at_least=at_least)
            level = self._replicas[shard].level
            return manifests.encode(msgspec.structs.replace(manifest, level=level))
        shard, name, file, offset = msgspec.convert(body, tuple[int, str, int, int])
        served = self._served.get(self._shard(shard))
        if served is None or served.manifest.id != name:
            return None  # Deleted: unread for too long, or replaced by another one.
        served.read_at = asyncio.get_running_loop().time()
        self._replicas[shard].hold()
        return await asyncio.to_thread(self._stores[shard].read, served.manifest, file, offset)

    def forget(self, shard: int) -> None:
        """Stop serving snapshots of a state that has been replaced."""
        self._reloads[shard] += 1
        served = self._served.pop(shard, None)
        if served is not None:
            self._void.append((shard, served.manifest))

    async def watch(self) -> None:
        """Delete snapshots that no peer reads any more; runs for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_UNREAD_S_MAX / 4)
            while self._void:
                shard, void = self._void.pop()
                await asyncio.to_thread(self._stores[shard].drop, void)
            for shard, served in list(self._served.items()):
                # Deleting one takes a while, in which the next may be read, forgotten or replaced.
                unread = loop.time() - served.read_at > _UNREAD_S_MAX
                if unread and self._served.get(shard) is served:
                    del self._served[shard]
                    await asyncio.to_thread(self._stores[shard].drop, served.manifest)

    async def _take(self, peer: str, shard: int, *, at_least: int) -> SnapshotManifest:
        replica = self._replicas[self._shard(shard)]
        # A leader serves even before an entry of its term is committed. If its majority needs the
        # followers that are behind, none commits before they have its snapshot.
        if not replica.serves_snapshots:
            raise NotLeader(replica.leader)
        loop = asyncio.get_running_loop()
        async with self._taking[shard]:
            served = self._served.get(shard)
            replica.hold()
            index = 0 if served is None else served.manifest.index
            if served is not None and index >= at_least and replica.reaches(index):
                served.read_at = loop.time()
                return served.manifest
            manifest = await self._make(shard)
        log.info(
            "snapshot taken",
            extra={
                "shard": shard,
                "index": manifest.index,
                "bytes": manifest.size,
                "peer": peer,
            },
        )
        return manifest

    async def _make(self, shard: int) -> SnapshotManifest:
        """Make a snapshot and serve it, even if the asking peer has stopped waiting.

        The thread that makes it cannot be cancelled. If peers stopped waiting before a slow disk is
        done, unlisted snapshots would fill it.
        """
        making = asyncio.ensure_future(self._made(shard))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            with suppress(CodeqError):
                await making
            raise

    async def _made(self, shard: int) -> SnapshotManifest:
        loop = asyncio.get_running_loop()
        started, reloads = loop.time(), self._reloads[shard]
        manifest = await asyncio.to_thread(self._stores[shard].take)
        if self._reloads[shard] != reloads:
            # The snapshot may be of the replaced state, which may have another history.
            await asyncio.to_thread(self._stores[shard].drop, manifest)
            raise NotLeader(self._replicas[shard].leader)
        self._on_taken(shard, loop.time() - started)
        before = self._served.get(shard)
        self._served[shard] = _Served(manifest, loop.time())
        if before is not None:
            await asyncio.to_thread(self._stores[shard].drop, before.manifest)
        return manifest

    def _shard(self, shard: int) -> int:
        if not 0 <= shard < len(self._stores):
            raise ValueError(f"no such shard: {shard}")
        return shard
