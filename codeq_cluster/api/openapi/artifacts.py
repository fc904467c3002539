"""Artifacts: what their handlers take and answer."""

from __future__ import annotations

from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure, from_rejection
from codeq_cluster.api.http.middleware import Handler
from codeq_cluster.api.openapi.types import DescribedAnswer, DescribedOperation, Fields, Parameter
from codeq_cluster.api.routes import attachments, downloads, uploads
from codeq_cluster.artifacts.names import DEFAULT_CONTENT_TYPE, NAME_CHARS_MAX
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.errors import ArtifactStoreFailed
from codeq_cluster.settings import LimitSettings, NodeSettings

_ANY_TYPE = "*/*"  # The one that came with the artifact.
_STORE_FAILED = from_failure(ArtifactStoreFailed())
_CONTENT_HEADERS = {
    "ETag": "Of the artifact.",
    "Accept-Ranges": "`bytes`.",
    "Content-Disposition": "`attachment`, with the last part of the name.",
    "Content-Security-Policy": "Lets no browser run what was stored.",
}
_ETAG = '"9a0364b9e99bb480dd25e1f0284c8555"'
_UPLOADED = {
    "name": "thumbnail.png",
    "url": (
        "/v1/codeq/tasks/0c8a2f4e-6d1b-4f7a-9b3c-5e2d8f1a7c60/artifacts/5f0c4a2e9b7d4c1f/"
        "thumbnail.png"
    ),
    "size": 20480,
    "etag": _ETAG,
}


def operations(settings: NodeSettings) -> dict[Handler, DescribedOperation]:
    """Return what the handlers of artifacts take and answer."""
    gone = ApiError(404, "artifact not found", "not-found")
    inconsistent = bad_request(
        "invalid 'consistency' (use linearizable or stale)", "invalid-consistency"
    )
    changed = downloads.precondition_failed({"ETag": _ETAG})
    reading = (
        attachments.INVALID_NAME,
        inconsistent,
        gone,
        changed,
        _STORE_FAILED,
    )
    unchanged = DescribedAnswer(status=304, text="The caller's copy is current.", media="")
    conditions = _parameters("If-Match", "If-None-Match", "Range", "If-Range")
    return {
        uploads.upload: DescribedOperation(
            binary=True,
            parameters=(
                Parameter(
                    name="X-CodeQ-Lease-Token",
                    place="header",
                    text="The claim's `leaseToken`; a stale one is refused.",
                    schema={"type": "integer"},
                ),
            ),
            answers=(
                DescribedAnswer(
                    status=201,
                    text="It is stored; the result is to name it so.",
                    example=_UPLOADED,
                    headers={"Location": "The URL once more."},
                ),
            ),
            errors=(
                *_upload_errors(settings.limits),
                from_rejection(Rejected(Rejection.NOT_FOUND), not_found="task not found"),
                *map(
                    from_rejection,
                    (
                        Rejected(Rejection.NOT_OWNER),
                        Rejected(Rejection.NOT_IN_PROGRESS),
                        Rejected(Rejection.LEASE_LOST),
                    ),
                ),
                bad_request(
                    "invalid 'X-CodeQ-Lease-Token' (use an integer)", "invalid-lease-token"
                ),
                bad_request("invalid body", "invalid-body"),
                ApiError(408, "request timeout", "request-timeout", retryable=True),
            ),
        ),
        downloads.download: DescribedOperation(
            parameters=conditions,
            answers=(
                DescribedAnswer(text="The artifact.", media=_ANY_TYPE, headers=_CONTENT_HEADERS),
                DescribedAnswer(
                    status=206, text="The range.", media=_ANY_TYPE, headers=_CONTENT_HEADERS
                ),
                unchanged,
            ),
            errors=(*reading, downloads.no_such_range({"Content-Range": "bytes */20480"})),
        ),
        downloads.describe: DescribedOperation(
            parameters=conditions[:2],
            answers=(
                DescribedAnswer(text="The artifact is there.", media="", headers=_CONTENT_HEADERS),
                unchanged,
            ),
            errors=reading,
        ),
    }


def result_errors(limits: LimitSettings) -> tuple[ApiError, ...]:
    """Return what a result may be refused for because of its artifacts."""
    return (
        attachments.NEITHER,
        attachments.TWICE,
        attachments.INVALID_CONTENT,
        *_upload_errors(limits),
    )


def fields(settings: NodeSettings) -> Fields:
    """Return what the type of an artifact in a result does not say."""
    bytes_max = settings.limits.max_artifact_bytes
    return Fields(
        one_of=("url", "contentBase64"),
        known={
            "name": {
                "description": "What the product is called; with content, 1 to "
                f"{NAME_CHARS_MAX} characters, and no other's name."
            },
            "url": {"description": "Where it is.", "minLength": 1},
            "contentBase64": {
                "description": "The product itself, when there is no `url`: at most "
                f"{bytes_max} bytes. It is stored, and named by a URL of this broker.",
                "type": ["string", "null"],
            },
            "contentType": {
                "description": f"Of the content; `{DEFAULT_CONTENT_TYPE}` unless said."
            },
        },
    )


def _upload_errors(limits: LimitSettings) -> tuple[ApiError, ...]:
    return (
        attachments.INVALID_NAME,
        attachments.INVALID_CONTENT_TYPE,
        attachments.NOT_CONFIGURED,
        attachments.TOO_MANY_UPLOADS,
        attachments.too_large(limits),
        _STORE_FAILED,
    )


def _parameters(*names: str) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(name=name, place="header", text="RFC 9110.", schema={"type": "string"})
        for name in names
    )
