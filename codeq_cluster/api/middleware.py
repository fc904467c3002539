"""Middleware: what surrounds every handler, merged into one wrapper because each layer costs time.

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

from aiohttp import web
from aiohttp.http import HttpProcessingError

from codeq_cluster.api.call import JSON, Call, Services
from codeq_cluster.api.errors import (
    ApiError,
    auth_unavailable,
    envelope,
    from_access,
    from_failure,
    invalid_body,
)
from codeq_cluster.auth import Access, AccessRefused, Identity
from codeq_cluster.auth.jwks import KeysUnavailable
from codeq_cluster.errors import CodeqError
from codeq_cluster.settings import LimitSettings

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NOBODY = Identity(subject="", tenant="", scopes=frozenset(), event_types=(), admin=False)
_CLIENT_GONE = 499  # No answer is sent; the word is the metric's alone.

Handler = Callable[[Call], Awaitable[web.Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the route table.

    Attributes:
        scope: A worker's, beside the access; empty for none.
        unreadable: What the route calls a body it cannot read; empty when it takes no body.
    """

    method: str
    path: str
    handler: Handler
    access: Access
    scope: str = ""
    unreadable: str = ""


def wrapped(
    route: Route, services: Services
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return the aiohttp handler of a route."""
    handler, access, scope, unreadable = (
        route.handler,
        route.access,
        route.scope,
        route.unreadable,
    )
    authenticator = services.authenticator
    limits = services.settings.limits
    answered = services.metrics.http_answered
    monotonic = time.monotonic

    async def handle(request: web.Request) -> web.StreamResponse:
        started_s = monotonic()
        request_id = request_id_of(request)
        status = _CLIENT_GONE
        try:
            identity = _NOBODY
            if access is not Access.OPEN:
                header = request.headers.get("Authorization")
                known = authenticator.known(header, access)
                identity = known or await authenticator.authenticate(header, access)
                if scope and scope not in identity.scopes:
                    raise ApiError(403, "missing scope", "forbidden")  # noqa: TRY301
            text = await _body(request, limits, unreadable) if unreadable else ""
            response = await handler(Call(request, services, identity, text))
            status = response.status
        except (ApiError, AccessRefused, CodeqError) as refused:
            response = error_response(_answer(refused), request_id)
            status = response.status
        except ConnectionError:
            raise  # The client has gone away: the server counts on seeing this.
        except Exception:
            # A bug: the caller gets an envelope all the same, and cannot know what happened.
            log.exception("handler failed", extra={"route": route.path, "request_id": request_id})
            response = error_response(
                ApiError(500, "internal error", "internal", retryable=False), request_id
            )
            status = response.status
        finally:
            answered(route.path, route.method, status, monotonic() - started_s)
        response.headers["X-Request-Id"] = request_id
        return response

    return handle


def request_id_of(request: web.BaseRequest) -> str:
    """Return the caller's request id, or a new one of 32 hex characters."""
    given = request.headers.get("X-Request-Id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"{random.getrandbits(128):032x}"


def error_response(error: ApiError, request_id: str) -> web.Response:
    """Render an error answer."""
    response = web.Response(
        body=envelope(error, request_id),
        status=error.status,
        headers={"Content-Type": JSON, "X-Request-Id": request_id, **error.headers},
    )
    if error.status == 408:
        response.force_close()
    return response


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


async def _body(request: web.Request, limits: LimitSettings, unreadable: str) -> str:
    length = request.content_length
    if length is not None and length > limits.max_body_bytes:
        raise _too_large(limits)
    try:
        if request.content.is_eof() and request.content.exception() is None:
            # All of it came with the head, as small bodies do: no need to wait with a deadline.
            body = request.content.read_nowait()
            if len(body) > limits.max_body_bytes:
                raise _too_large(limits)
        else:
            async with asyncio.timeout(limits.body_timeout_ms / 1000):
                body = await request.read()
    except TimeoutError as stalled:
        raise ApiError(408, "request timeout", "request-timeout", retryable=True) from stalled
    except web.HTTPRequestEntityTooLarge as beyond:
        raise _too_large(limits) from beyond
    except (web.RequestPayloadError, HttpProcessingError) as broken:
        raise invalid_body(unreadable) from broken
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise invalid_body(unreadable) from error


def _too_large(limits: LimitSettings) -> ApiError:
    return ApiError(413, f"request body exceeds {limits.max_body_bytes} bytes", "body-too-large")
