"""Bodies: reads requests' bodies within their size, their time and their caller's share of memory.

A body counts by the bytes that came, never by the length that was announced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.http import HttpProcessingError

from codeq_cluster.api.http.errors import invalid_body, not_utf8
from codeq_cluster.api.http.refusals import STALLED, body_too_large
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.settings import ArtifactProvider, LimitSettings, NodeSettings
from codeq_cluster.settings.kinds import MIB

# Bodies of the largest size at once: one greedy tenant gets half of the room, which is more than
# one such body, and leaves another room for one. Each is in memory several times while it is
# decoded.
_AT_ONCE = 3
_ROOM_BYTES_MIN = 64 * MIB
_IMPORT_BYTES_MIN = 2 * MIB


class Bodies:
    """A node's room for the bodies that arrive in pieces or are worked on.

    Attributes:
        limits: The node's.
        room: Shares the bytes between the callers' tenants.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self.limits = settings.limits
        largest = max(result_bytes_max(settings), import_bytes_max(settings.raft.entry_bytes_max))
        self.room = FairShares(max(_AT_ONCE * largest, _ROOM_BYTES_MIN), name="the room for bodies")

    @contextmanager
    def of(self, holder: str, *, room: FairShares | None = None) -> Iterator[Body]:
        """Account for one body until the end of the block.

        Args:
            holder: The tenant.
            room: Another room than that of the tenants, with its own holders.
        """
        body = Body(self.limits, room or self.room, holder)
        try:
            yield body
        finally:
            body.forget()


class Body:
    """One body, and the room that it has taken, in bytes."""

    def __init__(self, limits: LimitSettings, room: FairShares, holder: str) -> None:
        self._limits = limits
        self._room = room
        self._holder = holder
        self._taken = 0

    def forget(self) -> None:
        """Give the room back."""
        self._room.give_back(self._holder, self._taken)
        self._taken = 0

    async def text(self, request: web.Request, unreadable: str, *, bytes_max: int) -> str:
        """Return the body as text; raises like `read`, and ApiError 400 if it is not UTF-8."""
        body = await self.read(request, unreadable, bytes_max=bytes_max)
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise not_utf8(unreadable) from error

    async def read(
        self, request: web.Request, unreadable: str, *, bytes_max: int
    ) -> bytes | bytearray:
        """Return the body.

        Args:
            request: Its body has not been read.
            unreadable: The route's name for a body that it cannot read.
            bytes_max: Bound on the body.

        Raises:
            ApiError: 400, 408 or 413.
            Overloaded: The holder's share of the room is used up.
        """
        length = request.content_length or 0
        if length > bytes_max:
            raise body_too_large(bytes_max)
        if request.content.is_eof() and request.content.exception() is None:
            # A small body arrives with the head: it needs no deadline, and no room while it comes.
            whole = request.content.read_nowait()
            if len(whole) > bytes_max:
                raise body_too_large(bytes_max)
            return whole
        self._room.check(self._holder, length)  # Before the client has sent it in vain.
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_timeout_ms / 1000):
                async for piece in pieces(request, self._limits, unreadable):
                    if len(body) + len(piece) > bytes_max:
                        raise body_too_large(bytes_max)
                    self._room.take(self._holder, len(piece))
                    self._taken += len(piece)
                    body += piece
        except TimeoutError as stalled:
            raise STALLED from stalled
        return body


async def pieces(
    request: web.Request, limits: LimitSettings, unreadable: str
) -> AsyncIterator[bytes]:
    """Yield a body as it arrives, no slower than the least rate.

    The node waits as long as for a head, and each byte adds its time at the least rate. Only
    waiting for the client counts, not the time in which nobody reads.

    Raises:
        ApiError: 408: the client stalls or is too slow; 400: the body is malformed.
    """
    content, now_s = request.content, asyncio.get_running_loop().time
    longest_s = limits.body_timeout_ms / 1000
    left_s = min(limits.header_timeout_ms / 1000, longest_s)
    while True:
        began_s = now_s()
        try:
            async with asyncio.timeout(left_s):
                piece = await content.readany()
        except TimeoutError as stalled:
            raise STALLED from stalled
        except (web.RequestPayloadError, HttpProcessingError) as broken:
            raise invalid_body(unreadable) from broken
        if not piece:
            return
        earned_s = len(piece) / limits.body_bytes_per_s_min
        left_s = min(left_s - (now_s() - began_s) + earned_s, longest_s)
        yield piece


def result_bytes_max(settings: NodeSettings) -> int:
    """Return the largest size of a result's body, with artifacts where they are configured."""
    limits = settings.limits
    if settings.artifacts.provider is ArtifactProvider.NONE:
        return limits.max_body_bytes
    # Base64 makes four characters of three bytes, and may be broken into lines.
    return limits.max_body_bytes + -(-limits.max_artifact_bytes // 3) * 4 * 19 // 18


def check_values(text: str, bytes_max: int) -> None:
    """Refuse a large body if more of it than `bytes_max` is not the content of artifacts.

    Base64 has neither commas nor quotes, and a value takes two bytes, an empty text three.

    Raises:
        ApiError: 413.
    """
    if len(text) <= bytes_max:
        return
    if text.count(",") > bytes_max // 2 or text.count('"') > bytes_max * 2 // 3:
        raise body_too_large(bytes_max, beside="the content of artifacts")


def import_bytes_max(entry_bytes_max: int) -> int:
    """Return the largest size of an import's body: many small tasks, or one of three entries."""
    return max(_IMPORT_BYTES_MIN, 4 * entry_bytes_max)
