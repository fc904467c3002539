"""Listener: accepts connections, and takes them through the TLS handshake if there is one.

A connection that the kernel has accepted is served even when the listener closes at that moment:
its client may have sent a request already. A connection counts from the start of its handshake, so
one that stalls there occupies one place for a bounded time. A loop's own TLS server would hold any
number of them, unseen by the server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from codeq_cluster.api.http.strangers import Place
from codeq_cluster.broker.background import Background
from codeq_cluster.wire import Certificates

log = logging.getLogger(__name__)

# No file descriptors or memory are left: accepting again at once would fail the same way.
_ACCEPT_AGAIN_S: Final = 1.0
_ACCEPTS_AT_ONCE: Final = 1024  # As many as the kernel's backlog; then other work gets its turn.


class Listener:
    """Listens on one address.

    Attributes:
        failed: Connections that sent no TLS, or gave up during the handshake.
    """

    def __init__(
        self,
        certificates: Certificates[ssl.SSLContext] | None,
        *,
        enter: Callable[[Sequence[object]], Place | None],
        admitted: Callable[[Place | None], asyncio.Protocol],
        handshake_s: float,
        shutdown_s: float,
    ) -> None:
        """Prepare a listener; nothing happens before `open`.

        Args:
            certificates: Each handshake uses the current one; None for plain HTTP.
            enter: Returns the place of a connection by its address, or None. With TLS a connection
                without a place is closed without an answer, which nobody could read before the
                handshake.
            admitted: Makes the protocol of a connection, which gives the place back at its end.
            handshake_s: Bound of a handshake, in seconds.
            shutdown_s: Bound of sending queued data when a connection ends, in seconds.
        """
        self.failed = 0
        self._certificates = certificates
        self._enter = enter
        self._admitted = admitted
        self._handshake_s = handshake_s
        self._shutdown_s = shutdown_s
        self._sockets: list[socket.socket] = []
        self._again: dict[socket.socket, asyncio.TimerHandle] = {}
        self._admitting: set[asyncio.Task[None]] = set()
        self._tasks = Background()

    async def open(self, host: str, port: int, *, backlog: int) -> int:
        """Listen on every address of `host` and return the port; the system chooses it for 0.

        Raises:
            OSError: An address is not available.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, *_, address in dict.fromkeys(found):
                listening = socket.create_server(
                    (str(address[0]), port), family=family, backlog=backlog
                )
                listening.setblocking(False)
                self._sockets.append(listening)
                port = listening.getsockname()[1]
        except OSError:
            for listening in self._sockets:
                listening.close()
            self._sockets.clear()
            raise
        for listening in self._sockets:
            self._watch(listening)
        return port

    async def close(self) -> None:
        """Serve the connections accepted so far, refuse later ones, and end every handshake."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            self._accept(listening)
            again = self._again.pop(listening, None)
            if again is None:
                loop.remove_reader(listening)
            else:
                again.cancel()
            listening.close()
        self._sockets.clear()
        await asyncio.gather(*self._admitting, return_exceptions=True)
        await self._tasks.stop()

    def _watch(self, listening: socket.socket) -> None:
        self._again.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, peer = listening.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # the client disconnected before it was accepted
                continue
            except OSError as error:
                log.error("no connection can be accepted", extra={"reason": str(error)})  # noqa: TRY400 - it is the machine's state
                if listening not in self._again:
                    loop = asyncio.get_running_loop()
                    loop.remove_reader(listening)
                    self._again[listening] = loop.call_later(
                        _ACCEPT_AGAIN_S, self._watch, listening
                    )
                return
            accepted.setblocking(False)
            self._take_in(accepted, self._enter(peer))

    def _take_in(self, accepted: socket.socket, place: Place | None) -> None:
        if self._certificates is None:
            admitting = self._tasks.spawn(self._admit(accepted, place))
            self._admitting.add(admitting)
            admitting.add_done_callback(self._admitting.discard)
            return
        if place is None:
            accepted.close()
            return
        self._tasks.spawn(self._shake_hands(accepted, place, self._certificates)).add_done_callback(
            partial(_given_up, accepted, place)
        )

    async def _admit(self, accepted: socket.socket, place: Place | None) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(partial(self._admitted, place), accepted)

    async def _shake_hands(
        self,
        accepted: socket.socket,
        place: Place,
        certificates: Certificates[ssl.SSLContext],
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(self._admitted, place),
                accepted,
                ssl=certificates.current,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=self._shutdown_s,
            )
        except OSError:  # no TLS, no common version, timeout, disconnect: each is an OSError
            self.failed += 1
            place.leave()


def _given_up(accepted: socket.socket, place: Place, task: asyncio.Task[None]) -> None:
    if task.cancelled():  # the task may not have started, so nobody else would close it
        accepted.close()
        place.leave()
