"""Fetcher: a node whose leader has trimmed the entries it needs fetches the state.

The receiver asks for one chunk at a time, so it sets the pace and Raft's messages pass in between.
Each request names the chunk's position: after a broken link, the fetch continues where it stopped.
A received snapshot is verified first. It replaces the replica's state only if it is newer by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import msgspec

from codeq_cluster.codec import levels
from codeq_cluster.errors import CodeqError, ReleaseTooOld
from codeq_cluster.snapshots import manifest as manifests
from codeq_cluster.snapshots.checkpoint import IncomingSnapshot, Snapshots
from codeq_cluster.snapshots.manifest import SnapshotManifest
from codeq_cluster.snapshots.ports import READ, TAKE, SnapshotReplica
from codeq_cluster.snapshots.room import NoRoom, Reservations, Room
from codeq_cluster.wire import Mesh

log = logging.getLogger(__name__)

_TAKE_TIMEOUT_S = 60.0  # A checkpoint first flushes the rows in memory.
_READ_TIMEOUT_S = 10.0
_STALLED_S_MAX = 60.0  # Without a chunk for this long, the fetch starts over.
_PAUSE_S = 0.25
_KEEP_S = 20.0  # How often the leader is told that a snapshot being verified is in use.


class SnapshotGone(CodeqError):
    """The snapshot being fetched no longer exists; another one may."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """A leader's snapshot that this node's replica can use."""

    shard: int
    leader: str
    manifest: SnapshotManifest

    @property
    def known(self) -> dict[str, object]:
        """Return what log lines say about it."""
        return {
            "shard": self.shard,
            "index": self.manifest.index,
            "bytes": self.manifest.size,
        }


@dataclass(slots=True)
class _Received:
    """The files of a snapshot on this node.

    Attributes:
        keep: They are installed, or may be the only whole state; otherwise they are deleted.
    """

    files: IncomingSnapshot
    keep: bool = False


class SnapshotFetcher:
    """Brings this node's replicas forward, with at most one fetch per shard.

    Args:
        stores: By shard.
        replicas: By shard.
        room: On the disk that the stores share.
        bytes_per_s: Pace of one fetch.
        hurries: Returns whether a shard has no majority until this node has fetched; the fetch is
            then unpaced.
        on_installed: Called with (shard, seconds) of every snapshot installed.
        on_failed: Called when the disk refused: the node must stop.
        rest: Waits some seconds, between chunks and for room.
    """

    def __init__(
        self,
        *,
        stores: Sequence[Snapshots],
        replicas: Sequence[SnapshotReplica],
        calls: Mesh,
        room: Room,
        bytes_per_s: int,
        hurries: Callable[[int], bool],
        on_installed: Callable[[int, float], None],
        on_failed: Callable[[int, BaseException], None],
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._stores = stores
        self._replicas = replicas
        self._calls = calls
        self._room = Reservations(room)
        self._bytes_per_s = bytes_per_s
        self._hurries = hurries
        self._on_installed = on_installed
        self._on_failed = on_failed
        self._rest = rest
        self._fetching: set[int] = set()

    async def fetch(self, shard: int) -> None:
        """Fetch and install a snapshot of the shard from its leader, unless one is coming."""
        if shard in self._fetching:
            return
        self._fetching.add(shard)
        try:
            await self._fetch(shard)
        except NoRoom:
            await self._rest(self._room.next_pause_s(shard))
        except (CodeqError, ValueError) as error:
            # The leader repeats its notice while it is true, and the fetch starts over.
            log.warning("snapshot not fetched", extra={"shard": shard, "error": str(error)})
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._room.release(shard)
            self._fetching.discard(shard)

    async def _fetch(self, shard: int) -> None:
        """Ask for a snapshot, receive it, verify it and install it.

        These hold throughout:
        - The leader is asked at most every ten minutes for a snapshot that does not fit here.
        - A snapshot is not received if the replica has no use for it, this release does not know
          its formats, or no room is reserved for it.
        - Nothing is installed that has not been verified whole.
        - The received files are deleted at every end but two: they were installed, or installing
          them failed, so that they may be the only whole state.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        offer = await self._ask(shard)
        if offer is None:
            return
        async with self._received_files(offer) as received:
            # Only now: the space used by a failed exchange is free once its files are deleted.
            await self._room.reserve(shard, offer.manifest.size)
            log.info("fetching a snapshot", extra=offer.known | {"peer": offer.leader})
            for file in range(len(offer.manifest.files)):
                await self._receive_file(offer, file, received.files)
            await self._verify(offer, received.files)
            await self._install(offer, received)
        if received.keep:
            seconds = loop.time() - started
            self._on_installed(shard, seconds)
            log.info("snapshot installed", extra=offer.known | {"seconds": round(seconds, 3)})

    async def _ask(self, shard: int) -> _Offer | None:
        """Return a useful snapshot of the shard's leader, or None if it has none.

        Raises:
            NoRoom: The last one did not fit and would not fit now.
            ReleaseTooOld: This release does not know its formats; the node must stop.
            ValueError: The leader's answer cannot be right.
            CodeqError: The call failed.
        """
        replica = self._replicas[shard]
        leader = replica.leader
        if leader is None:
            return None
        await self._room.check_known(shard)
        asked = [shard, replica.wanted_from]
        said = await self._calls.call(leader, TAKE, asked, timeout_s=_TAKE_TIMEOUT_S)
        manifest = manifests.decode(said)
        if not replica.wants(manifest.index, manifest.term):
            return None
        try:
            levels.check(manifest.level, by=f"the snapshot of shard {shard}")
        except ReleaseTooOld as error:
            self._on_failed(shard, error)
            raise
        return _Offer(shard, leader, manifest)

    @asynccontextmanager
    async def _received_files(self, offer: _Offer) -> AsyncIterator[_Received]:
        """Prepare an empty directory; delete it at the end unless its files are to be kept."""
        begin = self._stores[offer.shard].begin
        received = _Received(await asyncio.to_thread(begin, offer.manifest))
        try:
            yield received
        finally:
            if not received.keep:
                await asyncio.to_thread(received.files.drop)

    async def _receive_file(self, offer: _Offer, file: int, files: IncomingSnapshot) -> None:
        """Receive one file, chunk after chunk at the pace of a fetch."""
        shard, offset = offer.shard, 0
        size = offer.manifest.files[file].size
        while True:
            began = asyncio.get_running_loop().time()
            crc, chunk = await self._chunk(offer, file, offset)
            self._room.check_not_out(shard)
            await asyncio.to_thread(files.write, file, offset, crc, chunk)
            self._room.received(shard, len(chunk))
            offset += len(chunk)
            if offset >= size:
                return
            if self._hurries(shard):
                continue
            took_s = asyncio.get_running_loop().time() - began
            await self._rest(max(0.0, len(chunk) / self._bytes_per_s - took_s))

    async def _chunk(self, offer: _Offer, file: int, offset: int) -> tuple[int, bytes]:
        """Ask for one chunk until it comes, the leader changes, or it takes too long.

        Raises:
            SnapshotGone: It will never come.
            CodeqError: The last call failed.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _STALLED_S_MAX
        while True:
            try:
                said = await self._read(offer, file, offset)
                break
            except CodeqError:
                others = (offer.leader, None)
                if loop.time() > give_up_at or self._replicas[offer.shard].leader not in others:
                    raise
                await asyncio.sleep(_PAUSE_S)
        if said is None:
            raise SnapshotGone("the leader has deleted the snapshot")
        return msgspec.convert(said, tuple[int, bytes], builtin_types=(bytes,))

    async def _verify(self, offer: _Offer, files: IncomingSnapshot) -> None:
        """Verify the received snapshot; the leader keeps the entries after it meanwhile."""
        last = offer.manifest.files[-1]
        verified = asyncio.ensure_future(asyncio.to_thread(files.verify))
        try:
            while not (await asyncio.wait({verified}, timeout=_KEEP_S))[0]:
                self._room.check_not_out(offer.shard)
                with suppress(CodeqError):
                    await self._read(offer, len(offer.manifest.files) - 1, last.size)
            await verified
        finally:
            # A thread cannot be cancelled; without this, a stop of the node would wait for it
            # without a bound.
            files.stop()
            with suppress(CodeqError):
                await verified

    async def _install(self, offer: _Offer, received: _Received) -> None:
        """Replace the replica's state, unless it has caught up meanwhile; note what to keep."""
        manifest = offer.manifest
        exchange = self._replicas[offer.shard].exchange
        try:
            received.keep = await exchange(manifest.index, manifest.term, manifest.members)
        except Exception as error:
            # It may be the only whole state; the next start settles that.
            received.keep = True
            self._on_failed(offer.shard, error)
            raise

    async def _read(self, offer: _Offer, file: int, offset: int) -> object:
        place = [offer.shard, offer.manifest.id, file, offset]
        return await self._calls.call(offer.leader, READ, place, timeout_s=_READ_TIMEOUT_S)
