"""Tasks: the producer's routes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable

import msgspec

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import COMMAND, Call
from codeq_cluster.api.http.errors import (
    ApiError,
    bad_request,
    from_failure,
    from_rejection,
    invalid_body,
)
from codeq_cluster.api.http.refusals import INVALID_COMMAND, NO_TASK, batch_too_large, too_high
from codeq_cluster.api.routes.webhooks import require_webhooks, takes_webhooks
from codeq_cluster.api.schemas import reading, requests
from codeq_cluster.api.schemas.task_views import (
    CancelledTask,
    CreatedBatch,
    CreatedItem,
    TaskView,
    task_view,
)
from codeq_cluster.broker.values import RequestedTask
from codeq_cluster.core.outcomes import Created, Rejected
from codeq_cluster.core.task import PRIORITY_MAX, PRIORITY_MIN
from codeq_cluster.errors import CodeqError
from codeq_cluster.ratelimit.token_bucket import Scope
from codeq_cluster.settings import LimitSettings

CREATING = (Scope.PRODUCER, "create_task")
_INVALID = invalid_body()
INVALID_RUN_AT = bad_request("invalid 'runAt' (use RFC3339)", "invalid-run-at")
INVALID_DELAY = bad_request("invalid 'delaySeconds' (must be >= 0)", "invalid-delay-seconds")
INVALID_TTL = bad_request("invalid 'ttlSeconds' (must be >= 0)", "invalid-ttl-seconds")
INVALID_WEBHOOK = bad_request("invalid webhook url", "invalid-webhook-url")

# W3C Trace Context §3.2.2: version ff and ids of zeros only are invalid.
_TRACE_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_TRACE_STATE_CHARS_MAX = 512  # W3C Trace Context §3.3.1.5: propagate at least this much.


async def create(call: Call) -> HttpAnswer[TaskView]:
    """Create one task: 202, replayed or not."""
    await call.spend(*CREATING)
    body = requests.TASK.decode(call.text, error=_INVALID.text)
    new = _new_task(call, body, refused=await _refused_webhooks(call, (body,)))
    [outcome] = await call.services.broker.create(
        call.identity.tenant, (new,), timeout_s=call.timeout_s
    )
    match outcome:
        case Created():
            headers = {"X-CodeQ-Idempotent-Replay": "true"} if outcome.replay else {}
            return reply(_view(call, outcome), status=202, headers=headers)
        case Rejected():
            raise from_rejection(outcome)
        case CodeqError():
            raise outcome


async def create_batch(call: Call) -> HttpAnswer[CreatedBatch]:
    """Create tasks independently of each other; the answer keeps their order."""
    items = requests.TASKS.decode(call.text, error=_INVALID.text).tasks
    batch_max = call.services.settings.limits.batch_max
    # A bucket never holds more than its burst: a larger batch could retry for ever.
    batch_max = min(batch_max, call.most(Scope.PRODUCER) or batch_max)
    if not items:
        raise _INVALID
    if len(items) > batch_max:
        raise batch_too_large(batch_max)
    await call.spend(*CREATING, len(items))
    bodies = [_decoded(item) for item in items]
    refused = await _refused_webhooks(
        call, (body for body in bodies if isinstance(body, requests.TaskBody))
    )
    read = [_read_item(call, body, refused=refused) for body in bodies]
    wanted = [each for each in read if isinstance(each, RequestedTask)]
    outcomes = iter(
        await call.services.broker.create(call.identity.tenant, wanted, timeout_s=call.timeout_s)
        if wanted
        else ()
    )
    results = []
    for each in read:
        outcome = next(outcomes) if isinstance(each, RequestedTask) else each
        match outcome:
            case Created():
                results.append(CreatedItem(_view(call, outcome)))
            case Rejected():
                results.append(_item_error(from_rejection(outcome)))
            case ApiError():
                results.append(_item_error(outcome))
            case CodeqError():
                results.append(_item_error(from_failure(outcome)))
    return reply(CreatedBatch(results))


async def cancel(call: Call) -> HttpAnswer[CancelledTask]:
    """Cancel a task that has not ended, even if a worker holds it."""
    task_id = call.task_id(not_found=NO_TASK)
    broker, tenant = call.services.broker, call.identity.tenant
    outcome = await broker.cancel(tenant, task_id, timeout_s=call.timeout_s)
    if isinstance(outcome, Rejected):
        raise from_rejection(outcome, not_found=NO_TASK.text)
    return reply(CancelledTask("cancelled", outcome.task.id))


def _decoded(item: msgspec.Raw) -> requests.TaskBody | ApiError:
    try:
        return requests.TASK.decode(item, error=_INVALID.text)
    except ApiError as unreadable:
        return unreadable.with_traceback(None)


async def _refused_webhooks(call: Call, bodies: Iterable[requests.TaskBody]) -> Collection[str]:
    """Return the webhooks of the bodies that are forbidden targets, checked concurrently."""
    urls = tuple({body.webhook for body in bodies if body.webhook})
    if not urls or not takes_webhooks(call):
        return ()
    allowed = await asyncio.gather(*(call.services.targets.allows(url) for url in urls))
    return {url for url, allows in zip(urls, allowed, strict=True) if not allows}


def _read_item(
    call: Call, body: requests.TaskBody | ApiError, *, refused: Collection[str]
) -> RequestedTask | ApiError:
    if isinstance(body, ApiError):
        return body
    try:
        return _new_task(call, body, refused=refused)
    except ApiError as error:
        return error.with_traceback(None)


def _new_task(call: Call, body: requests.TaskBody, *, refused: Collection[str]) -> RequestedTask:
    limits = call.services.settings.limits
    payload = reading.json_text(
        body.payload, depth_max=limits.payload_depth_max, error=_INVALID.text
    )
    if not payload or body.command is None:
        raise _INVALID
    run_at_ms = 0
    if body.run_at:
        # An instant before 1970 is in the past like any other; 0 would mean "not set".
        run_at_ms = max(1, reading.instant_ms(body.run_at, error=INVALID_RUN_AT))
    delay_s = reading.whole(body.delay_seconds, error=_INVALID)
    if delay_s < 0:
        raise INVALID_DELAY
    if not COMMAND.fullmatch(body.command):
        raise INVALID_COMMAND
    if body.webhook:
        require_webhooks(call)
    if body.webhook in refused:
        raise INVALID_WEBHOOK
    ttl_s = reading.whole(body.ttl_seconds, error=_INVALID)
    max_attempts = max(0, reading.whole(body.max_attempts, error=_INVALID))
    key = body.idempotency_key or ""
    _check_bound("delaySeconds", delay_s, limits.delay_seconds_max)
    if ttl_s < 0:
        raise INVALID_TTL
    _check_bound("ttlSeconds", ttl_s, limits.delay_seconds_max)
    _check_bound("maxAttempts", max_attempts, limits.max_attempts_max)
    if len(key.encode()) > limits.idempotency_key_bytes_max:
        raise key_too_long(limits)
    trace_parent, trace_state = _trace(call)
    priority = reading.whole(body.priority, error=_INVALID)
    return RequestedTask(
        command=body.command,
        payload=payload,
        priority=min(max(priority, PRIORITY_MIN), PRIORITY_MAX),
        max_attempts=max_attempts,
        webhook=body.webhook or "",
        idempotency_key=key,
        run_at_ms=run_at_ms,
        delay_ms=delay_s * 1000,
        ttl_ms=ttl_s * 1000,
        trace_parent=trace_parent,
        trace_state=trace_state,
    )


def key_too_long(limits: LimitSettings) -> ApiError:
    """Return the error for an idempotency key."""
    return bad_request(
        f"invalid 'idempotencyKey' (at most {limits.idempotency_key_bytes_max} bytes)",
        "invalid-idempotency-key",
    )


def _check_bound(name: str, value: int, most: int) -> None:
    if value > most:
        raise too_high(name, most)


def _trace(call: Call) -> tuple[str, str]:
    headers, tracing = call.headers, call.services.tracing
    trace_parent = headers.get("traceparent", "")
    # A malformed parent is ignored, as the standard demands.
    if not trace_parent or not _TRACE_PARENT.fullmatch(trace_parent):
        return ("", "") if tracing is None else tracing.current()
    trace_state = headers.get("tracestate", "")
    # The state is stored and forwarded; the standard allows dropping one that cannot be.
    fits = len(trace_state) <= _TRACE_STATE_CHARS_MAX
    sendable = fits and trace_state.isascii() and trace_state.isprintable()
    return trace_parent, trace_state if sendable else ""


def _view(call: Call, created: Created) -> TaskView:
    return task_view(created.task, created.payload, shards=call.services.settings.shards)


def _item_error(error: ApiError) -> CreatedItem:
    return CreatedItem(error=error.text, code=error.code)
