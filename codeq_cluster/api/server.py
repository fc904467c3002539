"""Server: the listening socket and its connections, each of them bounded in number and in time."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from typing import Any, cast

from aiohttp import web

from codeq_cluster.api.errors import ApiError
from codeq_cluster.api.middleware import error_response, request_id_of
from codeq_cluster.settings import LimitSettings
from codeq_cluster.telemetry import Metrics

log = logging.getLogger(__name__)

_BACKLOG = 1024
_LINGER_S = 2.0  # How long an unread body is swallowed, so that its sender gets to read the answer.
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
_FULL_BODY = json.dumps(
    {"error": "too many connections", "code": "overloaded", "retryable": True, "requestId": ""}
).encode()
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
    b"Retry-After: 1\r\nX-Outcome: not-applied\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)


class HttpServer:
    """Serves an application on one address.

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
        shutdown_s: float = 2.0,
    ) -> None:
        self._host = host
        self._port = port
        self._limits = limits
        self._metrics = metrics
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=shutdown_s
        )
        self._server: asyncio.Server | None = None
        self.connections = 0

    @property
    def port(self) -> int:
        """Return the port, the one the system chose when 0 was asked for."""
        return self._port

    @property
    def full(self) -> bool:
        """Tell whether another connection would be one too many."""
        return self.connections >= self._limits.connections_max

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
            )

        self._server = await loop.create_server(
            connection, self._host, self._port, backlog=_BACKLOG, family=socket.AF_UNSPEC
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Accept no more, let handlers end within the shutdown time, then cut them off."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._runner.cleanup()


class Connection(web.RequestHandler):
    """One client's connection, with the bounds that aiohttp leaves open."""

    __slots__ = ("_counted", "_head_due", "_limits", "_metrics", "_server", "_taken_due")

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
        self._counted = False
        self._head_due: asyncio.TimerHandle | None = None
        self._taken_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, or turn it away at once when the server is full."""
        # A cast: the transports of uvloop are no subclasses of asyncio's.
        writing = cast("asyncio.WriteTransport", transport)
        if self._server.full:
            writing.write(_FULL)
            writing.close()
            return
        self._counted = True
        self._server.connections += 1
        super().connection_made(transport)
        # Whatever the kernel does not take at once counts as not taken by the client.
        writing.set_write_buffer_limits(high=0)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection; a handler that serves it is cancelled."""
        self._head_arrived()
        self._answer_taken()
        if self._counted:
            self._counted = False
            self._server.connections -= 1
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; a request's head must be complete in time."""
        super().data_received(data)
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
            log.error("request failed", extra={"reason": message}, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; the error cannot be told any more")
        response = self._enveloped(request, status)
        response.force_close()
        return response

    def _enveloped(
        self, request: web.BaseRequest, status: int, *, headers: str | None = None
    ) -> web.Response:
        text, code = _TEXT_OF_STATUS.get(status, ("internal error", "internal"))
        allow = {"Allow": headers} if headers else {}
        self._metrics.http_answered(_UNMATCHED, request.method, status, 0.0)
        error = ApiError(status, text, code, headers=allow)
        return error_response(error, request_id_of(request))

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
