"""Results: ending tasks, with artifacts that are all checked before any is stored."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Sequence
from hashlib import blake2b

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.api.declared.bodies import (
    Body,
    Refusal,
    Schema,
    field,
    json_text,
    raw_field,
    whole,
)
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, is_task_id
from codeq_cluster.api.http.errors import (
    ApiError,
    bad_request,
    from_failure,
    from_rejection,
    invalid_body,
)
from codeq_cluster.api.http.refusals import (
    INVALID_STATUS,
    TASK_NOT_FOUND,
    batch_too_large,
    budget_exceeded,
    too_many,
)
from codeq_cluster.api.routes import workers
from codeq_cluster.api.routes.follow_ups import next_field, read_next, spend_on_next
from codeq_cluster.api.routes.task_views import (
    ANY_JSON,
    CLAIMED,
    RESULT,
    TASK_ID,
    TOO_LARGE,
    ResultView,
    items_field,
    result_view,
)
from codeq_cluster.api.routes.workers import LEASE_TOKEN, LEASE_TOKEN_FIELD, NOT_HELD, lease_token
from codeq_cluster.artifacts.names import (
    DEFAULT_CONTENT_TYPE,
    NAME_CHARS_MAX,
    is_content_type,
    is_name,
)
from codeq_cluster.auth import Access
from codeq_cluster.broker.requests.producer import too_many_queues
from codeq_cluster.broker.values import NewFile, NewResult
from codeq_cluster.core.outcomes import Rejected, Rejection, Submitted
from codeq_cluster.core.task import ARTIFACTS_MAX, Artifact
from codeq_cluster.errors import ArtifactStoreFailed, CodeqError
from codeq_cluster.settings import NodeSettings

_SLICE_CHARS = 256 * 1024  # Decoded in well under a millisecond.

SCOPE = "codeq:result"
ROUTES = Routes("workers", workers.__doc__, Access.WORKER)

RESULT_REQUIRED = bad_request("result required when status=COMPLETED", "result-required")
ERROR_REQUIRED = bad_request("error required when status=FAILED", "error-required")
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
STORE_FAILED = from_failure(ArtifactStoreFailed())
_INVALID = invalid_body("invalid request body")


def result_too_large(node: NodeSettings) -> ApiError:
    """Return the 413 for a result."""
    return ApiError(413, f"result exceeds {node.limits.max_result_bytes} bytes", "result-too-large")


def error_too_large(node: NodeSettings) -> ApiError:
    """Return the 413 for the error of a failed task."""
    return ApiError(413, f"error exceeds {node.limits.max_error_bytes} bytes", "error-too-large")


def too_large(node: NodeSettings) -> ApiError:
    """Return the 413 for an artifact."""
    return ApiError(
        413, f"artifact exceeds {node.limits.max_artifact_bytes} bytes", "artifact-too-large"
    )


UPLOAD_REFUSED: tuple[Refusal, ...] = (
    INVALID_NAME,
    INVALID_CONTENT_TYPE,
    NOT_CONFIGURED,
    TOO_MANY_UPLOADS,
    too_large,
    budget_exceeded("storedBytes", "upload"),
    STORE_FAILED,
)


class ArtifactBody(Body):
    """A product of a task."""

    name: str | None = field(
        f"Name of the artifact; with content, 1 to {NAME_CHARS_MAX} characters, and unique in the "
        "result."
    )
    url: str | None = field("URL of the artifact, if another system stores it.", minLength=1)
    content_base64: Raw = raw_field(
        "The content, if there is no `url`: at most {node.limits.max_artifact_bytes} bytes. The "
        "broker stores it and returns its URL.",
        type=["string", "null"],
    )
    content_type: str | None = field(
        f"Media type of the content; `{DEFAULT_CONTENT_TYPE}` when absent."
    )


_ARTIFACT = Schema(ArtifactBody, refusal="invalid request body", one_of=("url", "contentBase64"))


class ResultBody(Body):
    """A result; `task_id` matters only to the batch route."""

    status: str | None = field(
        "How the task ended.",
        required=True,
        refused=(INVALID_STATUS,),
        enum=["COMPLETED", "FAILED"],
    )
    result: Raw = raw_field(
        f"{ANY_JSON} codeQ accepts only objects. At most "
        "{node.limits.max_result_bytes} bytes; required when COMPLETED.",
        refused=(RESULT_REQUIRED, result_too_large, TOO_LARGE),
    )
    error: str | None = field(
        "Why it failed: at most {node.limits.max_error_bytes} bytes; required when FAILED, and "
        "not blank.",
        refused=(ERROR_REQUIRED, error_too_large),
    )
    artifacts: list[Raw] | None = field(
        "Files of the result: a URL, or content that the broker is to store.",
        each=_ARTIFACT,
        maxItems=ARTIFACTS_MAX,
    )
    lease_token: Int64 | None = LEASE_TOKEN_FIELD
    next: list[Raw] | None = next_field()
    task_id: str | None = field("Id of the task; only the batch route uses it, and requires it.")


RESULT_SCHEMA = Schema(ResultBody, refusal="invalid request body")


class ResultsBody(Body):
    """Results; each item is decoded on its own."""

    results: list[Raw] | None = items_field(RESULT_SCHEMA, items={"required": ["taskId"]})


_RESULTS = Schema(ResultsBody)


class SubmittedItem(Struct, rename="camel"):
    """The outcome of one item of a batch: a result, or an error with its code.

    `retryable` says whether to send the item again, `detail` what is wrong, as in an `Error`.
    """

    task_id: str
    result: ResultView | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class SubmittedBatch(Struct, rename="camel"):
    """One entry per item, in the items' order."""

    results: list[SubmittedItem]


_NEW = {
    "status": RESULT.status,
    "result": RESULT.result,
    "artifacts": RESULT.artifacts,
    "leaseToken": CLAIMED.lease_token,
}


@ROUTES(
    "POST",
    "/tasks/{id}/result",
    Answer("The result is stored; a repetition of the request gets the same answer.", RESULT),
    scope=SCOPE,
    body=RESULT_SCHEMA,
    example=_NEW,
    parameters=(LEASE_TOKEN,),
    errors=(NEITHER, TWICE, INVALID_CONTENT, *UPLOAD_REFUSED, TASK_NOT_FOUND, *NOT_HELD),
    large=True,
    whole=True,
)
async def submit(call: Call) -> HttpAnswer[ResultView]:
    """End a task with a result."""
    body = RESULT_SCHEMA.decode(call.text)
    token = lease_token(call, body.lease_token, _INVALID)
    new = await _new_result(call, body, token=token)
    new = msgspec.structs.replace(new, task_id=call.task_id(not_found=TASK_NOT_FOUND))
    if new.next:
        await spend_on_next(call, len(new.next))
    [outcome] = await call.services.broker.submit(
        call.identity.tenant, call.identity.subject, (new,), timeout_s=call.timeout_s
    )
    match outcome:
        case Submitted():
            return reply(result_view(outcome.result))
        case Rejected():
            raise from_refusal(outcome, not_found=TASK_NOT_FOUND.text)
        case CodeqError():
            raise outcome


@ROUTES(
    "POST",
    "/tasks/batch/results",
    Answer(
        "The outcome of each item, in order.",
        SubmittedBatch(
            [
                SubmittedItem(TASK_ID, RESULT),
                SubmittedItem("unheard-of", **TASK_NOT_FOUND.as_item()),
            ]
        ),
    ),
    scope=SCOPE,
    body=_RESULTS,
    example={
        "results": [
            {"taskId": TASK_ID} | _NEW,
            {"taskId": "unheard-of", "status": "FAILED", "error": "no such image"},
        ]
    },
    large=True,
    whole=True,
)
async def submit_batch(call: Call) -> HttpAnswer[SubmittedBatch]:
    """End tasks with results, independently; if a task is named twice, the second is refused."""
    items = _RESULTS.decode(call.text).results
    batch_max = call.services.settings.limits.batch_max
    if not items:
        raise _RESULTS.unreadable.because("results is missing or empty")
    if len(items) > batch_max:
        raise batch_too_large(batch_max)
    call.weigh(len(items))
    seen: set[str] = set()
    read = [await _read_item(call, item, seen) for item in items]
    wanted = [each for _, each in read if isinstance(each, NewResult)]
    following = sum(len(each.next) for each in wanted)
    if following > batch_max:
        raise batch_too_large(batch_max)
    if following:
        await spend_on_next(call, following)
    outcomes = iter(
        await call.services.broker.submit(
            call.identity.tenant, call.identity.subject, wanted, timeout_s=call.timeout_s
        )
        if wanted
        else ()
    )
    results = []
    for task_id, each in read:
        outcome = next(outcomes) if isinstance(each, NewResult) else each
        match outcome:
            case Submitted():
                results.append(SubmittedItem(task_id, result_view(outcome.result)))
            case Rejected():
                refused = from_refusal(outcome, not_found=TASK_NOT_FOUND.text)
                results.append(SubmittedItem(task_id, **refused.as_item()))
            case ApiError():
                results.append(SubmittedItem(task_id, **outcome.as_item()))
            case CodeqError():
                results.append(SubmittedItem(task_id, **from_failure(outcome).as_item()))
    return reply(SubmittedBatch(results))


async def _read_item(call: Call, item: Raw, seen: set[str]) -> tuple[str, NewResult | ApiError]:
    task_id = ""
    try:
        body = RESULT_SCHEMA.decode(item)
        task_id = body.task_id or ""
        token = whole("leaseToken", body.lease_token, error=_INVALID)
        new = await _new_result(call, body, token=token)
    except ApiError as refused:
        return task_id, refused.with_traceback(None)
    if not is_task_id(task_id):
        return task_id, TASK_NOT_FOUND
    if task_id in seen:
        return task_id, ApiError(409, "not-in-progress", "not-in-progress")
    seen.add(task_id)
    return task_id, msgspec.structs.replace(new, task_id=task_id)


async def _new_result(call: Call, body: ResultBody, *, token: int) -> NewResult:
    settings = call.services.settings
    limits = settings.limits
    text = json_text(body.result, "result", depth_max=limits.payload_depth_max, error=_INVALID.text)
    error = body.error or ""
    if body.status == "COMPLETED":
        if not text:
            raise RESULT_REQUIRED
    elif body.status == "FAILED":
        if not error.strip():
            raise ERROR_REQUIRED
    else:
        raise INVALID_STATUS.because("use COMPLETED or FAILED")
    if len(text.encode()) > limits.max_result_bytes:
        raise result_too_large(settings)
    if len(error.encode()) > limits.max_error_bytes:
        raise error_too_large(settings)
    # The callback has a copy of the result, and the task itself one of the error.
    beside = 2 * len(text.encode()) + 3 * len(error.encode())
    following, groups, digest = await read_next(call, body.next, beside=beside)
    return NewResult(
        task_id="",
        status=body.status,
        body=text,
        error=error,
        artifacts=await _artifacts(call, body.artifacts) if body.artifacts else (),
        token=token,
        next=following,
        next_digest=digest,
        next_groups=groups,
    )


async def _artifacts(call: Call, items: Sequence[Raw]) -> tuple[Artifact | NewFile, ...]:
    """Return the artifacts of a result, in their order.

    Raises:
        ApiError: 400 or 413; an artifact is invalid or too large.
    """
    if len(items) > ARTIFACTS_MAX:
        raise too_many("artifacts", ARTIFACTS_MAX)
    artifacts: list[Artifact | NewFile] = []
    names: set[str] = set()
    for item in items:
        artifact = _ARTIFACT.decode(item)
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
        chunks = await _decoded(content, call.services.settings)
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


def from_refusal(rejected: Rejected, *, not_found: str) -> ApiError:
    """Return the answer for a result or an upload that the broker refused."""
    if rejected.rejection is Rejection.TOO_MANY:
        if rejected.limit.isdigit():  # Of queues, which the tasks of `next` would begin.
            return from_failure(too_many_queues(int(rejected.limit)))
        return TOO_MANY_UPLOADS
    return from_rejection(rejected, not_found=not_found)


def _content(raw: Raw) -> str | None:
    """Return the text of a field, None when it is absent or null."""
    try:
        return msgspec.json.decode(raw, type=str | None)
    except msgspec.MsgspecError as malformed:
        raise _INVALID from malformed


async def _decoded(text: str, node: NodeSettings) -> tuple[bytes, ...]:
    """Decode standard base64; line breaks are allowed, padding is optional.

    Decode in pieces: decoding holds the interpreter lock, even in a thread.
    """
    text = text.replace("\r", "").replace("\n", "")
    digits = text.rstrip("=")
    rest = len(digits) % 4
    if rest == 1 or len(text) - len(digits) > -rest % 4:
        raise INVALID_CONTENT
    if len(digits) * 3 // 4 > node.limits.max_artifact_bytes:
        raise too_large(node)
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
