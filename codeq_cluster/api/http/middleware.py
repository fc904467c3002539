"""Middleware: the steps around every handler, in one wrapper because each layer costs time.

In order: request id, caller, body, the tenant's turn, handler, error envelope, metrics.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from aiohttp import web

from codeq_cluster.api.http.answer import HttpAnswer, Refusal
from codeq_cluster.api.http.bodies import check_values, result_bytes_max
from codeq_cluster.api.http.call import CONSISTENCY, LINEARIZABLE, Asked, Call, authorization
from codeq_cluster.api.http.callers import is_served, told
from codeq_cluster.api.http.errors import (
    ApiError,
    Envelope,
    auth_unavailable,
    bad_request,
    envelope,
    from_access,
    from_failure,
)
from codeq_cluster.api.http.refusals import NEVER_STALE, repeated, unknown_name
from codeq_cluster.api.http.services import Services
from codeq_cluster.api.http.strangers import BODY_BYTES_MAX, Strangers
from codeq_cluster.api.http.whole_requests import Whole
from codeq_cluster.auth import Access, AccessRefused, Authenticator, Identity
from codeq_cluster.auth.jwks import KeysUnavailable
from codeq_cluster.errors import CodeqError
from codeq_cluster.fair_turns import GUEST, FairTurns
from codeq_cluster.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

# Not the generator of the program, whose draws are its own.
_random = Random()  # noqa: S311, it names requests, and guards nothing
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NOBODY = Identity(subject="", tenant="", scopes=frozenset(), event_types=(), roles=frozenset())
_WRONG_HOST = ApiError(
    421, "this host name is not served: use an IP address, or add it to allowedHosts", "wrong-host"
)
_NOT_UTF8 = bad_request("bad request", "bad-request").because(
    "percent-encode the path and the query as UTF-8"
)
# Callers that need no token take turns as one holder, so many addresses have no more turns than a
# tenant. So do operators, who are needed most when their own tenant floods a node.
_TOGETHER = {Access.OPEN: f"{GUEST}strangers", Access.OPERATOR: f"{GUEST}operators"}
# A request takes another unit of the room for requests for each of these in its body.
_UNIT_BYTES = 4096
_CLIENT_GONE = 499  # No answer is sent; only the metric shows this status.
# Of a caller without identity: its token or session is refused, or its log-in. Not 403: its token
# is valid.
_UNPROVED = frozenset((400, 401, 413, 415, 429))

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
        queries: Names of the parameters in its query, and whether they may be repeated; None if
            others are ignored.
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
    queries: Mapping[str, bool] | None = None


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
        admit: Identifies the caller, or refuses; None to use the route's access and the bearer
            token.
    """
    access, unreadable = route.access, route.unreadable
    admitted = _admission(route, services, admit)
    # Who sent a whole request, if the caller was admitted before and no other rule is left.
    known = partial(services.authenticator.known, access=access, scope=route.scope)
    recognised = _nobody if services.settings.allowed_hosts else known
    in_turn = _in_turn(route, services)
    handler = _with_body(route, services, in_turn) if unreadable else in_turn
    observe = services.telemetry.metrics.http.observe
    access_log = services.telemetry.access_log
    turns = services.shares.turns
    monotonic, current_task = time.monotonic, asyncio.current_task

    async def handle(asked: Asked) -> web.StreamResponse | HttpAnswer[Any]:
        started_s, request_id = monotonic(), request_id_of(asked)
        identity, status = _NOBODY, _CLIENT_GONE
        try:
            if isinstance(asked, Whole):
                identity = recognised(asked.headers.get("authorization")) or await admitted(asked)
                # A body in one piece is too small to count against the room for bodies.
                call = Call(asked, services, identity, asked.text(unreadable), request_id)
                # As `_in_turn` does, without a layer.
                task, units = current_task(), 1 + len(call.text) // _UNIT_BYTES
                assert task is not None
                try:
                    if not turns.begin(task, identity.tenant, units):
                        await _wait_for_turn(
                            turns,
                            task,
                            call,
                            units,
                            holder=identity.tenant,
                            member=identity.subject,
                        )
                    response = await route.handler(call)
                finally:
                    turns.end(task)
            else:
                identity = await admitted(asked)
                _check_target(asked, route)
                response = await handler(Call(asked, services, identity, "", request_id))
            status = response.status
        except ConnectionError:
            raise  # The client disconnected, and the server must see the error.
        except Exception as error:  # noqa: BLE001 - `_failed` logs what is a bug
            response = _failed(
                error,
                asked,
                request_id,
                route=route.path,
                identity=identity,
                services=services,
            )
            status = response.status
        finally:
            took_s = monotonic() - started_s
            observe(took_s, route.path, route.method, status)
            if access_log.writes:
                access_log.answered(
                    asked,
                    request_id,
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

    tracing = services.telemetry.tracing
    # Open routes are not traced: probes and scrapers would bury all other spans.
    return handle if tracing is None or access is Access.OPEN else _traced(route, handle, tracing)


def _failed(
    error: Exception,
    asked: Asked,
    request_id: str,
    *,
    route: str,
    identity: Identity,
    services: Services,
) -> HttpAnswer[Envelope]:
    """Return the answer to a request that was refused, or failed for a bug, and log why."""
    if not isinstance(error, ApiError | AccessRefused | CodeqError):
        # The caller still gets an envelope, which says that the outcome is unknown.
        log.error(
            "handler failed",
            extra={"route": route, "request_id": request_id, "tenant": identity.tenant},
            exc_info=error,
        )
        bug = ApiError(500, "internal error", "internal", retryable=False)
        return error_answer(bug, request_id)
    if isinstance(error, AccessRefused):
        services.telemetry.access_log.refused(
            asked,
            request_id,
            route=route,
            status=error.status,
            reason=error.reason or error.text,
        )
    # A refusal may be a constant, which would keep the frames of every request it refused.
    error.with_traceback(None)
    answer = error_answer(_answer(error), request_id)
    if identity is _NOBODY and answer.status in _UNPROVED:
        return Refusal(answer, services.shares.strangers.caller(asked))
    return answer


def _admission(route: Route, services: Services, admit: Admitting | None) -> _AdmittingAny:
    """Return what identifies the callers of a route, or refuses them."""
    # A route with its own admission gets only requests that aiohttp read.
    admitted = (
        cast("_AdmittingAny", admit)
        if admit
        else _by_token(route, services.authenticator, services.shares.strangers)
    )
    hosts = services.settings.allowed_hosts
    return _at_its_host(admitted, hosts) if hosts else admitted


def _nobody(_authorization: str | None) -> Identity | None:
    """Recognise nobody."""
    return None


def _at_its_host(admitted: _AdmittingAny, names: tuple[str, ...]) -> _AdmittingAny:
    """Return an admission that first refuses requests to any other host name."""

    async def admit(asked: Asked) -> Identity:
        if not is_served(told(asked, "host"), names):
            raise _WRONG_HOST
        return await admitted(asked)

    return admit


def _by_token(route: Route, authenticator: Authenticator, strangers: Strangers) -> _AdmittingAny:
    """Return an admission by bearer token, for the route's access and scope."""
    access, scope = route.access, route.scope

    async def admit(asked: Asked) -> Identity:
        if access is Access.OPEN:
            return _NOBODY
        header = authorization(asked)
        identity = authenticator.known(header, access)
        if identity is None:
            with strangers.verifying.one(strangers.caller(asked)):
                identity = await authenticator.authenticate(header, access)
        if scope and scope not in identity.scopes:
            raise ApiError(403, "missing scope", "forbidden")
        return identity

    return admit


def _in_turn(route: Route, services: Services) -> Handler:
    """Return the route's handler, which begins when it is the caller's turn.

    The turns are the tenant's, or those of `_TOGETHER`. Within them users take turns, and callers
    that need no token do by address.
    """
    handler, current_task = route.handler, asyncio.current_task
    turns, caller_of = services.shares.turns, services.shares.strangers.caller
    together, is_open = _TOGETHER.get(route.access), route.access is Access.OPEN

    async def handle(call: Call) -> web.StreamResponse | HttpAnswer[Any]:
        task, units = current_task(), 1 + len(call.text) // _UNIT_BYTES
        assert task is not None
        holder = together or call.identity.tenant
        try:
            if not turns.begin(task, holder, units):
                member = caller_of(call.request) if is_open else call.identity.subject
                await _wait_for_turn(turns, task, call, units, holder=holder, member=member)
            return await handler(call)
        finally:
            turns.end(task)

    return handle


async def _wait_for_turn(
    turns: FairTurns, task: asyncio.Task[Any], call: Call, units: int, *, holder: str, member: str
) -> None:
    """Wait until a call may begin; its answer is due as if it had not waited.

    A connection has one call at a time, so at most `limits.connectionsMax` wait.
    """
    within_s = call.timeout_s / 2
    call.timeout_s -= await turns.turn(task, holder, units, member=member, within_s=within_s)


def _with_body(route: Route, services: Services, handler: Handler) -> Handler:
    """Return a handler that reads its body within its caller's share of a room."""
    bodies, strangers = services.shares.bodies, services.shares.strangers
    settings = services.settings
    bytes_max = result_bytes_max(settings) if route.large else settings.limits.max_body_bytes

    async def handle(call: Call) -> web.StreamResponse | HttpAnswer[Any]:
        with bodies.of(call.identity.tenant) as body:
            call.text = await body.text(call.request, route.unreadable, bytes_max=bytes_max)
            if route.large:
                check_values(call.text, settings.limits.max_body_bytes)
            return await handler(call)

    async def handle_stranger(call: Call) -> web.StreamResponse | HttpAnswer[Any]:
        holder = strangers.caller(call.request)
        with bodies.of(holder, room=strangers.bytes) as body:
            call.text = await body.text(call.request, route.unreadable, bytes_max=BODY_BYTES_MAX)
            return await handler(call)

    return handle_stranger if route.access is Access.OPEN else handle


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
    return f"{_random.getrandbits(128):032x}"


def new_request_id() -> str:
    """Return a new request id, for a caller that gave none."""
    return f"{_random.getrandbits(128):032x}"


def error_answer(error: ApiError, request_id: str) -> HttpAnswer[Envelope]:
    """Render an error answer."""
    return HttpAnswer(
        envelope(error, request_id),
        status=error.status,
        headers=error.headers,
        request_id=request_id,
    )


def _check_target(request: web.Request, route: Route) -> None:
    """Refuse what the route would silently ignore, or take for another name.

    Examples are a misspelt `dryRun`, and `caf%e9`. Every route may be asked for linearizable reads.
    """
    if "%" in request.raw_path:
        try:
            unquote_to_bytes(request.raw_path).decode()
        except UnicodeDecodeError as error:
            raise _NOT_UTF8 from error
    if not request.query_string:
        return
    asked, known = request.query, route.queries
    if not route.stale and asked.get(CONSISTENCY, "") not in ("", LINEARIZABLE):
        raise NEVER_STALE
    if known is None:
        return
    for name, times in Counter(name for name, _ in asked.items()).items():
        if name not in known and name != CONSISTENCY:
            raise unknown_name(name, tuple(known))
        if times > 1 and not known.get(name):
            raise repeated(name)


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
