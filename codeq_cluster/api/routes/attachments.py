"""Attachments: artifacts in the body of a result, all checked before any is stored."""

from __future__ import annotations

import asyncio
import binascii
from hashlib import blake2b

import msgspec

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, from_rejection, invalid_body
from codeq_cluster.api.http.refusals import too_many
from codeq_cluster.api.schemas import requests
from codeq_cluster.artifacts.names import DEFAULT_CONTENT_TYPE, is_content_type, is_name
from codeq_cluster.broker.values import NewFile
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.task import Artifact
from codeq_cluster.settings import LimitSettings

ARTIFACTS_MAX = 100
_SLICE_CHARS = 256 * 1024  # Decoded in well under a millisecond.

_INVALID = invalid_body("invalid request body")
INVALID_CONTENT = bad_request(
    "invalid artifact content (contentBase64 must be base64)", "invalid-artifact-content"
)
INVALID_NAME = bad_request(
    "invalid artifact name (1 to 255 characters, no empty, '.' or '..' segment, no backslash)",
    "invalid-artifact-name",
)
INVALID_CONTENT_TYPE = bad_request("invalid artifact content type", "invalid-artifact-content-type")
NOT_CONFIGURED = bad_request(
    "artifacts are not configured (set artifacts.provider to local or s3, or send a url)",
    "artifacts-not-configured",
)
NEITHER = bad_request("artifact url or contentBase64 required", "artifact-url-required")
TWICE = bad_request("two artifacts with content have one name", "duplicate-artifact-name")
TOO_MANY_UPLOADS = ApiError(409, "too many uploads of artifacts for this task", "too-many")


async def artifacts_of(call: Call, body: requests.ResultBody) -> tuple[Artifact | NewFile, ...]:
    """Return the artifacts of a result, in their order.

    Raises:
        ApiError: 400 or 413; an artifact is invalid or too large.
    """
    items = body.artifacts or ()
    if len(items) > ARTIFACTS_MAX:
        raise too_many("artifacts", ARTIFACTS_MAX)
    artifacts: list[Artifact | NewFile] = []
    names: set[str] = set()
    for item in items:
        artifact = requests.ARTIFACT.decode(item, error=_INVALID.text)
        name = artifact.name or ""
        if artifact.url:
            artifacts.append(Artifact(name, artifact.url))
            continue
        content = _content(artifact.content_base64)
        if content is None:
            # Ignoring an invalid artifact would silently lose a product.
            raise NEITHER
        if call.services.artifacts is None:
            raise NOT_CONFIGURED
        if not is_name(name):
            raise INVALID_NAME
        if name in names:
            raise TWICE
        names.add(name)
        content_type = content_type_of(artifact.content_type)
        chunks = await _decoded(content, call.services.settings.limits)
        artifacts.append(await _file(name, content_type, chunks))
    return tuple(artifacts)


def content_type_of(given: str | None) -> str:
    """Return the content type of an artifact, or the default when none is given.

    Raises:
        ApiError: 400; the type may not stand in a header.
    """
    if not given:
        return DEFAULT_CONTENT_TYPE
    if not is_content_type(given):
        raise INVALID_CONTENT_TYPE
    return given


def too_large(limits: LimitSettings) -> ApiError:
    """Return the 413 for an artifact."""
    return ApiError(
        413, f"artifact exceeds {limits.max_artifact_bytes} bytes", "artifact-too-large"
    )


def from_refusal(rejected: Rejected, *, not_found: str) -> ApiError:
    """Return the answer for a result or an upload that the broker refused."""
    if rejected.rejection is Rejection.TOO_MANY:
        return TOO_MANY_UPLOADS
    return from_rejection(rejected, not_found=not_found)


def _content(raw: msgspec.Raw) -> str | None:
    """Return the text of a field, None when it is absent or null."""
    try:
        return msgspec.json.decode(raw, type=str | None)
    except msgspec.MsgspecError as malformed:
        raise _INVALID from malformed


async def _decoded(text: str, limits: LimitSettings) -> tuple[bytes, ...]:
    """Decode standard base64; line breaks are allowed, padding is optional.

    Decode in pieces: decoding holds the interpreter lock, even in a thread.
    """
    text = text.replace("\r", "").replace("\n", "")
    digits = text.rstrip("=")
    rest = len(digits) % 4
    if rest == 1 or len(text) - len(digits) > -rest % 4:
        raise INVALID_CONTENT
    if len(digits) * 3 // 4 > limits.max_artifact_bytes:
        raise too_large(limits)
    chunks = []
    try:
        for start in range(0, len(digits), _SLICE_CHARS):
            piece = digits[start : start + _SLICE_CHARS]
            padded = piece + "=" * (-len(piece) % 4)
            chunks.append(binascii.a2b_base64(padded, strict_mode=True))
            if len(piece) == _SLICE_CHARS:
                await asyncio.sleep(0)
    except ValueError as malformed:
        raise INVALID_CONTENT from malformed
    return tuple(chunks)


async def _file(name: str, content_type: str, chunks: tuple[bytes, ...]) -> NewFile:
    digest = blake2b(digest_size=16)
    for chunk in chunks:
        digest.update(chunk)
        if len(chunks) > 1:
            await asyncio.sleep(0)
    return NewFile(name=name, content_type=content_type, chunks=chunks, digest=digest.hexdigest())
