"""Artifacts: files of a task, sent one by one before its result, and the downloads of them.

A file may be too large for a result's body. A download is of the caller's own tenant only.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from urllib.parse import quote

from aiohttp import web
from msgspec import Struct

from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.parameters import header
from codeq_cluster.api.declared.wide import INT64, Int64
from codeq_cluster.api.http.answer import HEADERS, HttpAnswer, reply
from codeq_cluster.api.http.bodies import pieces
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, invalid_body
from codeq_cluster.api.http.refusals import STALLED, TASK_NOT_FOUND
from codeq_cluster.api.routes.reads import CONSISTENCY
from codeq_cluster.api.routes.results import (
    INVALID_NAME,
    NOT_CONFIGURED,
    SCOPE,
    STORE_FAILED,
    UPLOAD_REFUSED,
    content_type_of,
    from_refusal,
    too_large,
)
from codeq_cluster.api.routes.task_views import TASK_ID
from codeq_cluster.api.routes.workers import INVALID_TOKEN, NOT_HELD, lease_token
from codeq_cluster.artifacts import ArtifactStore, Reading, Stored
from codeq_cluster.artifacts.names import artifact_path, is_name
from codeq_cluster.auth import Access
from codeq_cluster.broker import links
from codeq_cluster.core.outcomes import Rejected
from codeq_cluster.errors import ArtifactMissing, ArtifactStoreFailed, ArtifactTooLarge

log = logging.getLogger(__name__)

UPLOADS = Routes(
    "uploads",
    "Uploads: artifacts too large for a result's body, sent one by one before it.",
    Access.WORKER,
)
DOWNLOADS = Routes(
    "downloads",
    "Downloads: the artifacts that results name, of the caller's own tenant only.",
    Access.TENANT,
)

ARTIFACT_NOT_FOUND = ApiError(404, "artifact not found", "not-found")
_PLAIN = re.compile(r"[^A-Za-z0-9 !#$&'()+,.;=@^_`{}~-]")
_UNREADABLE = "invalid body"


class UploadView(Struct):
    """A stored artifact; a result names it by `name` and `url`."""

    name: str
    url: str
    size: Int64
    etag: str


def precondition_failed(headers: Mapping[str, str]) -> ApiError:
    """Return the 412."""
    return ApiError(412, "the artifact is another one", "precondition-failed", headers=headers)


def no_such_range(headers: Mapping[str, str]) -> ApiError:
    """Return the 416."""
    return ApiError(416, "the artifact has no such range", "range-not-satisfiable", headers=headers)


_ETAG = '"9a0364b9e99bb480dd25e1f0284c8555"'
_CONTENT_HEADERS = {
    "ETag": "Tag of the artifact's content.",
    "Accept-Ranges": "`bytes`.",
    "Content-Disposition": "`attachment`, with the last part of the name.",
    "Content-Security-Policy": "Keeps browsers from running the content.",
}
_ANY_TYPE = "*/*"  # The one that came with the artifact.
_UNCHANGED = Answer(
    "The caller's copy is current.", status=304, headers={"ETag": _CONTENT_HEADERS["ETag"]}
)
_PART_HEADERS = {**_CONTENT_HEADERS, "Content-Range": "First and last byte, and the size."}
_CONDITIONS = tuple(
    header(name, "RFC 9110.") for name in ("If-Match", "If-None-Match", "Range", "If-Range")
)
_REFUSED = (
    INVALID_NAME,
    ARTIFACT_NOT_FOUND,
    precondition_failed({"ETag": _ETAG}),
    STORE_FAILED,
)


@UPLOADS(
    "PUT",
    "/tasks/{id}/artifacts/{artifact}",
    Answer(
        "The stored artifact; the result must name it by this `name` and `url`.",
        UploadView(
            name="thumbnail.png",
            url=f"/v1/codeq/tasks/{TASK_ID}/artifacts/5f0c4a2e9b7d4c1f/thumbnail.png",
            size=20480,
            etag=_ETAG,
        ),
        status=201,
        headers={"Location": "The artifact's URL."},
    ),
    scope=SCOPE,
    binary=True,
    parameters=(
        header(
            "X-CodeQ-Lease-Token",
            "The claim's `leaseToken`; a stale one is refused.",
            INVALID_TOKEN,
            type="integer",
            **INT64,
        ),
    ),
    errors=(*UPLOAD_REFUSED, TASK_NOT_FOUND, *NOT_HELD, invalid_body(_UNREADABLE), STALLED),
)
async def upload(call: Call) -> HttpAnswer[UploadView]:
    """Store an artifact of a task the caller holds; the body is its content, of any type.

    The result must name it by the URL in the answer; otherwise it is deleted when the task ends.
    """
    task_id = call.task_id(not_found=TASK_NOT_FOUND)
    name = call.request.match_info["artifact"]
    if not is_name(name):
        raise INVALID_NAME
    content_type = content_type_of(call.request.headers.get("Content-Type"))
    token = lease_token(call, None)
    if call.services.artifacts is None:
        raise NOT_CONFIGURED
    settings = call.services.settings
    limits = settings.limits
    length = call.request.content_length
    if length is not None and length > limits.max_artifact_bytes:
        raise too_large(settings)
    try:
        uploaded = await call.services.broker.upload(
            call.identity.tenant,
            call.identity.subject,
            task_id,
            name=name,
            content_type=content_type,
            size_max=limits.max_artifact_bytes if length is None else length,
            chunks=pieces(call.request, limits, _UNREADABLE),
            token=token,
            timeout_s=call.timeout_s,
        )
    except ArtifactTooLarge as error:
        raise too_large(settings) from error
    if isinstance(uploaded, Rejected):
        raise from_refusal(uploaded, not_found=TASK_NOT_FOUND.text)
    view = UploadView(uploaded.name, uploaded.url, uploaded.size, uploaded.etag)
    return reply(view, status=201, headers={"Location": uploaded.url})


@DOWNLOADS(
    "GET",
    "/tasks/{id}/artifacts/{upload}/{artifact}",
    Answer("The artifact.", media=_ANY_TYPE, headers=_CONTENT_HEADERS),
    Answer("The range.", status=206, media=_ANY_TYPE, headers=_PART_HEADERS),
    _UNCHANGED,
    parameters=(CONSISTENCY, *_CONDITIONS),
    errors=(*_REFUSED, no_such_range({"Content-Range": "bytes */20480"})),
    stale=True,
)
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


@DOWNLOADS(
    "HEAD",
    "/tasks/{id}/artifacts/{upload}/{artifact}",
    Answer("The artifact is there.", media="", headers=_CONTENT_HEADERS),
    _UNCHANGED,
    parameters=(CONSISTENCY, *_CONDITIONS[:2]),
    errors=_REFUSED,
    stale=True,
)
async def describe(call: Call) -> web.StreamResponse:
    """Return the headers of a download without the artifact itself."""
    store, path, name = await _named(call)
    try:
        stored = await store.head(path)
    except ArtifactMissing as missing:
        raise ARTIFACT_NOT_FOUND from missing
    said = _said(call, stored, "HEAD")
    return web.Response(status=said.status, headers=_headers(call, said, name))


async def _named(call: Call) -> tuple[ArtifactStore, str, str]:
    """Return the store, the path in it and the name of the requested artifact."""
    task_id = call.task_id(not_found=ARTIFACT_NOT_FOUND)
    asked = (call.request.match_info["upload"], call.request.match_info["artifact"])
    if not is_name(asked[1]):
        raise INVALID_NAME
    found = await call.services.broker.result(
        call.identity.tenant, task_id, stale=call.stale(), timeout_s=call.timeout_s
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


_RANGE = re.compile(r"bytes=[ \t]*(\d*)-(\d*)[ \t]*", re.IGNORECASE | re.ASCII)
_ETAGS = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
# A longer number is past the end of any artifact, and Python refuses to parse thousands of digits.
_DIGITS_MAX = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactAnswer:
    """The answer to a request for an artifact.

    Attributes:
        headers: The headers that describe the content, with `Content-Length`.
        start: First byte of the body.
        end: One past its last byte; equal to `start` when the answer has no body.
    """

    status: int
    headers: Mapping[str, str]
    start: int = 0
    end: int = 0


def answer(stored: Stored, *, method: str, headers: Mapping[str, str]) -> ArtifactAnswer:
    """Return the answer to a GET or a HEAD.

    Preconditions come before the range (RFC 9110 section 13.2.2). A range is ignored when it is
    malformed, has several parts or belongs to another version; the answer is then the whole
    artifact.

    Args:
        method: `GET` or `HEAD`.
        headers: Of the request; names in any case.
    """
    assert method in {"GET", "HEAD"}, "no other method has a route"
    asked = {name.lower(): value for name, value in headers.items()}
    known = {"ETag": stored.etag} if stored.etag else {}
    if "if-match" in asked and not _names(asked["if-match"], stored.etag, strongly=True):
        return ArtifactAnswer(status=412, headers=known | {"Content-Length": "0"})
    if "if-none-match" in asked and _names(asked["if-none-match"], stored.etag, strongly=False):
        return ArtifactAnswer(status=304, headers=known)
    known |= {"Accept-Ranges": "bytes"}
    span = None
    if method == "GET" and "range" in asked and _is_current(asked, stored.etag):
        span = _span(asked["range"], stored.size)
    if span is None:
        whole = {"Content-Type": stored.content_type, "Content-Length": str(stored.size)}
        end = stored.size if method == "GET" else 0
        return ArtifactAnswer(status=200, headers=known | whole, end=end)
    start, end = span
    if start >= end:
        unsatisfied = {"Content-Range": f"bytes */{stored.size}", "Content-Length": "0"}
        return ArtifactAnswer(status=416, headers=known | unsatisfied)
    part = {
        "Content-Type": stored.content_type,
        "Content-Length": str(end - start),
        "Content-Range": f"bytes {start}-{end - 1}/{stored.size}",
    }
    return ArtifactAnswer(status=206, headers=known | part, start=start, end=end)


def _names(header: str, etag: str, *, strongly: bool) -> bool:
    """Return whether a list of etags has this one; a weak etag never matches."""
    if header.strip() == "*":
        return True
    if not etag or (strongly and etag.startswith("W/")):
        return False
    opaque = etag.removeprefix("W/")
    return any(
        found[1] == opaque and not (strongly and found[0].startswith("W/"))
        for found in _ETAGS.finditer(header)
    )


def _is_current(asked: Mapping[str, str], etag: str) -> bool:
    """Return whether `If-Range` allows the range; a date never does, artifacts have none."""
    condition = asked.get("if-range")
    if condition is None:
        return True
    return bool(etag) and not etag.startswith("W/") and condition.strip() == etag


def _span(header: str, size: int) -> tuple[int, int] | None:
    """Read a `Range`.

    Returns:
        First byte and one past the last, equal or crossed for an empty range; None when the header
        is ignored.
    """
    found = _RANGE.fullmatch(header.strip())
    if found is None:
        return None
    first, last = (_number(text) for text in found.groups())
    if first is None:
        if last is None or (last > 0 and size == 0):
            # A suffix range of an empty artifact is the whole artifact: Content-Range cannot
            # express it.
            return None
        return (max(0, size - last), size)
    if last is not None and last < first:
        return None
    return (first, size if last is None else min(last + 1, size))


def _number(text: str) -> int | None:
    """Return the number, or None for no digits; an overlong one exceeds any size."""
    digits = text.lstrip("0")
    if not text:
        return None
    return int(digits or "0") if len(digits) <= _DIGITS_MAX else 10**_DIGITS_MAX
