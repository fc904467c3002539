"""Connection: one client's connection, with bounds that aiohttp lacks and a fast path."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import Any, Protocol, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage, StreamWriter

from codeq_cluster.api.http.access_log import AccessLog
from codeq_cluster.api.http.answer import REFUSAL, HttpAnswer, Refusal, guard
from codeq_cluster.api.http.errors import ApiError, not_applied
from codeq_cluster.api.http.message_ends import HEAD_BYTES_MAX, MessageEnds
from codeq_cluster.api.http.middleware import Answering, error_answer, new_request_id, request_id_of
from codeq_cluster.api.http.strangers import Place, Portion, Strangers
from codeq_cluster.api.http.whole_requests import Whole, WholeRoutes
from codeq_cluster.settings import LimitSettings
from codeq_cluster.telemetry import Metrics

log = logging.getLogger(__name__)

_LINGER_S = 2.0  # An unread body is drained for this long, so that its sender reads the answer.
_READ_BYTES = 2**16  # Limit of received bytes that wait for their turn; beyond it, reading pauses.
_CHUNKS_REST_S = 0.01  # For other work, between so many chunks of a body as go on at once.
_NEVER_S = 10 * 365 * 86_400.0
_NO_LINGER = struct.pack("ii", 1, 0)
_REFUSED = b"\0"  # aiohttp refuses it anywhere in a head, with 400 and the end of the connection.
_STALLED = 408
_UNMATCHED = "unmatched"

_TEXT_OF_STATUS = {
    400: ("bad request", "bad-request"),
    404: ("not found", "no-such-route"),
    405: ("method not allowed", "method-not-allowed"),
    413: ("request body too large", "body-too-large"),
    417: ("expectation failed", "expectation-failed"),
}
_FULL = not_applied(503, "too many connections", "overloaded")
_CROWDED = not_applied(503, "too many unfinished requests", "overloaded")
_HEAD_TOO_LARGE = ApiError(431, f"request head exceeds {HEAD_BYTES_MAX} bytes", "head-too-large")


class AcceptingServer(Protocol):
    """The server that accepted the connection."""

    @property
    def access_log(self) -> AccessLog:
        """The log of requests."""

    @property
    def strangers(self) -> Strangers:
        """What callers have taken before their tokens are verified."""

    @property
    def leaving(self) -> bool:
        """Whether clients are asked to leave."""

    def opened(self, connection: HttpConnection) -> None:
        """Count a connection as open."""

    def closed(self, connection: HttpConnection) -> None:
        """Stop counting a connection."""


class HttpConnection(web.RequestHandler):
    """One client's connection, with the bounds that aiohttp lacks.

    Requests of the busiest routes that arrive in one piece, where a message ended, are answered
    without aiohttp. Bytes that arrive meanwhile wait, and are then read as usual.
    """

    __slots__ = (
        "_answering",
        "_ends",
        "_head",
        "_head_due",
        "_idle_due",
        "_last_answer",
        "_last_due",
        "_limits",
        "_metrics",
        "_parting_place",
        "_place",
        "_quiet_since_s",
        "_remote",
        "_server",
        "_taken_due",
        "_unread",
        "_untaken",
        "_whole_routes",
    )

    def __init__(
        self,
        manager: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        server: AcceptingServer,
        place: Place | None,
        limits: LimitSettings,
        metrics: Metrics,
        whole_routes: WholeRoutes[Answering],
    ) -> None:
        super().__init__(
            manager,
            loop=loop,
            # aiohttp does not see requests that are answered here: see `_end_if_idle`.
            keepalive_timeout=_NEVER_S,
            lingering_time=_LINGER_S,
            # The routes write the access log themselves.
            access_log=cast("logging.Logger", None),
            read_bufsize=_READ_BYTES,
            # No client is promised gzip. A stranger's corrupt gzip body would be logged as a
            # failure of this server.
            auto_decompress=False,
        )
        self._server = server
        self._place = place
        self._limits = limits
        self._metrics = metrics
        self._whole_routes = whole_routes
        holder = "" if place is None else place.holder
        self._head = Portion(server.strangers.bytes, holder)  # An incomplete one.
        self._head_due: asyncio.TimerHandle | None = None
        self._taken_due: asyncio.TimerHandle | None = None
        self._untaken = Portion(server.strangers.unread, holder)  # Of an answer.
        self._idle_due: asyncio.TimerHandle | None = None
        self._quiet_since_s = 0.0
        self._remote = ""
        self._last_answer = b""  # Delayed.
        self._last_due: asyncio.TimerHandle | None = None
        self._parting_place: Place | None = None
        self._answering: asyncio.Task[None] | None = None  # For a whole request.
        self._ends = MessageEnds()
        self._unread = b""  # Bytes that wait until an earlier request has been answered.

    @property
    def idle(self) -> bool:
        """Return whether no part of an unanswered request has arrived."""
        apart = self._ends.reached and not self._unread
        return apart and self._waiting and self.transport is not None

    @property
    def _waiting(self) -> bool:
        """Return whether neither aiohttp nor the fast path is answering a request."""
        waiter = self._waiter
        return self._answering is None and waiter is not None and not waiter.done()

    @property
    def served(self) -> bool:
        """Return whether the client can still receive data."""
        if self.transport is None:
            return False
        # A TLS close waits for the client's goodbye, after all data has been sent.
        secure = self.transport.get_extra_info("ssl_object") is not None
        return not (secure and self.transport.is_closing())

    @property
    def descriptor(self) -> int:
        """Return the descriptor of the socket."""
        assert self.transport is not None
        return cast("int", self.transport.get_extra_info("socket").fileno())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or refuse it at once when it has no place."""
        # A cast, because uvloop's transports do not inherit from asyncio's.
        writing = cast("asyncio.WriteTransport", transport)
        if self._place is None:
            writing.write(_refused(_FULL))
            writing.close()
            return
        self._server.opened(self)
        self._remote = str((writing.get_extra_info("peername") or ("",))[0])
        super().connection_made(transport)
        self._quiet_since_s = self._loop.time()
        self._end_if_idle()
        # Bytes that the kernel does not take at once count as not taken by the client. The loops'
        # TLS compares with the limit itself, so a limit of 0 would never be reached.
        secure = writing.get_extra_info("ssl_object") is not None
        writing.set_write_buffer_limits(high=1 if secure else 0, low=0)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection; its handler is cancelled."""
        self._head_arrived()
        self._answer_taken()
        if self._idle_due is not None:
            self._idle_due.cancel()
        if self._answering is not None:
            self._answering.cancel()
        if self._last_due is not None:
            self._last_due.cancel()
        for place in (self._place, self._parting_place):
            if place is not None:
                place.leave()
        self._server.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read received bytes; a request's head must be complete in time."""
        # aiohttp gives itself no bytes, in order to go on with those it has kept.
        if (self._unread and data) or self._answering is not None:
            self._keep_unread(data)
            return
        waiter = self._waiter
        if self._ends.reached and waiter is not None and not waiter.done() and self.transport:
            whole = self._whole_routes.read(data)
            if whole is not None:
                whole[1].remote = self._remote
                self._answering = self._loop.create_task(self._answer(*whole))
                return
        self._give(data)

    def _give(self, data: bytes) -> None:
        """Give aiohttp the next request, and keep what follows it."""
        # Nobody reads the rest of a body whose request has been answered.
        if self._force_close or (self._ends.in_chunks and not self._ends.asked):
            return
        end = self._ends.follow(data)
        if self._ends.too_long:
            self._turn_away(_HEAD_TOO_LARGE)
            return
        try:
            super().data_received(data[:end] + _REFUSED if self._ends.refused else data[:end])
        except IndexError:
            # aiohttp raises this for a target of `http://[]@`, and leaves its parser as it was.
            self.force_close()
            return
        if self._ends.asked:
            self._fail_malformed_body()
        if end < len(data) and not self._ends.refused:
            self._keep_unread(data[end:])
            if self._ends.in_chunks:
                self._loop.call_later(_CHUNKS_REST_S, self._read_on)
        if not self._ends.in_head:
            self._head_arrived()
            return
        self._hold_head()
        if self._head_due is None and not self._force_close:
            self._expect_head()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; aiohttp's own errors get the envelope first."""
        refusal = resp.get(REFUSAL)
        if refusal is not None and self._parts(refusal, request.method):
            return resp, False
        if isinstance(resp, web.HTTPException):
            resp = self._enveloped(request, resp.status, headers=resp.headers.get("Allow"))
        # The rest of a refused body may have trailers, which aiohttp adds to the next request.
        if self._ends.unknown or self._ends.in_chunks:
            resp.force_close()
        if not resp.prepared:
            guard(resp.headers)
            if self._server.leaving:
                resp.force_close()
        if resp.status == _STALLED:
            self._lingering_time = 0.0  # The handler did not end in time.
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._quiet_since_s = self._loop.time()
            self._ends.asked = False
            if self._unread:
                self._loop.call_soon(self._read_on)

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109 - its name
        """Let the current answer end in time, or cancel it, and close."""
        answering = self._answering
        if answering is not None:
            await asyncio.wait({answering}, timeout=timeout)
            answering.cancel()
            await asyncio.wait({answering}, timeout=timeout)
        await super().shutdown(timeout)

    def pause_writing(self) -> None:
        """Start the deadline of a client that reads more slowly than the node sends."""
        super().pause_writing()
        if self._taken_due is None:
            self._taken_due = self._loop.call_later(
                self._limits.body_timeout_ms / 1000, self._abandon
            )
        assert self.transport is not None
        if not self._untaken.grow_to(self.transport.get_write_buffer_size()):
            self._loop.call_soon(self._abandon)

    def resume_writing(self) -> None:
        """Stop the deadline: the client has taken everything."""
        self._answer_taken()
        super().resume_writing()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer malformed HTTP, or a failure inside aiohttp, in the usual envelope."""
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

    def hasten(self) -> None:
        """Send the delayed answer now, if there is one, and close the connection."""
        if not self._last_answer or self.transport is None:
            return
        assert self._last_due is not None
        self._last_due.cancel()
        self.transport.write(self._last_answer)
        self._last_answer = b""
        if self._ends.reached:
            self.transport.close()
            return
        # The rest of a body is drained, like that of any refused request.
        self.transport.resume_reading()
        self._last_due = self._loop.call_later(_LINGER_S, self.transport.close)

    def cut_off(self) -> None:
        """Close at once, and drop queued data."""
        if self.transport is not None:
            self.transport.abort()

    async def _answer(self, answering: Answering, whole: Whole) -> None:
        """Answer a one-piece request."""
        try:
            answer = await answering(whole)
            assert isinstance(answer, HttpAnswer)
            if isinstance(answer, Refusal) and self._parts(answer, whole.method):
                return
            leaving = self._server.leaving
            if self.transport is not None:
                self.transport.write(answer.encoded(closing=leaving))
                if leaving:
                    self.close()
                    self.transport.close()
            if self._paused:
                await StreamWriter(self, self._loop).drain()
        except ConnectionError:
            self.force_close()
        except Exception:
            # A bug outside the handler: nobody awaits this task, so it must end the client's wait
            # itself.
            log.exception("an answer could not be sent")
            self.force_close()
        finally:
            self._answering = None
            self._quiet_since_s = self._loop.time()
        if self._unread:
            self._read_on()

    def _parts(self, refusal: Refusal[Any], method: str) -> bool:
        """End the connection if too many tokens of its caller are refused; return whether it does.

        The answer may be delayed. The node keeps only that meanwhile, and reads nothing more: a
        connection that stayed open would have to keep the requests that follow.
        """
        if self.transport is None or self.transport.is_closing():
            return False
        delay = self._server.strangers.refused(refusal.caller)
        if delay is None:
            return False
        wait_s, self._parting_place = delay
        if method == "HEAD":
            refusal.body = b""
        self._last_answer = refusal.encoded(closing=True)
        self._force_close = True  # aiohttp ends, and leaves the transport open.
        if self._waiter is not None:
            self._waiter.cancel()
        self._parser = None  # It has a part of the body.
        self._unread = b""
        self.transport.pause_reading()
        self._last_due = self._loop.call_later(wait_s, self.hasten)
        if self._server.leaving:
            self.hasten()
        return True

    def _fail_malformed_body(self) -> None:
        """End the wait for a body that aiohttp has refused: it does not tell the body's reader."""
        if not self._messages or isinstance(self._messages[-1][0], RawRequestMessage):
            return
        body = None
        if len(self._messages) > 1:
            body = self._messages[-2][1]
        elif self._current_request is not None:
            body = self._current_request.content
        if body is not None and not body.is_eof():
            body.set_exception(web.RequestPayloadError("malformed body"))
            self._lingering_time = 0.0  # None of the body is awaited any more.

    def _keep_unread(self, data: bytes) -> None:
        """Keep bytes that follow a request being answered, within a bound."""
        self._unread += data
        if len(self._unread) >= _READ_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def _read_on(self) -> None:
        """Read what was kept, up to the next request."""
        data, self._unread = self._unread, b""
        if self.transport is None or not data:
            return
        self.data_received(data)
        held = self._reading_paused or self._buffer_paused or len(self._unread) >= _READ_BYTES
        if len(data) >= _READ_BYTES and not held and self.transport is not None:
            self.transport.resume_reading()

    def _end_if_idle(self) -> None:
        """Close the connection if it has idled too long; else check again later."""
        idle_s = self._limits.idle_timeout_ms / 1000
        now_s = self._loop.time()
        due_s = self._quiet_since_s + idle_s
        if now_s < due_s:
            self._idle_due = self._loop.call_at(due_s, self._end_if_idle)
        elif self._waiting:
            self.force_close()
        else:
            self._idle_due = self._loop.call_later(idle_s, self._end_if_idle)

    def _enveloped(
        self, request: web.BaseRequest, status: int, *, headers: str | None = None
    ) -> web.Response:
        text, code = _TEXT_OF_STATUS.get(status, ("internal error", "internal"))
        allow = {"Allow": headers} if headers else {}
        request_id = request_id_of(request)
        self._metrics.http.observe(0.0, _UNMATCHED, request.method, status)
        self._server.access_log.answered(
            request, request_id, route=_UNMATCHED, status=status, seconds=0, tenant=""
        )
        error = ApiError(status, text, code, headers=allow)
        return error_answer(error, request_id).response()

    def _abandon(self) -> None:
        # A plain close would wait until the client takes all buffered data.
        if self.transport is not None:
            raw = self.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.transport.abort()

    def _answer_taken(self) -> None:
        self._untaken.give_back()
        if self._taken_due is not None:
            self._taken_due.cancel()
            self._taken_due = None

    def _expect_head(self) -> None:
        self._head_due = self._loop.call_later(
            self._limits.header_timeout_ms / 1000, self._head_late
        )

    def _head_late(self) -> None:
        """Close the connection; but not during an answer, after which the head is due."""
        if self._waiting:
            self.force_close()
        else:
            self._expect_head()

    def _hold_head(self) -> None:
        """Take room for a part of a head, or turn the client away."""
        if not self._head.grow_to(self._ends.head_bytes):
            self._turn_away(_CROWDED)

    def _turn_away(self, error: ApiError) -> None:
        """Close the connection, with an answer unless an earlier one is under way.

        Right after an earlier answer aiohttp does not wait for a request yet.
        """
        if not self._ends.asked and self._answering is None and self.transport is not None:
            self.transport.write(_refused(error))
        self.force_close()

    def _head_arrived(self) -> None:
        self._head.give_back()
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


def _refused(error: ApiError) -> bytes:
    """Return the answer that refuses a connection, before any request."""
    return error_answer(error, new_request_id()).encoded(closing=True)
