"""Open connections: all of a node, in both directions, until their sockets are gone."""

from __future__ import annotations

import asyncio
from typing import Final

from codeq_cluster.wire.connection import LinkConnection

# Frames queued at stop get this long to leave; on a healthy link they need microseconds.
_FAREWELL_S: Final = 0.25


class OpenConnections:
    """Keeps the connections alive, and closes them together.

    Attributes:
        closing: New connections are aborted at once.
    """

    def __init__(self) -> None:
        self.closing = False
        self._open: set[LinkConnection] = set()
        self._idle = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: LinkConnection) -> None:
        """Note a connection whose socket is open."""
        self._open.add(connection)
        self._idle.clear()
        if self.closing:
            connection.abort()

    def discard(self, connection: LinkConnection) -> None:
        """Note that its socket is gone."""
        self._open.discard(connection)
        if not self._open:
            self._idle.set()

    async def keep_alive(self, ping_ms: int) -> None:
        """Ping on every connection, and give up the silent ones; runs for ever."""
        while True:
            await asyncio.sleep(ping_ms / 1000)
            for connection in list(self._open):
                connection.tick(ping_ms)

    async def close(self) -> None:
        """Close every connection; queued frames still leave if the peer takes them at once."""
        self.closing = True
        for connection in list(self._open):
            connection.finish()
        await self._until_idle()
        for connection in list(self._open):
            connection.abort()
        await self._until_idle()

    async def _until_idle(self) -> None:
        if self._open:
            try:
                async with asyncio.timeout(_FAREWELL_S):
                    await self._idle.wait()
            except TimeoutError:
                return
