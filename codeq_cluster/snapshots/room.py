"""Room: the disk space that this node's fetches share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from codeq_cluster.errors import CodeqError, StorageFailed

log = logging.getLogger(__name__)

# Pauses while there is no room for a snapshot: between two checks of the disk, doubled up to a
# bound, and between two questions about its current size. The leader keeps files and log for a node
# that asks.
_PAUSE_S = 0.25
_PAUSE_S_MAX = 60.0
_ASK_S = 600.0


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


class Reservations:
    """Reserves the disk for snapshots, so that no two count on the same bytes."""

    def __init__(self, room: Room) -> None:
        self._room = room
        # By shard: bytes still to be received, and snapshots that there was no room for.
        self._coming: dict[int, int] = {}
        self._shortages: dict[int, _Shortage] = {}

    async def check_known(self, shard: int) -> None:
        """Raise NoRoom if the shard's last snapshot still does not fit and is not outdated."""
        short = self._shortages.get(shard)
        if short is not None and asyncio.get_running_loop().time() < short.ask_at:
            await self._reserve(shard, short.size)

    async def reserve(self, shard: int, size: int) -> None:
        """Reserve room for a snapshot of `size` bytes, beside the reserve and all other fetches.

        Raises:
            NoRoom: There is too little; it is logged.
            StorageFailed: The free space cannot be read.
        """
        try:
            await self._reserve(shard, size)
        except NoRoom as error:
            short = self._shortages.setdefault(shard, _Shortage())
            short.size = size
            short.ask_at = asyncio.get_running_loop().time() + _ASK_S
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

    def check_not_out(self, shard: int) -> None:
        """Raise StorageFailed if the shard's replica has stepped back for lack of room."""
        if self._room.is_out(shard):
            raise StorageFailed("the node has run out of room meanwhile")

    def received(self, shard: int, size: int) -> None:
        """Count bytes as written: the free space shows them from here on."""
        self._coming[shard] -= size

    def release(self, shard: int) -> None:
        """End a shard's reservation."""
        self._coming.pop(shard, None)

    def next_pause_s(self, shard: int) -> float:
        """Return how long to wait after NoRoom before the disk is looked at again."""
        short = self._shortages[shard]
        pause_s, short.pause_s = short.pause_s, min(2 * short.pause_s, _PAUSE_S_MAX)
        return pause_s

    async def _reserve(self, shard: int, size: int) -> None:
        self._coming.pop(shard, None)
        try:
            free = await asyncio.to_thread(self._room.free_bytes)
        except OSError as error:
            raise StorageFailed(f"free space unknown: {error}") from error
        needed = size + sum(self._coming.values()) + self._room.reserve_bytes
        if free < needed:
            raise NoRoom(needed=needed, free=free)
        self._coming[shard] = size
