"""Server: the listening socket and its connections, each of them bounded in number and in time."""

from __future__ import annotations

import asyncio
import contextlib
import select
import ssl

from aiohttp import web

from codeq_cluster.api.app import ACCESS_LOG, WAITS, WHOLE_ROUTES
from codeq_cluster.api.connection import Connection
from codeq_cluster.api.doorway import Doorway
from codeq_cluster.api.middleware import Answering
from codeq_cluster.api.whole import WholeRoutes
from codeq_cluster.settings import LimitSettings
from codeq_cluster.telemetry import Metrics
from codeq_cluster.wire import Certificates

_BACKLOG = 1024
# How long a connection without a request is left to its client once nobody is let in any more. A
# client that has many uses each within this time, is told to close it, and asks elsewhere.
_LEAVE_S = 3.0
_CUT_OFF_S = 0.2  # For a handler that is cancelled to end, and as long before that.
_LOOK_S = 0.05  # Between two looks for connections that have become idle since.
_NO_ROUTES = WholeRoutes[Answering]("", body_bytes_max=0)


class HttpServer:
    """Serves an application on one address, by https when it is given certificates.

    A client that stalls in a header, a body or an answer, or idles too long, loses its own
    connection; a client that goes away cancels the handler that serves it.
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
        self._port = port
        self._limits = limits
        self._metrics = metrics
        self.access_log = app[ACCESS_LOG]
        self._waits = app[WAITS]
        self._whole_routes = app.get(WHOLE_ROUTES, _NO_ROUTES)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=_CUT_OFF_S
        )
        self._leaving = False
        self._closed = asyncio.Event()
        self._certificates = certificates
        self._doorway: Doorway | None = None
        self._open: set[Connection] = set()

    @property
    def port(self) -> int:
        """Return the port, the one the system chose when 0 was asked for."""
        return self._port

    @property
    def failed_handshakes(self) -> int:
        """Return how many connections sent no TLS, or gave up within the handshake."""
        return 0 if self._doorway is None else self._doorway.failed

    @property
    def leaving(self) -> bool:
        """Tell whether nobody is let in any more, and clients are asked to go."""
        return self._leaving

    @property
    def full(self) -> bool:
        """Tell whether another connection would be one too many; a handshake counts as one."""
        shaking = 0 if self._doorway is None else self._doorway.shaking
        return len(self._open) + shaking >= self._limits.connections_max

    async def start(self) -> None:
        """Begin to accept connections.

        Raises:
            OSError: The address cannot be had.
        """
        await self._runner.setup()
        manager = self._runner.server
        assert manager is not None
        loop = asyncio.get_running_loop()

        def connection() -> Connection:
            return Connection(
                manager,
                loop=loop,
                server=self,
                limits=self._limits,
                metrics=self._metrics,
                whole_routes=self._whole_routes,
            )

        self._doorway = Doorway(
            self._certificates,
            is_full=lambda: self.full,
            admitted=connection,
            handshake_s=self._limits.header_timeout_ms / 1000,
            shutdown_s=self._limits.body_timeout_ms / 1000,
        )
        self._port = await self._doorway.open(self._host, self._port, backlog=_BACKLOG)

    async def leave(self) -> None:
        """Let nobody in any more, and see those off who are there.

        Requests under way are answered, waits at once; every answer closes its connection, so that
        the client's next request goes elsewhere. A connection without a request is closed when it
        has had time for one. Returns when all are gone, at the latest when a request that came
        last must have been answered.
        """
        self._leaving = True
        await self._shut()
        self._waits.end()
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
        """Let nobody in any more and cut off whoever is still there."""
        self._leaving = True
        await self._shut()
        await self._runner.cleanup()
        # Over TLS a close waits for the client's goodbye, which need not come.
        for connection in tuple(self._open):
            connection.cut_off()

    def close_idle(self) -> None:
        """Close every connection that carries no request."""
        idle = {each.descriptor: each for each in self._open if each.idle}
        # What the kernel holds of a request is a request: its connection is not idle.
        poll = select.poll()
        for descriptor in idle:
            poll.register(descriptor, select.POLLIN)
        asked = {descriptor for descriptor, _ in poll.poll(0)}
        for descriptor, connection in idle.items():
            if descriptor not in asked:
                connection.force_close()

    def opened(self, connection: Connection) -> None:
        """Count a connection that is served from now on."""
        self._open.add(connection)

    def closed(self, connection: Connection) -> None:
        """Forget one."""
        self._open.discard(connection)
        self._closed.set()

    async def _shut(self) -> None:
        if self._doorway is not None:
            await self._doorway.close()
