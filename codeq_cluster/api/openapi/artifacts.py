"""Artifacts: the requests and answers of their handlers."""

from __future__ import annotations

from codeq_cluster.api.http.errors import ApiError, from_failure, from_rejection, invalid_body
from codeq_cluster.api.http.refusals import INVALID_CONSISTENCY, STALLED, TASK_NOT_FOUND
from codeq_cluster.api.openapi.examples import TASK_ID
from codeq_cluster.api.openapi.parameters import header
from codeq_cluster.api.openapi.types import (
    BodyFields,
    DescribedAnswer,
    DescribedOperation,
    Fields,
    Operations,
    said,
)
from codeq_cluster.api.routes import attachments, downloads, uploads, workers
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.task_views import UploadView
from codeq_cluster.artifacts.names import DEFAULT_CONTENT_TYPE, NAME_CHARS_MAX
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.errors import ArtifactStoreFailed
from codeq_cluster.settings import LimitSettings

_ANY_TYPE = "*/*"  # The one that came with the artifact.
_STORE_FAILED = from_failure(ArtifactStoreFailed())
_CONTENT_HEADERS = {
    "ETag": "Tag of the artifact's content.",
    "Accept-Ranges": "`bytes`.",
    "Content-Disposition": "`attachment`, with the last part of the name.",
    "Content-Security-Policy": "Keeps browsers from running the content.",
}
_ETAG = '"9a0364b9e99bb480dd25e1f0284c8555"'
_UPLOADED = UploadView(
    name="thumbnail.png",
    url=f"/v1/codeq/tasks/{TASK_ID}/artifacts/5f0c4a2e9b7d4c1f/thumbnail.png",
    size=20480,
    etag=_ETAG,
)
# The task is not the caller's, or no longer.
NOT_HELD = tuple(
    from_rejection(Rejected(each))
    for each in (Rejection.NOT_OWNER, Rejection.NOT_IN_PROGRESS, Rejection.LEASE_LOST)
)


def operations(limits: LimitSettings) -> Operations:
    """Return the description of the artifacts' handlers within these limits."""
    conditions = tuple(
        header(name, "RFC 9110.") for name in ("If-Match", "If-None-Match", "Range", "If-Range")
    )
    unchanged = DescribedAnswer("The caller's copy is current.", status=304)
    reading = (
        attachments.INVALID_NAME,
        INVALID_CONSISTENCY,
        downloads.ARTIFACT_NOT_FOUND,
        downloads.precondition_failed({"ETag": _ETAG}),
        _STORE_FAILED,
    )
    return {
        uploads.upload: DescribedOperation(
            DescribedAnswer(
                "The stored artifact; the result must name it by this `name` and `url`.",
                _UPLOADED,
                status=201,
                headers={"Location": "The artifact's URL."},
            ),
            binary=True,
            parameters=(
                header(
                    "X-CodeQ-Lease-Token",
                    "The claim's `leaseToken`; a stale one is refused.",
                    "integer",
                ),
            ),
            errors=(
                *_upload_errors(limits),
                TASK_NOT_FOUND,
                *NOT_HELD,
                workers.INVALID_TOKEN,
                invalid_body(),
                STALLED,
            ),
        ),
        downloads.download: DescribedOperation(
            DescribedAnswer("The artifact.", media=_ANY_TYPE, headers=_CONTENT_HEADERS),
            DescribedAnswer("The range.", status=206, media=_ANY_TYPE, headers=_CONTENT_HEADERS),
            unchanged,
            parameters=conditions,
            errors=(*reading, downloads.no_such_range({"Content-Range": "bytes */20480"})),
        ),
        downloads.describe: DescribedOperation(
            DescribedAnswer("The artifact is there.", media="", headers=_CONTENT_HEADERS),
            unchanged,
            parameters=conditions[:2],
            errors=reading,
        ),
    }


def result_errors(limits: LimitSettings) -> tuple[ApiError, ...]:
    """Return the refusals of a result that its artifacts can cause."""
    return (
        attachments.NEITHER,
        attachments.TWICE,
        attachments.INVALID_CONTENT,
        *_upload_errors(limits),
    )


def fields(limits: LimitSettings) -> BodyFields:
    """Return the description of an artifact's fields beyond its type, within these limits."""
    return {
        requests.ArtifactBody: Fields(
            one_of=("url", "contentBase64"),
            known={
                "name": said(
                    "Name of the artifact; with content, 1 to "
                    f"{NAME_CHARS_MAX} characters, and unique in the result."
                ),
                "url": said("URL of the artifact, if another system stores it.", minLength=1),
                "contentBase64": said(
                    "The content, if there is no `url`: at most "
                    f"{limits.max_artifact_bytes} bytes. The broker stores it and returns its URL.",
                    type=["string", "null"],
                ),
                "contentType": said(
                    f"Media type of the content; `{DEFAULT_CONTENT_TYPE}` when absent."
                ),
            },
        )
    }


def _upload_errors(limits: LimitSettings) -> tuple[ApiError, ...]:
    return (
        attachments.INVALID_NAME,
        attachments.INVALID_CONTENT_TYPE,
        attachments.NOT_CONFIGURED,
        attachments.TOO_MANY_UPLOADS,
        attachments.too_large(limits),
        _STORE_FAILED,
    )
