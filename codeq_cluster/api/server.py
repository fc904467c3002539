"""Server: the listening socket and its connections, bounded in number and in time."""

from __future__ import annotations

import asyncio
import contextlib
import select
import ssl

from aiohttp import web

from codeq_cluster.api.app import ACCESS_LOG, STRANGERS, WAITS, WHOLE_ROUTES
from codeq_cluster.api.http.connection import HttpConnection
from codeq_cluster.api.http.listener import Listener
from codeq_cluster.api.http.middleware import Answering
from codeq_cluster.api.http.strangers import Place
from codeq_cluster.api.http.whole_requests import WholeRoutes
from codeq_cluster.settings import LimitSettings
from codeq_cluster.telemetry import Metrics
from codeq_cluster.wire import Certificates

_BACKLOG = 1024
# A stopping node keeps idle connections open for this long. Clients with a pool use each connection
# within this time, learn from the answer that it closes, and turn to another node.
_LEAVE_S = 3.0
# A handler is cancelled after this time, and has the same time again to end.
_CUT_OFF_S = 0.2
_LOOK_S = 0.05  # The pause between two checks for idle connections.
_NO_ROUTES = WholeRoutes[Answering]("", body_bytes_max=0)


class HttpServer:
    """Serve an application on one address, over https when certificates are given.

    A client that stalls in a header, a body or an answer, or idles too long, loses its own
    connection only. When a client disconnects, the handler that serves it is cancelled.

    Attributes:
        port: That it listens on, once started; the system chooses it when 0 is asked for.
        leaving: The server is draining: it accepts nobody and asks clients to leave.
    """

    def __init__(
        self,
        app: web.Application,
        *,
        host: str,
        port: int,
        limits: LimitSettings,
        metrics: Metrics,
        certificates: Certificates[ssl.SSLContext] | None = None,
    ) -> None:
        self._host = host
        self.port = port
        self._limits = limits
        self._metrics = metrics
        self.access_log = app[ACCESS_LOG]
        self.strangers = app[STRANGERS]
        self._waits = app[WAITS]
        self._whole_routes = app.get(WHOLE_ROUTES, _NO_ROUTES)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=_CUT_OFF_S
        )
        self.leaving = False
        self._closed = asyncio.Event()
        self._certificates = certificates
        self._doorway: Listener | None = None
        self._open: set[HttpConnection] = set()

    @property
    def failed_handshakes(self) -> int:
        """Return how many connections sent no TLS, or gave up during the handshake."""
        return 0 if self._doorway is None else self._doorway.failed

    async def start(self) -> None:
        """Start accepting connections.

        Raises:
            OSError: The address is not available.
        """
        await self._runner.setup()
        manager = self._runner.server
        assert manager is not None
        loop = asyncio.get_running_loop()

        def connection(place: Place | None) -> HttpConnection:
            return HttpConnection(
                manager,
                loop=loop,
                server=self,
                place=place,
                limits=self._limits,
                metrics=self._metrics,
                whole_routes=self._whole_routes,
            )

        self._doorway = Listener(
            self._certificates,
            enter=self.strangers.enter,
            admitted=connection,
            handshake_s=self._limits.header_timeout_ms / 1000,
            shutdown_s=self._limits.body_timeout_ms / 1000,
        )
        self.port = await self._doorway.open(self._host, self.port, backlog=_BACKLOG)

    async def leave(self) -> None:
        """Accept no more connections, and drain the open ones.

        Requests under way are answered, and waits and delays end at once. Every answer closes its
        connection, so that the client's next request goes to another node. A connection without a
        request is closed after a grace period. Returns when all are closed, at the latest one
        request timeout after that period.
        """
        self.leaving = True
        await self._shut()
        self._waits.end()
        for each in tuple(self._open):
            each.hasten()
        loop = asyncio.get_running_loop()
        idle_until = loop.time() + _LEAVE_S
        until = idle_until + self._limits.request_timeout_ms / 1000
        while any(each.served for each in self._open) and (now := loop.time()) < until:
            if now >= idle_until:
                self.close_idle()
            self._closed.clear()
            wait_s = max(idle_until - now, _LOOK_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, until - now)):
                    await self._closed.wait()

    async def stop(self) -> None:
        """Accept no more connections, and cut off the open ones."""
        self.leaving = True
        await self._shut()
        await self._runner.cleanup()
        # A TLS close waits for the client's goodbye, which may never come.
        for connection in tuple(self._open):
            connection.cut_off()

    def close_idle(self) -> None:
        """Close every connection that carries no request."""
        idle = {each.descriptor: each for each in self._open if each.idle}
        # A request may still be in the kernel's buffer: its connection is not idle.
        poll = select.poll()
        for descriptor in idle:
            poll.register(descriptor, select.POLLIN)
        asked = {descriptor for descriptor, _ in poll.poll(0)}
        for descriptor, connection in idle.items():
            if descriptor not in asked:
                connection.force_close()

    def opened(self, connection: HttpConnection) -> None:
        """Count a connection as open."""
        self._open.add(connection)

    def closed(self, connection: HttpConnection) -> None:
        """Stop counting a connection."""
        self._open.discard(connection)
        self._closed.set()

    async def _shut(self) -> None:
        if self._doorway is not None:
            await self._doorway.close()
