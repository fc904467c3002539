"""Ops: endpoints for supervisors and scrapers. They need no token and show no tenant's data."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import Any

from aiohttp import web
from msgspec import Struct

from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, authorization
from codeq_cluster.auth import Access, AccessRefused
from codeq_cluster.auth.jwks import KeysUnavailable

ROUTES = Routes(__name__, __doc__, Access.OPEN, base="")


class Word(Struct):
    """The node's state in one word."""

    status: str


class NotReady(Struct, rename="camel"):
    """The reasons a node is not ready."""

    error: str
    code: str
    retryable: bool
    request_id: str
    missing: list[str]


@ROUTES("GET", "/healthz", Answer("The process serves.", Word("ok")), replicated=False)
async def healthz(call: Call) -> HttpAnswer[Word]:  # noqa: ARG001, every handler takes the call
    """Report that the process serves."""
    return reply(Word("ok"))


@ROUTES(
    "GET",
    "/readyz",
    Answer("The node is ready.", Word("ready"), body=Word),
    Answer(
        "The node is not ready.",
        NotReady(
            error="not ready",
            code="not-ready",
            retryable=True,
            request_id="0f8fad5b-d9cb-469f-a165-70867728950e",
            missing=["shard 3 has no leader"],
        ),
        status=503,
        body=NotReady,
        headers={"Retry-After": "Time to wait, in seconds."},
    ),
    replicated=False,
)
async def readyz(call: Call) -> HttpAnswer[Word] | HttpAnswer[NotReady]:
    """Report whether every local group has a leader and is caught up, and name what is missing.

    With an operator's token the reasons are complete, including directories of the machine.
    """
    missing = call.services.broker.missing(in_full=await _asked_by_operator(call))
    if not missing:
        return reply(Word("ready"))
    body = NotReady("not ready", "not-ready", True, call.request_id, missing)
    return reply(body, status=503, headers={"Retry-After": "1"})


@ROUTES("GET", "/metrics", Answer("Prometheus text.", media="text/plain"), replicated=False)
async def metrics(call: Call) -> web.Response:
    """Return the node's metrics as Prometheus text."""
    return web.Response(
        body=await call.services.telemetry.metrics.scrapes.text(),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )


async def _asked_by_operator(call: Call) -> bool:
    header = authorization(call.request)
    if header is None:
        return False
    authenticator = call.services.authenticator
    if authenticator.known(header, Access.OPERATOR) is not None:
        return True
    try:
        await authenticator.authenticate(header, Access.OPERATOR)
    except (AccessRefused, KeysUnavailable):
        # Probes need no token, so an invalid token must not be refused here.
        return False
    return True


OPENAPI = Routes(
    "openapi",
    "OpenAPI: the description of this interface, for programs and for people.",
    Access.OPEN,
    base="",
)
DOCUMENT = web.AppKey("openapi", bytes)  # The document of one node, encoded once.

_PAGE = (files("codeq_cluster.api") / "web" / "docs.html").read_bytes()


def _inline(tag: bytes) -> str:
    # Browsers run and style only content with these hashes, whatever is injected into the page.
    [text] = re.findall(b"<%b>(.*?)</%b>" % (tag, tag), _PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"


_PAGE_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_inline(b'script')}; style-src {_inline(b'style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@OPENAPI("GET", "/openapi.json", Answer("This document."), replicated=False)
async def spec(call: Call) -> HttpAnswer[dict[str, Any]]:
    """Describe every route as OpenAPI 3.1."""
    return HttpAnswer(call.request.app[DOCUMENT])


@OPENAPI(
    "GET",
    "/docs",
    Answer(
        "The page.",
        media="text/html",
        headers={
            "Content-Security-Policy": "Allows only what the page itself contains.",
            "Referrer-Policy": "`no-referrer`.",
            "X-Content-Type-Options": "`nosniff`.",
        },
    ),
    replicated=False,
)
async def page(call: Call) -> web.Response:  # noqa: ARG001, every handler takes the call
    """Show the description as a self-contained page."""
    return web.Response(body=_PAGE, headers=_PAGE_HEADERS)
