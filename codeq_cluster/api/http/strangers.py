"""Strangers: what callers may take of a node before their tokens are verified, a share an address.

So is what they leave unread: a connection has no other name.

Many users may share an address behind a gateway, so an address has a share and not a number. A
trusted proxy stands for all its callers: each of its connections counts for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from codeq_cluster.api.http.callers import Callers
from codeq_cluster.api.http.throttle import Throttle
from codeq_cluster.api.http.whole_requests import Whole
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.ratelimit.token_bucket import RateLimit
from codeq_cluster.settings import LimitSettings
from codeq_cluster.wire.addresses import site

BODY_BYTES_MAX: Final = 8 * 1024  # Of a log-in, the only body without a token: two tokens' size.
# New tokens under verification, which may wait for published keys; those seen before never wait.
# Meanwhile the node holds what it read of the request, at most 0.7 MB: 90 MB in all.
_VERIFYING_MAX: Final = 128
# A node checks and answers a wrong token for as much work as a valid one: answered at once, a few
# connections without a pause would take the processor. This many take a hundredth of it.
REFUSALS: Final = RateLimit(per_minute=20 * 60, burst=100)
_TURN_S: Final = 60 / REFUSALS.per_minute
DELAY_S_MAX: Final = 5.0  # Common clients wait longer for an answer.
# Through a trusted proxy, which has no share, delayed answers could take all connections.
_DELAYED_PART: Final = 4


class Strangers:
    """What callers without a verified token have taken of a node.

    Attributes:
        bytes: Of heads that are not complete, and of log-ins.
        unread: Bytes of answers that clients have not taken, valid tokens' among them.
        verifying: Requests whose tokens are being verified.
    """

    def __init__(self, limits: LimitSettings, callers: Callers) -> None:
        self._callers = callers
        self._places = FairShares(limits.connections_max, name="the connections")
        self.bytes = FairShares(limits.unauthenticated_bytes_max, name="the room for strangers")
        self.unread = FairShares(limits.unread_bytes_max, name="the room for unread answers")
        self.verifying = FairShares(_VERIFYING_MAX, name="the room for checks of tokens")
        self._refusals = Throttle(REFUSALS, _loop_ns)
        delayed_max = max(1, limits.connections_max // _DELAYED_PART)
        self._delayed = FairShares(delayed_max, name="the delayed answers")

    def enter(self, peer: Sequence[object]) -> Place | None:
        """Return a place for a connection from an address and port, or None if there is none."""
        address = str(peer[0]) if peer else ""
        holder = ":".join(map(str, peer)) if self._callers.trusts(address) else site(address)
        if not self._places.may_take(holder):
            return None
        return Place(self._places, holder)

    def caller(self, asked: web.BaseRequest | Whole) -> str:
        """Return the holder of what a request takes: its caller, beyond trusted proxies."""
        return site(self._callers.of(asked))

    def refused(self, caller: str) -> tuple[float, Place | None] | None:
        """Count a refused token; return None while its caller has not sent too many.

        Beyond that its connection must end: after how many seconds, and in which place until then.
        The delayed answers of an address have their turns one after the other, so that they are as
        many a second however many connections it has. Without a place a connection ends at once.
        """
        if not self._refusals.failed(caller):
            return None
        if not self._delayed.may_take(caller):
            return 0.0, None
        place = Place(self._delayed, caller)
        return min(self._delayed.taken(caller) * _TURN_S, DELAY_S_MAX), place


class Place:
    """A connection's place among those of its kind, until its end.

    Attributes:
        holder: The address that has it.
    """

    __slots__ = ("_places", "holder")

    def __init__(self, places: FairShares, holder: str) -> None:
        places.take(holder)
        self._places: FairShares | None = places
        self.holder = holder

    def leave(self) -> None:
        """Give the place back, once however often this is called."""
        if self._places is not None:
            self._places.give_back(self.holder)
            self._places = None


class Portion:
    """What one holder has of a room, in bytes; it grows, and is given back as a whole.

    Attributes:
        size: How much it is.
    """

    __slots__ = ("_holder", "_room", "size")

    def __init__(self, room: FairShares, holder: str) -> None:
        self._room = room
        self._holder = holder
        self.size = 0

    def grow_to(self, size: int) -> bool:
        """Make it at least so large; return False if its holder has no room for that."""
        more = size - self.size
        if more <= 0:
            return True
        if not self._room.may_take(self._holder, more):
            return False
        self._room.take(self._holder, more)
        self.size = size
        return True

    def give_back(self) -> None:
        """Give all of it back."""
        if self.size:
            self._room.give_back(self._holder, self.size)
            self.size = 0


def _loop_ns() -> int:
    """Return the time of the loop, whose timers end the delays."""
    return int(asyncio.get_running_loop().time() * 10**9)
