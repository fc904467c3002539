"""Server: the listening socket and its connections, each of them bounded in number and in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import ssl
import struct
from typing import Any, cast

from aiohttp import web

from codeq_cluster.api.app import ACCESS_LOG, WAITS
from codeq_cluster.api.call import JSON
from codeq_cluster.api.doorway import Doorway
from codeq_cluster.api.errors import ApiError, envelope
from codeq_cluster.api.guarding import HEADERS, guard
from codeq_cluster.api.middleware import error_response, new_request_id, request_id_of
from codeq_cluster.settings import LimitSettings
from codeq_cluster.telemetry import Metrics
from codeq_cluster.wire import Certificates

log = logging.getLogger(__name__)

_BACKLOG = 1024
_LINGER_S = 2.0  # How long an unread body is swallowed, so that its sender gets to read the answer.
# How long a connection without a request is left to its client once nobody is let in any more. A
# client that has many uses each within this time, is told to close it, and asks elsewhere.
_LEAVE_S = 3.0
_CUT_OFF_S = 0.2  # For a handler that is cancelled to end, and as long before that.
_LOOK_S = 0.05  # Between two looks for connections that have become idle since.
_NO_LINGER = struct.pack("ii", 1, 0)
_STALLED = 408
_UNMATCHED = "unmatched"

_TEXT_OF_STATUS = {
    400: ("bad request", "bad-request"),
    404: ("not found", "no-such-route"),
    405: ("method not allowed", "method-not-allowed"),
    413: ("request body too large", "body-too-large"),
    417: ("expectation failed", "expectation-failed"),
}
_FULL = ApiError(
    503,
    "too many connections",
    "overloaded",
    retryable=True,
    headers={"Retry-After": "1", "X-Outcome": "not-applied"},
)


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
                keepalive_timeout=self._limits.idle_timeout_ms / 1000,
                lingering_time=_LINGER_S,
                access_log=None,
                read_bufsize=2**16,
                # Nobody is promised to be understood in gzip, and what cannot be unpacked would be
                # logged as a failure of this server, on the word of a stranger.
                auto_decompress=False,
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


class Connection(web.RequestHandler):
    """One client's connection, with the bounds that aiohttp leaves open."""

    __slots__ = ("_head_due", "_limits", "_metrics", "_server", "_taken_due")

    def __init__(
        self,
        manager: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        server: HttpServer,
        limits: LimitSettings,
        metrics: Metrics,
        **options: Any,
    ) -> None:
        super().__init__(manager, loop=loop, **options)
        self._server = server
        self._limits = limits
        self._metrics = metrics
        self._head_due: asyncio.TimerHandle | None = None
        self._taken_due: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Tell whether no part of a request is here that has no answer yet."""
        waiting = self._waiter is not None and not self._waiter.done()
        return waiting and self._head_due is None and self.transport is not None

    @property
    def served(self) -> bool:
        """Tell whether the client may still get something."""
        if self.transport is None:
            return False
        # Over TLS a close waits for the client's goodbye, after everything has been sent.
        secure = self.transport.get_extra_info("ssl_object") is not None
        return not (secure and self.transport.is_closing())

    @property
    def descriptor(self) -> int:
        """Return the descriptor of its socket."""
        assert self.transport is not None
        return cast("int", self.transport.get_extra_info("socket").fileno())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, or turn it away at once when the server is full."""
        # A cast: the transports of uvloop are no subclasses of asyncio's.
        writing = cast("asyncio.WriteTransport", transport)
        # Over TLS, it has been asked already, and this connection has had its place since.
        if self._server.full and writing.get_extra_info("ssl_object") is None:
            writing.write(_turned_away())
            writing.close()
            return
        self._server.opened(self)
        super().connection_made(transport)
        # Whatever the kernel does not take at once counts as not taken by the client.
        # The loops' TLS counts from the limit itself, so that 0 would never be below it.
        secure = writing.get_extra_info("ssl_object") is not None
        writing.set_write_buffer_limits(high=1 if secure else 0, low=0)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection; a handler that serves it is cancelled."""
        self._head_arrived()
        self._answer_taken()
        self._server.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; a request's head must be complete in time."""
        try:
            super().data_received(data)
        except IndexError:
            # The library's for a target of `http://[]@`, which leaves its parser as it is.
            self.force_close()
            return
        # Still waiting for a request after bytes came: they were a part of a head.
        waiter = self._waiter
        if waiter is None or waiter.done():
            if self._head_due is not None:
                self._head_arrived()
        elif self._head_due is None and not self._force_close:
            self._head_due = self._loop.call_later(
                self._limits.header_timeout_ms / 1000, self.force_close
            )

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; one the library made itself is given the envelope first."""
        if isinstance(resp, web.HTTPException):
            resp = self._enveloped(request, resp.status, headers=resp.headers.get("Allow"))
        if not resp.prepared:
            guard(resp.headers)
            if self._server.leaving:
                resp.force_close()
        if resp.status == _STALLED:
            self._lingering_time = 0.0  # It has had its time.
        return await super().finish_response(request, resp, start_time)

    def pause_writing(self) -> None:
        """Watch a client that does not take its answer as fast as it is sent."""
        super().pause_writing()
        if self._taken_due is None:
            self._taken_due = self._loop.call_later(
                self._limits.body_timeout_ms / 1000, self._abandon
            )

    def resume_writing(self) -> None:
        """See that the client has taken everything."""
        self._answer_taken()
        super().resume_writing()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP, or what the library failed to handle, in the usual envelope."""
        if status >= 500:
            log.error(
                "request failed",
                extra={"reason": message, "request_id": request_id_of(request), "tenant": ""},
                exc_info=exc,
            )
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; the error cannot be told any more")
        response = self._enveloped(request, status)
        response.force_close()
        return response

    def cut_off(self) -> None:
        """Close at once, whatever is queued."""
        if self.transport is not None:
            self.transport.abort()

    def _enveloped(
        self, request: web.BaseRequest, status: int, *, headers: str | None = None
    ) -> web.Response:
        text, code = _TEXT_OF_STATUS.get(status, ("internal error", "internal"))
        allow = {"Allow": headers} if headers else {}
        request_id = request_id_of(request)
        self._metrics.http_answered(_UNMATCHED, request.method, status, 0.0)
        self._server.access_log.answered(
            request_id, method=request.method, route=_UNMATCHED, status=status, seconds=0, tenant=""
        )
        error = ApiError(status, text, code, headers=allow)
        return error_response(error, request_id)

    def _abandon(self) -> None:
        # A mere close would wait for the client to take what is buffered, here and in the kernel.
        if self.transport is not None:
            raw = self.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.transport.abort()

    def _answer_taken(self) -> None:
        if self._taken_due is not None:
            self._taken_due.cancel()
            self._taken_due = None

    def _head_arrived(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


def _turned_away() -> bytes:
    """Return the answer to a connection too many, before there is a request."""
    request_id = new_request_id()
    body = envelope(_FULL, request_id)
    headers = {
        "Content-Type": JSON,
        "Content-Length": str(len(body)),
        "Connection": "close",
        "X-Request-Id": request_id,
        **_FULL.headers,
        **HEADERS,
    }
    head = "\r\n".join(f"{name}: {text}" for name, text in headers.items())
    return f"HTTP/1.1 503 Service Unavailable\r\n{head}\r\n\r\n".encode() + body
