"""Downloads: the artifacts that results name, of the caller's own tenant only."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from urllib.parse import quote

from aiohttp import web

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.http.security_headers import HEADERS
from codeq_cluster.api.routes.artifacts import ArtifactAnswer, answer
from codeq_cluster.api.routes.attachments import INVALID_NAME
from codeq_cluster.artifacts import ArtifactStore, Reading, Stored
from codeq_cluster.artifacts.names import artifact_path, is_name
from codeq_cluster.broker import links
from codeq_cluster.errors import ArtifactMissing, ArtifactStoreFailed

log = logging.getLogger(__name__)

ARTIFACT_NOT_FOUND = ApiError(404, "artifact not found", "not-found")
_PLAIN = re.compile(r"[^A-Za-z0-9 !#$&'()+,.;=@^_`{}~-]")


async def download(call: Call) -> web.StreamResponse:
    """Return an artifact that the task's result names: all of it, or the requested range."""
    store, path, name = await _named(call)
    try:
        stored = await store.head(path)
        said = _said(call, stored, "GET")
        if said.start == said.end:
            return web.Response(status=said.status, headers=_headers(call, said, name))
        reading = store.get(path, start=said.start, end=said.end, etag=stored.etag)
        return await _send(call, reading, said, name)
    except ArtifactMissing as missing:
        raise ARTIFACT_NOT_FOUND from missing


async def describe(call: Call) -> web.StreamResponse:
    """Return the headers of a download without the artifact itself."""
    store, path, name = await _named(call)
    try:
        stored = await store.head(path)
    except ArtifactMissing as missing:
        raise ARTIFACT_NOT_FOUND from missing
    said = _said(call, stored, "HEAD")
    return web.Response(status=said.status, headers=_headers(call, said, name))


def precondition_failed(headers: Mapping[str, str]) -> ApiError:
    """Return the 412."""
    return ApiError(412, "the artifact is another one", "precondition-failed", headers=headers)


def no_such_range(headers: Mapping[str, str]) -> ApiError:
    """Return the 416."""
    return ApiError(416, "the artifact has no such range", "range-not-satisfiable", headers=headers)


async def _named(call: Call) -> tuple[ArtifactStore, str, str]:
    """Return the store, the path in it and the name of the requested artifact."""
    task_id = call.task_id(not_found=ARTIFACT_NOT_FOUND)
    asked = (call.request.match_info["upload"], call.request.match_info["artifact"])
    if not is_name(asked[1]):
        raise INVALID_NAME
    found = await call.services.broker.result(
        call.identity.tenant, task_id, wait_s=0, stale=call.stale(), timeout_s=call.timeout_s
    )
    store = call.services.artifacts
    if store is None or found is None or found[1] is None:
        raise ARTIFACT_NOT_FOUND
    if not any(links.target(each.url, task_id) == asked for each in found[1].artifacts):
        raise ARTIFACT_NOT_FOUND
    return store, artifact_path(call.identity.tenant, task_id, *asked), asked[1]


def _said(call: Call, stored: Stored, method: str) -> ArtifactAnswer:
    """Return the status, the headers and the range of the answer.

    Raises:
        ApiError: 412 or 416.
    """
    said = answer(stored, method=method, headers=call.request.headers)
    if said.status < 400:
        return said
    headers = {name: text for name, text in said.headers.items() if name != "Content-Length"}
    raise precondition_failed(headers) if said.status == 412 else no_such_range(headers)


async def _send(
    call: Call, reading: AbstractAsyncContextManager[Reading], said: ArtifactAnswer, name: str
) -> web.StreamResponse:
    """Send the artifact at the client's pace; the server bounds how long the client may stall."""
    async with reading as opened:
        response = web.StreamResponse(status=said.status, headers=_headers(call, said, name))
        await response.prepare(call.request)
        try:
            async for chunk in opened.chunks:
                await response.write(chunk)
        except ConnectionError:
            return response  # The client is gone.
        except (ArtifactMissing, ArtifactStoreFailed) as error:
            # The status is sent already, so a truncated body is the only way to report the failure.
            log.warning("download cut short", extra={"error": str(error)})
            if call.request.transport is not None:
                call.request.transport.abort()
            return response
        await response.write_eof()
        return response


def _headers(call: Call, said: ArtifactAnswer, name: str) -> dict[str, str]:
    """Return headers with which no browser shows, runs or sniffs what a worker has stored."""
    return {
        **said.headers,
        "X-Request-Id": call.request_id,
        "Content-Disposition": disposition(name),
        **HEADERS,
        "Cache-Control": "private",
        # If a browser shows it after all: no script, no frame, no origin.
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }


def disposition(name: str) -> str:
    """Return the `Content-Disposition` for an artifact, by RFC 6266 and RFC 8187."""
    last = name.rpartition("/")[2]
    return (
        f"attachment; filename=\"{_PLAIN.sub('_', last)}\"; filename*=UTF-8''{quote(last, safe='')}"
    )
