"""Ops: endpoints for supervisors and scrapers. They need no token and show no tenant's data."""

from __future__ import annotations

from aiohttp import web

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, authorization
from codeq_cluster.api.schemas.node_views import NotReady, Word
from codeq_cluster.auth import Access, AccessRefused
from codeq_cluster.auth.jwks import KeysUnavailable


async def healthz(call: Call) -> HttpAnswer[Word]:  # noqa: ARG001, every handler takes the call
    """Report that the process serves."""
    return reply(Word("ok"))


async def readyz(call: Call) -> HttpAnswer[Word] | HttpAnswer[NotReady]:
    """Report whether every local group has a leader and is caught up, and name what is missing.

    With an operator's token the reasons are complete, including directories of the machine.
    """
    missing = call.services.broker.missing(in_full=await _asked_by_operator(call))
    if not missing:
        return reply(Word("ready"))
    body = NotReady("not ready", "not-ready", True, call.request_id, missing)
    return reply(body, status=503, headers={"Retry-After": "1"})


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


async def metrics(call: Call) -> web.Response:
    """Return the node's metrics as Prometheus text."""
    return web.Response(
        body=await call.services.metrics.scrapes.text(),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )
