"""Doorway: takes connections in and sees them through the TLS handshake.

A connection counts from its first moment: one that stalls in the handshake takes a place of the
server's, for a bounded time, and no more than that. A loop's own TLS server would hold any number
of them, out of the server's sight.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from codeq_cluster.broker.background import Background
from codeq_cluster.wire import Certificates

log = logging.getLogger(__name__)

# Out of file descriptors or memory: until some are free again, asking is of no use.
_ACCEPT_AGAIN_S: Final = 1.0


class Doorway:
    """Listens on one address.

    Attributes:
        shaking: Connections in the handshake.
        failed: Connections that sent no TLS, or gave up within the handshake.
    """

    def __init__(
        self,
        certificates: Certificates[ssl.SSLContext],
        *,
        is_full: Callable[[], bool],
        admitted: Callable[[], asyncio.Protocol],
        handshake_s: float,
        shutdown_s: float,
    ) -> None:
        """Prepare; nothing happens before `open`.

        Args:
            certificates: A handshake uses what is current when it begins.
            is_full: Whether the next connection is one too many; it is closed, for before the
                handshake no answer could be read.
            admitted: Makes what serves a connection.
            handshake_s: A handshake ends within these seconds.
            shutdown_s: What is queued when a connection ends leaves within these seconds.
        """
        self.shaking = 0
        self.failed = 0
        self._certificates = certificates
        self._is_full = is_full
        self._admitted = admitted
        self._handshake_s = handshake_s
        self._shutdown_s = shutdown_s
        self._sockets: list[socket.socket] = []
        self._tasks = Background()

    async def open(self, host: str, port: int, *, backlog: int) -> int:
        """Listen on every address of `host` and return the port, the system's choice for 0.

        Raises:
            OSError: An address cannot be had.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, *_, address in dict.fromkeys(found):
                listening = socket.create_server(
                    (str(address[0]), port), family=family, backlog=backlog
                )
                self._sockets.append(listening)
                port = listening.getsockname()[1]
        except OSError:
            self._close_sockets()
            raise
        for listening in self._sockets:
            listening.setblocking(False)
            self._tasks.spawn(self._accept(listening))
        return port

    async def close(self) -> None:
        """Accept no more, and end every handshake."""
        await self._tasks.stop()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except ConnectionError:  # it was gone before it was taken
                continue
            except OSError as error:
                log.error("no connection can be accepted", extra={"reason": str(error)})  # noqa: TRY400 - it is the machine's state
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if self._is_full():
                accepted.close()
                continue
            self.shaking += 1
            self._tasks.spawn(self._shake_hands(accepted)).add_done_callback(
                partial(self._shaken, accepted)
            )

    async def _shake_hands(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._admitted,
                accepted,
                ssl=self._certificates.current,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=self._shutdown_s,
            )
        except OSError:  # no TLS, no common version, too late, gone: each is an OSError
            self.failed += 1

    def _shaken(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self.shaking -= 1
        if task.cancelled():  # perhaps before it began, so nobody else would close it
            accepted.close()
