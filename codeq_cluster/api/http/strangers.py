"""Strangers: what callers may take of a node before their tokens are verified, a share an address.

Many users may share an address behind a gateway, so an address has a share and not a number. A
trusted proxy stands for all its callers: each of its connections counts for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from codeq_cluster.api.http.callers import Callers
from codeq_cluster.api.http.whole_requests import Whole
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.settings import LimitSettings
from codeq_cluster.wire.addresses import site

BODY_BYTES_MAX: Final = 8 * 1024  # Of a log-in, the only body without a token: two tokens' size.
# New tokens under verification, which may wait for published keys; those seen before never wait.
# Meanwhile the node holds what it read of the request, at most 0.7 MB: 90 MB in all.
_VERIFYING_MAX: Final = 128


class Strangers:
    """What callers without a verified token have taken of a node.

    Attributes:
        bytes: Of heads that are not complete, and of log-ins.
        verifying: Requests whose tokens are being verified.
    """

    def __init__(self, limits: LimitSettings, callers: Callers) -> None:
        self._callers = callers
        self._places = FairShares(limits.connections_max, name="the connections")
        self.bytes = FairShares(limits.unauthenticated_bytes_max, name="the room for strangers")
        self.verifying = FairShares(_VERIFYING_MAX, name="the tokens under verification")

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


class Place:
    """A connection's place, from its acceptance to its end.

    Attributes:
        holder: What the connection takes before its requests are complete is taken by this holder.
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
