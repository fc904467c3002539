"""Dialler: keeps a connection to each peer, and reports when it comes and goes."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from codeq_cluster.wire.addresses import Address
from codeq_cluster.wire.channel import Channel
from codeq_cluster.wire.connection import LinkConnection, Outbound
from codeq_cluster.wire.handler import LinkHandler
from codeq_cluster.wire.handshake import Dialling
from codeq_cluster.wire.link import Link
from codeq_cluster.wire.refusals import HandshakeRefusal

log = logging.getLogger(__name__)

# A dying process closes its connections one after another, so the first new attempt may still reach
# its listening socket. These further attempts tell "refused" from "lost". They span a fifth of a
# second, for a process that dies slowly on a busy machine.
_HASTY_DIALS: Final = 10
_HASTY_PAUSE_S: Final = 0.02
# Attempts at a peer's first address before the others have their turn.
_FIRST_DIALS: Final = 3

# This many connections in a row may live for less than the longest pause; then dialling slows down.
_FLAPS_MAX: Final = 3

_JITTER: Final = random.SystemRandom()


class _Missed(Enum):
    """Why a dial failed."""

    REFUSED = "refused"
    BROKEN = "broken"
    UNREACHABLE = "unreachable"


class Dialler:
    """The connections that this node dials to one peer, one after another.

    Args:
        is_past: Returns whether an incarnation runs on data that the cluster was recovered without.
        handler: Hears when the peer comes and goes.
        on_lost: Called with the peer when an authenticated connection has ended.

    Attributes:
        denied: Why the peer refused this node at the last dial; empty if it did not.
        remedy: What an operator can do against that; empty if unknown.
    """

    def __init__(
        self,
        peer: str,
        link: Link,
        *,
        is_past: Callable[[int], bool],
        handler: LinkHandler,
        on_lost: Callable[[str], None],
    ) -> None:
        self._peer = peer
        self._link = link
        self._is_past = is_past
        self._handler = handler
        self._on_lost = on_lost
        self._wake = asyncio.Event()
        self._reached: Address | None = None
        self._up = False  # Reported as up, and not yet as down.
        self._misses = 0
        self._flaps = 0
        self._last_session = 0
        self.denied = ""
        self.remedy = ""

    def wake(self) -> None:
        """End the pause before the next attempt."""
        self._wake.set()

    def forget(self) -> None:
        """Drop the connection and report the peer as down; `run` must have been cancelled."""
        connection = self._link.outbound.pop(self._peer, None)
        if connection is not None:
            connection.abort()
        self._say_down(refused=False)

    async def run(self) -> None:
        """Dial without end."""
        while True:
            address = self._next_address()
            dialled = await self._dial(address)
            if isinstance(dialled, Outbound):
                self._reached, self._misses = address, 0
                self._link.book.seen(self._peer, dialled.address)
                await self._carry(dialled)
            else:
                self._misses += 1
                await self._missed(dialled)

    def _next_address(self) -> Address:
        ways = self._link.book.ways(self._peer, self._reached)
        # Dial only the address where it was reached, until the peer is reported as down. A refusal
        # at another address would say nothing about its process.
        turn = 0 if self._up else max(0, self._misses - _FIRST_DIALS)
        return ways[turn % len(ways)]

    async def _carry(self, connection: Outbound) -> None:
        """Let a connection carry what this node sends until it is lost."""
        loop = asyncio.get_running_loop()
        self._say_down(refused=False)
        born = loop.time()
        self._link.outbound[self._peer] = connection
        log.info("link up", extra={"peer": self._peer})
        self._up = True
        self._handler.on_up(self._peer)
        await connection.lost
        del self._link.outbound[self._peer]
        log.info("link down", extra={"peer": self._peer})
        lived_ms = (loop.time() - born) * 1000
        self._flaps = self._flaps + 1 if lived_ms < self._link.settings.redial_ms_max else 0
        if self._flaps > _FLAPS_MAX:
            await asyncio.sleep(self._pause_s(self._flaps - _FLAPS_MAX))

    async def _missed(self, missed: _Missed) -> None:
        """Report the peer as down, unless it may be dying, and wait before the next attempt."""
        if self._up and missed is _Missed.BROKEN and self._misses <= _HASTY_DIALS:
            await asyncio.sleep(_HASTY_PAUSE_S)
            return
        self._say_down(refused=missed is _Missed.REFUSED)
        self._wake.clear()
        try:
            async with asyncio.timeout(self._pause_s(self._misses)):
                await self._wake.wait()
        except TimeoutError:
            return

    def _say_down(self, *, refused: bool) -> None:
        if self._up:
            self._up = False
            self._handler.on_down(self._peer, refused=refused)

    async def _dial(self, address: Address) -> Outbound | _Missed:
        """Make one attempt, bounded by the dial timeout and the handshake timeout."""
        try:
            async with asyncio.timeout(self._link.settings.dial_timeout_ms / 1000):
                dialled = await address.connect(self._connection)
        except ConnectionRefusedError:
            return _Missed.REFUSED
        except OSError:
            return _Missed.UNREACHABLE
        try:
            is_peer = await dialled.authenticated
        except asyncio.CancelledError:
            dialled.abort()
            raise
        self.denied = dialled.denied
        self.remedy = dialled.remedy
        known = dialled.session
        if is_peer and known is not None and self._is_past(known.incarnation):
            dialled.abort()
            return _Missed.BROKEN
        return dialled if is_peer else _Missed.BROKEN

    def _connection(self) -> Outbound:
        """Return the protocol of a new connection; its session is newer than all before."""
        self._last_session = max(self._last_session + 1, time.monotonic_ns())
        certificates = self._link.certificates
        return Outbound(
            Dialling(self._link.identity, self._peer, session=self._last_session),
            peer=self._peer,
            settings=self._link.settings,
            counters=self._link.counters,
            channel=None
            if certificates is None
            else Channel(certificates.current.dialling, accepting=False),
            on_made=self._link.open.add,
            on_ended=self._ended,
        )

    def _ended(self, connection: LinkConnection) -> None:
        self._link.open.discard(connection)
        if connection.session is not None:
            self._on_lost(self._peer)

    def _pause_s(self, misses: int) -> float:
        """Return the next pause: twice as long after each miss, and half of it random."""
        settings = self._link.settings
        # 16 doublings exceed every bound; the cap keeps the number small.
        pause_ms = min(settings.redial_ms_max, settings.redial_ms << min(misses - 1, 16))
        return pause_ms * _JITTER.uniform(0.5, 1) / 1000


class Diallers:
    """The diallers of a node's peers, one task each."""

    def __init__(self, make: Callable[[str], Dialler]) -> None:
        self._make = make
        self._tasks: asyncio.TaskGroup | None = None
        self._diallers: dict[str, tuple[Dialler, asyncio.Task[None]]] = {}

    def begin(self, tasks: asyncio.TaskGroup, peers: Iterable[str]) -> None:
        """Dial these peers; from here on, others can be added."""
        self._tasks = tasks
        for peer in peers:
            self.add(peer)

    def end(self) -> None:
        """Start no more; the owner of the tasks cancels them."""
        self._tasks = None

    def add(self, peer: str) -> None:
        """Dial one more peer, unless dialling has not begun or has ended."""
        if self._tasks is not None:
            dialler = self._make(peer)
            self._diallers[peer] = dialler, self._tasks.create_task(dialler.run())

    def drop(self, peer: str) -> None:
        """Stop dialling a peer, and report it as down if it is up."""
        dialler, task = self._diallers.pop(peer, (None, None))
        if dialler is not None and task is not None:
            task.cancel()
            dialler.forget()

    def wake(self, peer: str) -> None:
        """Dial a peer without waiting: it is up, since it has dialled this node."""
        if peer in self._diallers:
            self._diallers[peer][0].wake()

    def denied_as(self, reason: HandshakeRefusal) -> list[str]:
        """Return the peers that refused this node for this reason when it last dialled."""
        denied = {peer: dialler.denied for peer, (dialler, _) in self._diallers.items()}
        return sorted(peer for peer, said in denied.items() if said == reason)

    def remedy(self, peer: str) -> str:
        """Return what an operator can do against the refusal of the last dial; empty if unknown."""
        return self._diallers[peer][0].remedy if peer in self._diallers else ""
