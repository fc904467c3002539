"""Middleware: the steps around every handler, in one wrapper because each layer costs time.

In order: request id, caller, body, handler, error envelope, metrics.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError

from codeq_cluster.api.http.answer import HttpAnswer
from codeq_cluster.api.http.call import (
    CONSISTENCY,
    LINEARIZABLE,
    Asked,
    Call,
    Services,
    authorization,
)
from codeq_cluster.api.http.errors import (
    ApiError,
    Envelope,
    auth_unavailable,
    envelope,
    from_access,
    from_failure,
    invalid_body,
)
from codeq_cluster.api.http.memory_limits import Body
from codeq_cluster.api.http.refusals import NEVER_STALE, STALLED, body_too_large
from codeq_cluster.api.http.whole_requests import Whole
from codeq_cluster.auth import Access, AccessRefused, Authenticator, Identity
from codeq_cluster.auth.jwks import KeysUnavailable
from codeq_cluster.errors import CodeqError
from codeq_cluster.settings import LimitSettings
from codeq_cluster.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NOBODY = Identity(subject="", tenant="", scopes=frozenset(), event_types=(), roles=frozenset())
_CLIENT_GONE = 499  # No answer is sent; only the metric shows this status.

Handler = Callable[[Call], Awaitable[web.StreamResponse | HttpAnswer[Any]]]
Answering = Callable[[Asked], Awaitable[web.StreamResponse | HttpAnswer[Any]]]
LibraryHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Admitting = Callable[[web.Request], Awaitable[Identity]]
_AdmittingAny = Callable[[Asked], Awaitable[Identity]]


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the route table.

    Attributes:
        scope: The scope a worker needs beside the access; empty for none.
        unreadable: The refusal's text for an unreadable body; empty if the route takes no body.
        large: The body may contain artifacts.
        stale: The caller may ask for a read from the local replica.
        whole: Its requests are read without aiohttp when they arrive in one piece. Such a route
            takes a body, returns an `HttpAnswer` and needs nothing else of aiohttp's request.
    """

    method: str
    path: str
    handler: Handler
    access: Access
    scope: str = ""
    unreadable: str = ""
    large: bool = False
    stale: bool = False
    whole: bool = False


def wrapped(route: Route, services: Services, admit: Admitting | None = None) -> LibraryHandler:
    """Return the aiohttp handler of a route; arguments as for `surrounded`."""
    return for_library(surrounded(route, services, admit))


def for_library(answering: Answering) -> LibraryHandler:
    """Return an aiohttp handler that renders the answers of `answering`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = await answering(request)
        return answer.response() if isinstance(answer, HttpAnswer) else answer

    return handle


def surrounded(route: Route, services: Services, admit: Admitting | None = None) -> Answering:
    """Return a route's handler wrapped in the middleware.

    Args:
        route: The route to wrap.
        services: The services of the node.
        admit: Identifies the caller, or refuses; None to use the route's access and the bearer
            token.
    """
    access, unreadable = route.access, route.unreadable
    # A route with its own admission gets only requests that aiohttp read.
    admitted = cast("_AdmittingAny", admit) if admit else _by_token(route, services.authenticator)
    handler = _with_large_body(route, services) if route.large else route.handler
    small = unreadable and not route.large
    limits = services.settings.limits
    answered = services.metrics.http_answered
    access_log = services.access_log
    monotonic = time.monotonic

    async def handle(asked: Asked) -> web.StreamResponse | HttpAnswer[Any]:
        started_s = monotonic()
        request_id = request_id_of(asked)
        status = _CLIENT_GONE
        identity = _NOBODY
        try:
            identity = await admitted(asked)
            if isinstance(asked, Whole):
                # A body in one piece is too small to count against the room for large bodies.
                call = Call(asked, services, identity, asked.text(unreadable), request_id)
                response = await route.handler(call)
            else:
                if asked.query_string and not route.stale:
                    _refuse_consistency(asked)
                text = await _body(asked, limits, unreadable) if small else ""
                response = await handler(Call(asked, services, identity, text, request_id))
            status = response.status
        except (ApiError, AccessRefused, CodeqError) as refused:
            if isinstance(refused, AccessRefused):
                access_log.refused(
                    request_id,
                    route=route.path,
                    status=refused.status,
                    reason=refused.reason or refused.text,
                )
            response = error_answer(_answer(refused), request_id)
            status = response.status
            # A refusal may be a constant, which would keep the frames of every request it refused.
            refused.with_traceback(None)
        except ConnectionError:
            raise  # The client disconnected, and the server must see the error.
        except Exception:
            # A bug: the caller still gets an envelope, which says that the outcome is unknown.
            log.exception(
                "handler failed",
                extra={
                    "route": route.path,
                    "request_id": request_id,
                    "tenant": identity.tenant,
                },
            )
            response = error_answer(
                ApiError(500, "internal error", "internal", retryable=False), request_id
            )
            status = response.status
        finally:
            took_s = monotonic() - started_s
            answered(route.path, route.method, status, took_s)
            access_log.answered(
                request_id,
                method=route.method,
                route=route.path,
                status=status,
                seconds=took_s,
                tenant=identity.tenant,
            )
        if isinstance(response, HttpAnswer):
            response.request_id = request_id
        elif not response.prepared:
            response.headers["X-Request-Id"] = request_id
        return response

    tracing = services.tracing
    # Open routes are not traced: probes and scrapers would bury all other spans.
    return handle if tracing is None or access is Access.OPEN else _traced(route, handle, tracing)


def _by_token(route: Route, authenticator: Authenticator) -> _AdmittingAny:
    """Return an admission by bearer token, for the route's access and scope."""
    access, scope = route.access, route.scope

    async def admit(asked: Asked) -> Identity:
        if access is Access.OPEN:
            return _NOBODY
        header = authorization(asked)
        known = authenticator.known(header, access)
        identity = known or await authenticator.authenticate(header, access)
        if scope and scope not in identity.scopes:
            raise ApiError(403, "missing scope", "forbidden")
        return identity

    return admit


def _with_large_body(route: Route, services: Services) -> Handler:
    """Return a handler that reads its body within the room for large bodies."""
    limits, room = services.settings.limits, services.large_bodies

    async def handle(call: Call) -> web.StreamResponse | HttpAnswer[Any]:
        with room.body() as body:
            call.text = await _body(
                call.request, limits, route.unreadable, bytes_max=room.bytes_max, large=body
            )
            return await route.handler(call)

    return handle


def _traced(route: Route, handle: Answering, tracing: Tracing) -> Answering:
    """Return the handler, with a span around each request."""

    async def traced(asked: Asked) -> web.StreamResponse | HttpAnswer[Any]:
        with tracing.serving(route.method, route.path, asked.headers) as span:
            response = await handle(asked)
            span.answered(response.status, _request_id_in(response))
            return response

    return traced


def _request_id_in(response: web.StreamResponse | HttpAnswer[Any]) -> str:
    if isinstance(response, HttpAnswer):
        return response.request_id
    return response.headers["X-Request-Id"]


def request_id_of(request: web.BaseRequest | Whole) -> str:
    """Return the caller's request id, or a new one of 32 hex characters."""
    given = request.headers.get("x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return new_request_id()


def new_request_id() -> str:
    """Return a new request id, for a caller that gave none."""
    return f"{random.getrandbits(128):032x}"


def error_answer(error: ApiError, request_id: str) -> HttpAnswer[Envelope]:
    """Render an error answer."""
    return HttpAnswer(
        envelope(error, request_id),
        status=error.status,
        headers=error.headers,
        request_id=request_id,
    )


def _refuse_consistency(request: web.Request) -> None:
    """Refuse any consistency but linearizable, because the route would silently ignore it."""
    if request.query.get(CONSISTENCY, "") not in ("", LINEARIZABLE):
        raise NEVER_STALE


def _answer(refused: ApiError | AccessRefused | CodeqError) -> ApiError:
    match refused:
        case ApiError():
            return refused
        case AccessRefused():
            return from_access(refused)
        case KeysUnavailable():
            return auth_unavailable()
        case CodeqError():
            return from_failure(refused)


async def _body(
    request: web.Request,
    limits: LimitSettings,
    unreadable: str,
    *,
    bytes_max: int = 0,
    large: Body | None = None,
) -> str:
    bytes_max = bytes_max or limits.max_body_bytes
    length = request.content_length
    if length is not None and length > bytes_max:
        raise body_too_large(bytes_max)
    if large is not None and length is not None:
        large.grown(length)
    try:
        if request.content.is_eof() and request.content.exception() is None:
            # A small body arrives with the head, so no deadline is needed.
            body: bytes | bytearray = request.content.read_nowait()
            if len(body) > bytes_max:
                raise body_too_large(bytes_max)
        else:
            async with asyncio.timeout(limits.body_timeout_ms / 1000):
                body = await _whole(request, bytes_max, large)
    except TimeoutError as stalled:
        raise STALLED from stalled
    except (web.RequestPayloadError, HttpProcessingError) as broken:
        raise invalid_body(unreadable) from broken
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise invalid_body(unreadable) from error


async def _whole(request: web.Request, bytes_max: int, large: Body | None) -> bytearray:
    """Read a body of unknown length, up to its limit."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > bytes_max:
            raise body_too_large(bytes_max)
        if large is not None:
            large.grown(len(body))
    return body
