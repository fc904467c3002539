"""Ops: what supervisors and scrapers ask. No token needed, no tenant's data given."""

from __future__ import annotations

from aiohttp import web

from codeq_cluster.api.http.call import Call, authorization, reply
from codeq_cluster.api.schemas.responses import encode
from codeq_cluster.auth import Access, AccessRefused
from codeq_cluster.auth.jwks import KeysUnavailable

_HEALTHY = encode({"status": "ok"})
_READY = encode({"status": "ready"})


async def healthz(call: Call) -> web.Response:  # noqa: ARG001, every handler takes the call
    """Say that the process serves."""
    return reply(_HEALTHY)


async def readyz(call: Call) -> web.Response:
    """Say whether every local group has a leader and is caught up; name what is missing.

    With an operator's token the reasons are told in full, directories of the machine included.
    """
    missing = call.services.broker.missing(in_full=await _asked_by_operator(call))
    if not missing:
        return reply(_READY)
    body = {
        "error": "not ready",
        "code": "not-ready",
        "retryable": True,
        "requestId": call.request_id,
        "missing": missing,
    }
    return reply(encode(body), status=503, headers={"Retry-After": "1"})


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
        # Probes need no token, so one that gives nothing is no reason to refuse the answer.
        return False
    return True


async def metrics(call: Call) -> web.Response:
    """Return the node's metrics as Prometheus text."""
    return web.Response(
        body=await call.services.metrics.scrapes.text(),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )
