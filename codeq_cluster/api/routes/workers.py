"""Workers: claiming tasks, holding leases, ending them."""

from __future__ import annotations

import msgspec

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
    NOT_FOUND,
    TASK_NOT_FOUND,
    batch_too_large,
    too_high,
)
from codeq_cluster.api.http.waits import WaitEnded
from codeq_cluster.api.routes.allowed import allowed_commands
from codeq_cluster.api.routes.attachments import artifacts_of, from_refusal
from codeq_cluster.api.schemas import reading, requests
from codeq_cluster.api.schemas.lease_views import (
    AbandonedTask,
    ClaimedBatch,
    ExtendedLease,
    RefusedTask,
    SubmittedBatch,
    SubmittedItem,
)
from codeq_cluster.api.schemas.task_views import ResultView, TaskView, result_view, task_view
from codeq_cluster.broker.values import NewResult
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.outcomes import Claimed, Rejected, Returned, Submitted
from codeq_cluster.errors import CodeqError
from codeq_cluster.ratelimit.token_bucket import Scope
from codeq_cluster.settings import LimitSettings

# A wait ends this much early: a client whose timeout equals the wait must get its answer.
EARLY_S = 0.2

INVALID_TOKEN = bad_request("invalid 'X-CodeQ-Lease-Token' (use an integer)", "invalid-lease-token")
RESULT_REQUIRED = bad_request("result required when status=COMPLETED", "result-required")
ERROR_REQUIRED = bad_request("error required when status=FAILED", "error-required")

CLAIMING = (Scope.WORKER, "claim")
_INVALID = invalid_body()
_INVALID_RESULT = invalid_body("invalid request body")
REASON_CHARS_MAX = 1024  # The task's history keeps one per attempt.


async def claim(call: Call) -> HttpAnswer[TaskView]:
    """Claim one task: 200, or 204 when none came in time."""
    await call.spend(*CLAIMING)
    body = requests.CLAIM.decode(call.text, error=_INVALID.text)
    claimed = await _claimed(call, body, count=1)
    if not claimed.tasks:
        return HttpAnswer(status=204)
    _trace(call, claimed)
    return reply(_views(call, claimed)[0])


async def claim_batch(call: Call) -> HttpAnswer[ClaimedBatch]:
    """Claim up to `count` tasks; the wait ends with the first."""
    await call.spend(*CLAIMING)
    body = requests.CLAIM.decode(call.text, error=_INVALID.text)
    count = reading.whole(body.count, error=_INVALID)
    count_max = call.services.settings.limits.batch_max
    if count < 1:
        raise _INVALID
    if count > count_max:
        raise count_too_large(count_max)
    claimed = await _claimed(call, body, count=count)
    if not claimed.tasks:
        return HttpAnswer(status=204)
    _trace(call, claimed)
    return reply(ClaimedBatch(_views(call, claimed)))


async def heartbeat(call: Call) -> HttpAnswer[ExtendedLease]:
    """Extend a lease."""
    body = requests.LEASE.decode(call.text, error=_INVALID.text)
    extend_ms = _lease_ms(call, body.extend_seconds, "extendSeconds")
    outcome = await call.services.broker.heartbeat(
        call.identity.tenant,
        call.identity.subject,
        call.task_id(not_found=NOT_FOUND),
        extend_ms=extend_ms,
        token=lease_token(call, body.lease_token),
        timeout_s=call.timeout_s,
    )
    if isinstance(outcome, Rejected):
        raise from_rejection(outcome)
    return reply(ExtendedLease(True, rfc3339(outcome.lease_until_ms)))


async def abandon(call: Call) -> HttpAnswer[AbandonedTask]:
    """Return a task to its queue; a body is optional."""
    body = requests.LEASE.decode_any(call.text, error=_INVALID.text)
    outcome = await call.services.broker.abandon(
        call.identity.tenant,
        call.identity.subject,
        call.task_id(not_found=NOT_FOUND),
        token=lease_token(call, body.lease_token),
        timeout_s=call.timeout_s,
    )
    if isinstance(outcome, Rejected):
        raise from_rejection(outcome)
    return reply(AbandonedTask(_went(outcome)))


async def nack(call: Call) -> HttpAnswer[RefusedTask]:
    """Return a task to its queue after a delay, the given one or the back-off's."""
    body = requests.LEASE.decode(call.text, error=_INVALID.text)
    delay_s = reading.whole(body.delay_seconds, error=_INVALID)
    delay_s_max = call.services.settings.lifecycle.backoff_max_seconds
    outcome = await call.services.broker.nack(
        call.identity.tenant,
        call.identity.subject,
        call.task_id(not_found=NOT_FOUND),
        delay_ms=min(max(delay_s, 0), delay_s_max) * 1000,
        reason=(body.reason or "")[:REASON_CHARS_MAX],
        token=lease_token(call, body.lease_token),
        timeout_s=call.timeout_s,
    )
    if isinstance(outcome, Rejected):
        raise from_rejection(outcome)
    return reply(RefusedTask(_went(outcome), delay_seconds=-(-outcome.delay_ms // 1000)))


async def submit(call: Call) -> HttpAnswer[ResultView]:
    """End a task with a result."""
    body = requests.RESULT.decode(call.text, error=_INVALID_RESULT.text)
    token = lease_token(call, body.lease_token, _INVALID_RESULT)
    new = await _new_result(call, body, token=token)
    new = msgspec.structs.replace(new, task_id=call.task_id(not_found=TASK_NOT_FOUND))
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


async def submit_batch(call: Call) -> HttpAnswer[SubmittedBatch]:
    """End tasks with results, independently; if a task is named twice, the second is refused."""
    items = requests.RESULTS.decode(call.text, error=_INVALID.text).results
    batch_max = call.services.settings.limits.batch_max
    if not items:
        raise _INVALID
    if len(items) > batch_max:
        raise batch_too_large(batch_max)
    seen: set[str] = set()
    read = [await _read_item(call, item, seen) for item in items]
    wanted = [each for _, each in read if isinstance(each, NewResult)]
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
                results.append(_item_error(task_id, refused))
            case ApiError():
                results.append(_item_error(task_id, outcome))
            case CodeqError():
                results.append(_item_error(task_id, from_failure(outcome)))
    return reply(SubmittedBatch(results))


async def _claimed(call: Call, body: requests.ClaimBody, *, count: int) -> Claimed:
    limits = call.services.settings.limits
    wait_s = reading.whole(body.wait_seconds, error=_INVALID)
    wait_s = min(max(wait_s, 0), limits.claim_wait_seconds_max)
    commands = allowed_commands(call, body.commands)
    claiming = call.services.broker.claim(
        call.identity.tenant,
        call.identity.subject,
        commands=commands,
        count=count,
        lease_ms=_lease_ms(call, body.lease_seconds, "leaseSeconds"),
        wait_s=max(0.0, wait_s - EARLY_S),
        timeout_s=call.timeout_s,
    )
    with call.services.polls.polling(call.identity.tenant, call.identity.subject, commands):
        if wait_s == 0:
            return await claiming
        try:
            return await call.services.waits.wait(claiming)
        except WaitEnded:
            return Claimed(())


def _lease_ms(call: Call, asked_s: int | None, name: str) -> int:
    settings = call.services.settings
    lease_s = reading.whole(asked_s, error=_INVALID)
    if lease_s > settings.limits.lease_seconds_max:
        raise too_high(name, settings.limits.lease_seconds_max)
    return (lease_s if lease_s > 0 else settings.lifecycle.default_lease_seconds) * 1000


def lease_token(call: Call, in_body: int | None, error: ApiError = _INVALID) -> int:
    """Return the lease token of the body, or of the header; 0 for none.

    Raises:
        ApiError: The given error, or 400 for a header that is not an integer.
    """
    if in_body is not None:
        return reading.whole(in_body, error=error)
    in_header = call.headers.get("x-codeq-lease-token")
    if not in_header:
        return 0
    try:
        return reading.whole(int(in_header), error=error)
    except ValueError as malformed:
        raise INVALID_TOKEN from malformed


def count_too_large(most: int) -> ApiError:
    """Return the error for a claim of too many tasks."""
    return bad_request(f"count exceeds maximum of {most}", "count-too-large")


def result_too_large(limits: LimitSettings) -> ApiError:
    """Return the 413 for a result."""
    return ApiError(413, f"result exceeds {limits.max_result_bytes} bytes", "result-too-large")


def error_too_large(limits: LimitSettings) -> ApiError:
    """Return the 413 for the error of a failed task."""
    return ApiError(413, f"error exceeds {limits.max_error_bytes} bytes", "error-too-large")


def _trace(call: Call, claimed: Claimed) -> None:
    """Record the delivery in the trace of each task."""
    tracing = call.services.tracing
    if tracing is None:
        return
    for task in claimed.tasks:
        if task.trace_parent:
            tracing.claimed(
                task.trace_parent,
                task.trace_state,
                task_id=task.id,
                command=task.command,
                attempt=task.attempts,
            )


def _went(returned: Returned) -> str:
    return "dlq" if returned.dead else "requeued"


def _views(call: Call, claimed: Claimed) -> list[TaskView]:
    shards = call.services.settings.shards
    return [
        task_view(task, payload, shards=shards, claimed=True)
        for task, payload in zip(claimed.tasks, claimed.payloads, strict=True)
    ]


async def _read_item(
    call: Call, item: msgspec.Raw, seen: set[str]
) -> tuple[str, NewResult | ApiError]:
    task_id = ""
    try:
        body = requests.RESULT.decode(item, error=_INVALID_RESULT.text)
        task_id = body.task_id or ""
        token = reading.whole(body.lease_token, error=_INVALID_RESULT)
        new = await _new_result(call, body, token=token)
    except ApiError as refused:
        return task_id, refused.with_traceback(None)
    if not is_task_id(task_id):
        return task_id, TASK_NOT_FOUND
    if task_id in seen:
        return task_id, ApiError(409, "not-in-progress", "not-in-progress")
    seen.add(task_id)
    return task_id, msgspec.structs.replace(new, task_id=task_id)


async def _new_result(call: Call, body: requests.ResultBody, *, token: int) -> NewResult:
    limits = call.services.settings.limits
    text = reading.json_text(
        body.result, depth_max=limits.payload_depth_max, error=_INVALID_RESULT.text
    )
    error = body.error or ""
    if body.status == "COMPLETED":
        if not text:
            raise RESULT_REQUIRED
    elif body.status == "FAILED":
        if not error.strip():
            raise ERROR_REQUIRED
    else:
        raise INVALID_STATUS
    if len(text.encode()) > limits.max_result_bytes:
        raise result_too_large(limits)
    if len(error.encode()) > limits.max_error_bytes:
        raise error_too_large(limits)
    return NewResult(
        task_id="",
        status=body.status,
        body=text,
        error=error,
        artifacts=await artifacts_of(call, body),
        token=token,
    )


def _item_error(task_id: str, error: ApiError) -> SubmittedItem:
    return SubmittedItem(task_id, error=error.text, code=error.code)
