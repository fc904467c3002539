"""Transfer: a node whose leader has trimmed the entries it needs fetches the state.

The receiver asks for one chunk at a time, so it sets the pace and Raft's messages pass in between.
Each request names the chunk's position: after a broken link, the fetch continues where it stopped.
A received snapshot is verified first. It replaces the replica's state only if it is newer by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec

from codeq_cluster.codec import levels
from codeq_cluster.errors import CodeqError, NotLeader, ReleaseTooOld, StorageFailed
from codeq_cluster.snapshots import manifest as manifests
from codeq_cluster.snapshots.manifest import SnapshotManifest

log = logging.getLogger(__name__)

TAKE = "snapshot.take"
READ = "snapshot.read"

_TAKE_TIMEOUT_S = 60.0  # A checkpoint first flushes the rows in memory.
_READ_TIMEOUT_S = 10.0
_STALLED_S_MAX = 60.0  # Without a chunk for this long, the fetch starts over.
_PAUSE_S = 0.25
_KEEP_S = 20.0  # How often the leader is told that a snapshot being verified is in use.
_UNREAD_S_MAX = 120.0  # A snapshot unread for this long is deleted.
# The longest pauses while there is no room for a snapshot: between two checks of the disk, and
# between two questions about its current size. The leader keeps files and log for a node that asks.
_NO_ROOM_PAUSE_S_MAX = 60.0
_NO_ROOM_ASK_S = 600.0


class SnapshotGone(CodeqError):
    """The snapshot being fetched no longer exists; another one may."""


class NoRoom(CodeqError):
    """The disk has no room for a snapshot.

    Attributes:
        needed: Bytes that would have to be free.
        free: Bytes that are.
    """

    def __init__(self, *, needed: int, free: int) -> None:
        super().__init__(f"{needed} bytes would have to be free, {free} are")
        self.needed = needed
        self.free = free


class IncomingFiles(Protocol):
    """A snapshot being received by this node; every method blocks."""

    def write(self, file: int, offset: int, crc: int, chunk: bytes) -> None:
        """Add the next chunk of a file; raises ValueError or StorageFailed."""

    def verify(self) -> None:
        """Read every row, or end early after `stop`; raises StorageFailed."""

    def stop(self) -> None:
        """Make `verify` fail soon, in whichever thread it runs."""

    def drop(self) -> None:
        """Delete the part received so far."""


class Store(Protocol):
    """One shard's snapshots on this node; the methods block, so call them in a thread."""

    def take(self) -> SnapshotManifest:
        """Make a snapshot; raises StorageFailed."""

    def read(self, snapshot: SnapshotManifest, file: int, offset: int) -> tuple[int, bytes]:
        """Return checksum and bytes of a chunk; raises ValueError or StorageFailed."""

    def drop(self, snapshot: SnapshotManifest) -> None:
        """Delete a snapshot."""

    def begin(self, manifest: SnapshotManifest) -> IncomingFiles:
        """Prepare to receive a snapshot; delete what is in its place.

        Raises ValueError for a manifest that cannot be right, or StorageFailed.
        """


class SnapshotReplica(Protocol):
    """One shard on this node."""

    @property
    def leader(self) -> str | None:
        """Return who leads the shard."""

    @property
    def lends(self) -> bool:
        """Return whether peers may have this replica's state: it leads and is not suspect."""

    @property
    def wanted_from(self) -> int:
        """Return the first entry whose state is of use to this replica; 0 for any."""

    @property
    def level(self) -> int:
        """Return the level of the formats in use."""

    def hold(self) -> None:
        """Keep the log entries after a snapshot that is being read."""

    def reaches(self, index: int) -> bool:
        """Return whether the log still has the entries after this one."""

    def wants(self, index: int, term: int) -> bool:
        """Return whether a snapshot of that entry is ahead of this replica."""

    async def exchange(self, index: int, term: int, members: bytes) -> bool:
        """Replace the state by the received snapshot of that entry; raises StorageFailed.

        Returns False if the snapshot is no longer ahead of this replica.
        """


class SnapshotCalls(Protocol):
    """The link's RPC."""

    async def call(
        self, peer: str, method: str, body: object, *, timeout_s: float, topic: int | None = None
    ) -> object:
        """Call a peer; raises PeerUnreachable, LinkLost and what the peer raised."""


@dataclass(slots=True)
class _Lent:
    """A snapshot that peers read from."""

    manifest: SnapshotManifest
    read_at: float


class SnapshotServer:
    """Serves this node's snapshots to peers, at most one a shard.

    Args:
        stores: By shard.
        replicas: By shard.
        took: Called with (shard, seconds) of every snapshot made.
    """

    def __init__(
        self,
        *,
        stores: Sequence[Store],
        replicas: Sequence[SnapshotReplica],
        took: Callable[[int, float], None],
    ) -> None:
        self._stores = stores
        self._replicas = replicas
        self._took = took
        self._lent: dict[int, _Lent] = {}
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
            wanted = body if isinstance(body, list) else [body, 0]
            shard, at_least = msgspec.convert(wanted, tuple[int, int])
            manifest = await self._take(peer, shard, at_least=at_least)
            level = self._replicas[shard].level
            return manifests.encode(msgspec.structs.replace(manifest, level=level))
        shard, name, file, offset = msgspec.convert(body, tuple[int, str, int, int])
        lent = self._lent.get(self._shard(shard))
        if lent is None or lent.manifest.id != name:
            return None  # Deleted: unread for too long, or replaced by another one.
        lent.read_at = asyncio.get_running_loop().time()
        self._replicas[shard].hold()
        return await asyncio.to_thread(self._stores[shard].read, lent.manifest, file, offset)

    def forget(self, shard: int) -> None:
        """Stop serving snapshots of a state that has been replaced."""
        self._reloads[shard] += 1
        lent = self._lent.pop(shard, None)
        if lent is not None:
            self._void.append((shard, lent.manifest))

    async def watch(self) -> None:
        """Delete snapshots that no peer reads any more; runs for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_UNREAD_S_MAX / 4)
            while self._void:
                shard, void = self._void.pop()
                await asyncio.to_thread(self._stores[shard].drop, void)
            for shard, lent in list(self._lent.items()):
                # During a deletion, the next snapshot may be read, forgotten or replaced.
                unread = loop.time() - lent.read_at > _UNREAD_S_MAX
                if unread and self._lent.get(shard) is lent:
                    del self._lent[shard]
                    await asyncio.to_thread(self._stores[shard].drop, lent.manifest)

    async def _take(self, peer: str, shard: int, *, at_least: int) -> SnapshotManifest:
        replica = self._replicas[self._shard(shard)]
        # A leader just elected serves too, although it may not be confirmed yet. If its majority
        # needs the followers that are behind, no entry of its term commits before they have its
        # snapshot.
        if not replica.lends:
            raise NotLeader(replica.leader)
        loop = asyncio.get_running_loop()
        async with self._taking[shard]:
            lent = self._lent.get(shard)
            replica.hold()
            index = 0 if lent is None else lent.manifest.index
            if lent is not None and index >= at_least and replica.reaches(index):
                lent.read_at = loop.time()
                return lent.manifest
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

        A thread cannot be cancelled: if the disk is slower than the peers' patience, it would fill
        with snapshots that no table lists.
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
            # It may be of the previous state, whose entries may be of another history.
            await asyncio.to_thread(self._stores[shard].drop, manifest)
            raise NotLeader(self._replicas[shard].leader)
        self._took(shard, loop.time() - started)
        before = self._lent.get(shard)
        self._lent[shard] = _Lent(manifest, loop.time())
        if before is not None:
            await asyncio.to_thread(self._stores[shard].drop, before.manifest)
        return manifest

    def _shard(self, shard: int) -> int:
        if not 0 <= shard < len(self._stores):
            raise ValueError(f"no such shard: {shard}")
        return shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The disk space for snapshots.

    Attributes:
        free_bytes: Returns how many bytes may still be written; blocks, raises OSError.
        reserve_bytes: With less free, all replicas of the node step back.
        is_out: Returns whether a shard's replica has stepped back for lack of room.
    """

    free_bytes: Callable[[], int]
    reserve_bytes: int
    is_out: Callable[[int], bool]


@dataclass(slots=True)
class _Shortage:
    """A snapshot that there is no room for.

    Attributes:
        size: In bytes.
        ask_at: When the leader is asked again, in the loop's time.
        pause_s: Until the next look at the disk.
    """

    size: int = 0
    ask_at: float = 0.0
    pause_s: float = _PAUSE_S


class SnapshotFetcher:
    """Brings this node's replicas forward, one fetch a shard at a time.

    Args:
        stores: By shard.
        replicas: By shard.
        calls: The link.
        room: On the disk that the stores share.
        bytes_per_s: Pace of one fetch.
        hurries: Returns whether a shard has no majority until this node has fetched; the fetch is
            then unpaced.
        took: Called with (shard, seconds) of every snapshot installed.
        failed: Called when the disk refused: the node must stop.
        rest: Waits some seconds, between chunks and for room.
    """

    def __init__(
        self,
        *,
        stores: Sequence[Store],
        replicas: Sequence[SnapshotReplica],
        calls: SnapshotCalls,
        room: Room,
        bytes_per_s: int,
        hurries: Callable[[int], bool],
        took: Callable[[int, float], None],
        failed: Callable[[int, BaseException], None],
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._stores = stores
        self._replicas = replicas
        self._calls = calls
        self._room = room
        self._bytes_per_s = bytes_per_s
        self._hurries = hurries
        self._took = took
        self._failed = failed
        self._rest = rest
        self._fetching: set[int] = set()
        # By shard: bytes still to be received, and snapshots that there was no room for.
        self._coming: dict[int, int] = {}
        self._shortages: dict[int, _Shortage] = {}

    async def fetch(self, shard: int) -> None:
        """Fetch and install a snapshot of the shard from its leader, unless one is coming."""
        if shard in self._fetching:
            return
        self._fetching.add(shard)
        try:
            await self._fetch(shard)
        except NoRoom:
            short = self._shortages[shard]
            pause_s, short.pause_s = short.pause_s, min(2 * short.pause_s, _NO_ROOM_PAUSE_S_MAX)
            await self._rest(pause_s)
        except (CodeqError, ValueError) as error:
            # The leader repeats its notice while it is true, and the fetch starts over.
            log.warning("snapshot not fetched", extra={"shard": shard, "error": str(error)})
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._coming.pop(shard, None)
            self._fetching.discard(shard)

    async def _fetch(self, shard: int) -> None:
        replica, store = self._replicas[shard], self._stores[shard]
        leader = replica.leader
        if leader is None:
            return
        loop = asyncio.get_running_loop()
        started = loop.time()
        short = self._shortages.get(shard)
        if short is not None and started < short.ask_at:
            await self._reserve(shard, short.size)
        at_least = replica.wanted_from
        asked = [shard, at_least] if at_least else shard
        said = await self._calls.call(leader, TAKE, asked, timeout_s=_TAKE_TIMEOUT_S)
        manifest = manifests.decode(said)
        if not replica.wants(manifest.index, manifest.term):
            return
        try:
            levels.check(manifest.level, by=f"the snapshot of shard {shard}")
        except ReleaseTooOld as error:
            self._failed(shard, error)
            raise
        incoming = await asyncio.to_thread(store.begin, manifest)
        installed = given_up = False
        try:
            # Only now: the space used by a failed exchange is free once its files are deleted.
            await self._reserve_or_say(shard, manifest.size)
            log.info(
                "fetching a snapshot",
                extra={
                    "shard": shard,
                    "index": manifest.index,
                    "bytes": manifest.size,
                    "peer": leader,
                },
            )
            for file in range(len(manifest.files)):
                await self._fetch_file(leader, shard, manifest, file, incoming)
            await self._verify(leader, shard, manifest, incoming)
            try:
                installed = await replica.exchange(manifest.index, manifest.term, manifest.members)
            except Exception as error:
                given_up = True
                self._failed(shard, error)
                raise
        finally:
            # After a failed exchange it may be the only whole state; the next start settles that.
            if not (installed or given_up):
                await asyncio.to_thread(incoming.drop)
        if not installed:
            return
        self._took(shard, loop.time() - started)
        log.info(
            "snapshot installed",
            extra={
                "shard": shard,
                "index": manifest.index,
                "bytes": manifest.size,
                "seconds": round(loop.time() - started, 3),
            },
        )

    async def _reserve_or_say(self, shard: int, size: int) -> None:
        """Reserve room for a snapshot of the size the leader gave; raises NoRoom."""
        try:
            await self._reserve(shard, size)
        except NoRoom as error:
            short = self._shortages.setdefault(shard, _Shortage())
            short.size = size
            short.ask_at = asyncio.get_running_loop().time() + _NO_ROOM_ASK_S
            log.warning(
                "no room for a snapshot",
                extra={
                    "shard": shard,
                    "bytes": size,
                    "needed_bytes": error.needed,
                    "free_bytes": error.free,
                },
            )
            raise
        self._shortages.pop(shard, None)

    async def _reserve(self, shard: int, size: int) -> None:
        """Reserve room for a snapshot, beside the reserve and all other fetches.

        Raises:
            NoRoom: There is too little.
            StorageFailed: The free space cannot be read.
        """
        self._coming.pop(shard, None)
        try:
            free = await asyncio.to_thread(self._room.free_bytes)
        except OSError as error:
            raise StorageFailed(f"free space unknown: {error}") from error
        needed = size + sum(self._coming.values()) + self._room.reserve_bytes
        if free < needed:
            raise NoRoom(needed=needed, free=free)
        self._coming[shard] = size

    async def _fetch_file(
        self,
        leader: str,
        shard: int,
        manifest: SnapshotManifest,
        file: int,
        incoming: IncomingFiles,
    ) -> None:
        offset = 0
        size = manifest.files[file].size
        while True:
            began = asyncio.get_running_loop().time()
            crc, chunk = await self._chunk(leader, shard, [shard, manifest.id, file, offset])
            if self._room.is_out(shard):
                raise StorageFailed("the node has run out of room meanwhile")
            await asyncio.to_thread(incoming.write, file, offset, crc, chunk)
            self._coming[shard] -= len(chunk)
            offset += len(chunk)
            if offset >= size:
                return
            if self._hurries(shard):
                continue
            took_s = asyncio.get_running_loop().time() - began
            await self._rest(max(0.0, len(chunk) / self._bytes_per_s - took_s))

    async def _verify(
        self, leader: str, shard: int, manifest: SnapshotManifest, incoming: IncomingFiles
    ) -> None:
        """Verify the received snapshot; the leader keeps the entries after it meanwhile."""
        end = [shard, manifest.id, len(manifest.files) - 1, manifest.files[-1].size]
        verified = asyncio.ensure_future(asyncio.to_thread(incoming.verify))
        try:
            while not (await asyncio.wait({verified}, timeout=_KEEP_S))[0]:
                if self._room.is_out(shard):
                    raise StorageFailed("the node has run out of room meanwhile")
                with suppress(CodeqError):
                    await self._calls.call(leader, READ, end, timeout_s=_READ_TIMEOUT_S)
            await verified
        finally:
            # A thread cannot be cancelled; without this, a stop of the node would wait for it
            # without a bound.
            incoming.stop()
            with suppress(CodeqError):
                await verified

    async def _chunk(self, leader: str, shard: int, place: list[object]) -> tuple[int, bytes]:
        """Ask for one chunk until it comes, the leader changes, or it takes too long.

        Raises:
            SnapshotGone: It will never come.
            CodeqError: What the last call raised.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _STALLED_S_MAX
        while True:
            try:
                said = await self._calls.call(leader, READ, place, timeout_s=_READ_TIMEOUT_S)
                break
            except CodeqError:
                if loop.time() > give_up_at or self._replicas[shard].leader not in (leader, None):
                    raise
                await asyncio.sleep(_PAUSE_S)
        if said is None:
            raise SnapshotGone("the leader has deleted the snapshot")
        return msgspec.convert(said, tuple[int, bytes], builtin_types=(bytes,))
