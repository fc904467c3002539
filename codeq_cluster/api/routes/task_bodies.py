"""Task bodies: what a producer says of a new task, and its refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from codeq_cluster.api.declared.bodies import Body, Schema, field, instant_ms, json_text, whole
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, from_rejection
from codeq_cluster.api.http.refusals import INVALID_COMMAND, bounded, too_high
from codeq_cluster.api.routes import uniques
from codeq_cluster.api.routes.graph_calls import INVALID_DEPENDENCY, depends_on_field
from codeq_cluster.api.routes.group_calls import (
    BAD_ID,
    BAD_MEMBER,
    GROUP_SEALED,
    OTHER_GROUP,
    TOO_EARLY,
    check_joined,
)
from codeq_cluster.api.routes.lanes import INVALID_COST, INVALID_KEY, KEYS_TOO_EARLY, read_lane
from codeq_cluster.api.routes.tags import NO_METADATA, metadata_field, read_tags, tags_field
from codeq_cluster.api.routes.task_views import ANY_JSON, TOO_LARGE, read_handling
from codeq_cluster.api.routes.webhooks import NOT_CONFIGURED, require_webhooks, takes_webhooks
from codeq_cluster.broker.requests.producer import fingerprint_of
from codeq_cluster.core import bounds
from codeq_cluster.core.backoff import POLICIES
from codeq_cluster.core.groups import GROUP_NAME
from codeq_cluster.core.handling import BOUNDS
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.placing import AMONG_LANE
from codeq_cluster.core.task import COST_MAX, LANE_KEY_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN
from codeq_cluster.settings import LimitSettings, NodeSettings

INVALID_RUN_AT = bad_request("invalid 'runAt' (use RFC3339)", "invalid-run-at")
INVALID_DELAY = bad_request("invalid 'delaySeconds' (must be >= 0)", "invalid-delay-seconds")
INVALID_TTL = bad_request("invalid 'ttlSeconds' (must be >= 0)", "invalid-ttl-seconds")
INVALID_BACKOFF = bad_request(
    f"invalid 'backoffPolicy' (use {', '.join(POLICIES)})", "invalid-backoff-policy"
)
INVALID_WEBHOOK = bad_request("invalid webhook url", "invalid-webhook-url")
CONFLICT = from_rejection(Rejected(Rejection.IDEMPOTENCY_CONFLICT))


def key_too_long(node: NodeSettings) -> ApiError:
    """Return the error for an idempotency key."""
    return bad_request(
        f"invalid 'idempotencyKey' (at most {node.limits.idempotency_key_bytes_max} bytes, and "
        "no NUL at its beginning)",
        "invalid-idempotency-key",
    )


def _handling(name: str, text: str) -> Any:
    return field(text, minimum=0, maximum=BOUNDS[name][1])


class TaskBody(Body):
    """A task to create."""

    command: str | None = field(
        "The name of the queue; upper and lower case are kept.",
        required=True,
        refused=(INVALID_COMMAND,),
        pattern=f"^{bounds.COMMAND.pattern}$",
    )
    payload: Raw = field(
        f"{ANY_JSON} Kept as the text that was sent, nested at most "
        "{node.limits.payload_depth_max} deep.",
        default=Raw(b"null"),
        required=True,
        refused=(TOO_LARGE,),
        **{"not": {"type": "null"}},
    )
    priority: int | None = field(
        f"A higher one is claimed first; clamped to {PRIORITY_MIN} to {PRIORITY_MAX}, 0 when "
        "absent. If the topic has `priorityTiers`, it must be one of these.",
        refused=(from_rejection(Rejected(Rejection.INVALID_PRIORITY, "0, 5, 9")),),
    )
    webhook: str | None = field(
        "URL that gets the result: http or https, on a public address. A node without a signing "
        "secret refuses it, unless it allows unsigned calls.",
        refused=(NOT_CONFIGURED, INVALID_WEBHOOK),
        format="uri",
    )
    max_attempts: int | None = field(
        "Deliveries after which the task becomes a dead letter; "
        "{node.lifecycle.max_attempts_default} for 0 or less.",
        maximum=attrgetter("limits.max_attempts_max"),
    )
    idempotency_key: str | None = field(
        "A repeated create with the same key returns the first task. Of a task with a `key`, it "
        "counts among the tasks of its queue with that `key`. At most "
        "{node.limits.idempotency_key_bytes_max} bytes, and no NUL at its beginning.",
        refused=(key_too_long, CONFLICT),
    )
    key: str | None = field(
        "What the task shares a limit with: the tasks of its queue with the same key; see `perKey` "
        f"of a topic. At most {LANE_KEY_BYTES_MAX} bytes.",
        refused=(INVALID_KEY, KEYS_TOO_EARLY),
    )
    cost: int | None = field(
        "How many tokens of the `rate` of its `key`, and of that of its queue, a claim of the task "
        "spends; 1 when absent.",
        refused=(INVALID_COST, from_rejection(Rejected(Rejection.INVALID_COST, "10"))),
        minimum=1,
        maximum=COST_MAX,
    )
    run_at: str | None = field(
        "No worker gets the task before this instant; overrides `delaySeconds`. RFC 3339.",
        refused=(INVALID_RUN_AT,),
        format="date-time",
    )
    delay_seconds: int | None = field(
        "No worker gets the task within this time.",
        refused=(
            INVALID_DELAY,
            lambda node: too_high("delaySeconds", node.limits.delay_seconds_max),
        ),
        minimum=0,
        maximum=attrgetter("limits.delay_seconds_max"),
    )
    ttl_seconds: int | None = field(
        "Time after which a waiting task becomes a dead letter; 0 for never.",
        refused=(INVALID_TTL, lambda node: too_high("ttlSeconds", node.limits.delay_seconds_max)),
        minimum=0,
        maximum=attrgetter("limits.delay_seconds_max"),
    )
    timeout_seconds: int | None = _handling(
        "timeoutSeconds", "How long a worker may take for one delivery; 0 for its own limit."
    )
    backoff_policy: str | None = field(
        "How the delay after a nack grows with the attempts.",
        refused=(INVALID_BACKOFF,),
        enum=[*POLICIES, None],
    )
    backoff_base_seconds: int | None = _handling("backoffBaseSeconds", "The delay it grows from.")
    backoff_max_seconds: int | None = _handling("backoffMaxSeconds", "The longest delay it gives.")
    group: str | None = field(
        "The group that it joins, if that is not sealed. A task with a key of any kind joins by a "
        "request to the group. In a result's `next`: the group of the ended task, sealed or not.",
        pattern=f"^{GROUP_NAME.pattern}$",
        refused=(BAD_ID, BAD_MEMBER, OTHER_GROUP, GROUP_SEALED, TOO_EARLY),
    )
    depends_on: list[Raw] | None = depends_on_field()
    unique: Raw = uniques.unique_field()
    tags: dict[str, str] | None = tags_field()
    metadata: Raw = metadata_field()


TASK_SCHEMA = Schema(TaskBody)
INVALID = TASK_SCHEMA.unreadable
_NUMBERS = ("delaySeconds", "ttlSeconds", "maxAttempts", "priority")
_NO_NUMBERS = (0, 0, 0, 0)  # Of most tasks.


async def refused_webhooks(call: Call, bodies: Iterable[TaskBody]) -> Collection[str]:
    """Return the webhooks of the bodies that are forbidden targets, checked concurrently."""
    urls = tuple({body.webhook for body in bodies if body.webhook})
    if not urls or not takes_webhooks(call):
        return ()
    targets, tenant = call.services.targets, call.identity.tenant
    allowed = await asyncio.gather(*(targets.allows(url, tenant=tenant) for url in urls))
    return {url for url, allows in zip(urls, allowed, strict=True) if not allows}


async def task_within(call: Call, item: Raw, part: str) -> Create:
    """Return the task that a part of a body describes; raises ApiError, which names the part."""
    try:
        body = TASK_SCHEMA.decode(item)
        webhooks = await refused_webhooks(call, (body,)) if body.webhook else ()
        return new_task(call, body, refused=webhooks)
    except ApiError as error:
        raise error.within(part) from None


def new_task(
    call: Call,
    body: TaskBody,
    *,
    refused: Collection[str],
    may_join: bool = False,
    may_depend: bool = False,
    alone: bool = False,
) -> Create:
    """Return the task that a body describes.

    Args:
        refused: Webhooks that are forbidden targets.
        may_join: It may say which group it joins.
        may_depend: It may wait for others.
        alone: It may have a unique key, without a group and dependencies.

    Raises:
        ApiError: A field is refused.
    """
    if body.group is not None or body.depends_on:
        _check_ties(call, body, may_join=may_join, may_depend=may_depend)
    limits = call.services.settings.limits
    payload = json_text(
        body.payload, "payload", depth_max=limits.payload_depth_max, error=INVALID.text
    )
    if not payload or body.command is None:
        raise INVALID.because(f"{'command' if payload else 'payload'} is missing")
    run_at_ms = 0
    if body.run_at:
        # An instant before 1970 is in the past like any other; 0 would mean "not set".
        run_at_ms = max(1, instant_ms(body.run_at, error=INVALID_RUN_AT))
    asked = body.delay_seconds, body.ttl_seconds, body.max_attempts, body.priority
    says_numbers = any(asked)
    numbers = _numbers(asked) if says_numbers else _NO_NUMBERS
    delay_s, ttl_s, max_attempts, priority = numbers
    if not bounds.is_queue_name(body.command):
        raise INVALID_COMMAND
    if body.webhook:
        require_webhooks(call)
    if body.webhook in refused:
        raise INVALID_WEBHOOK
    if says_numbers:
        _check_bounds(limits, delay_s=delay_s, ttl_s=ttl_s, max_attempts=max_attempts)
    key = body.idempotency_key or ""
    too_long = key and len(key.encode()) > limits.idempotency_key_bytes_max
    if too_long or key.startswith(AMONG_LANE):
        raise key_too_long(call.services.settings)
    lane, cost = read_lane(call, body.key or "", body.cost)
    unique = None
    if body.unique is not uniques.NO_UNIQUE:
        alone = alone and not (body.group or body.depends_on)
        has_start = bool(run_at_ms or delay_s)
        unique = uniques.read_unique(call, body.unique, is_alone=alone, has_start=has_start)
    said = bool(body.tags) or body.metadata is not NO_METADATA
    tags, metadata = read_tags(call, body.tags, body.metadata) if said else ((), "")
    handling = read_handling(body, _handling_number, _backoff)
    trace_parent, trace_state = _trace(call)
    return Create(
        command=body.command,
        payload=payload,
        priority=min(max(priority, PRIORITY_MIN), PRIORITY_MAX),
        max_attempts=max(0, max_attempts),
        webhook=body.webhook or "",
        idempotency_key=key,
        run_at_ms=run_at_ms,
        delay_ms=delay_s * 1000,
        ttl_ms=ttl_s * 1000,
        trace_parent=trace_parent,
        trace_state=trace_state,
        handling=handling,
        key=lane,
        cost=cost,
        unique=unique,
        tags=tags,
        metadata=metadata,
    )


def keyed(tasks: Sequence[Create], *, twice: ApiError) -> tuple[Create, ...]:
    """Return tasks of one request with the fingerprints of their keys; `twice` if two share one."""
    keys = [task.idempotency_key for task in tasks if task.idempotency_key]
    if len(set(keys)) < len(keys):
        raise twice
    return tuple(
        replace(task, fingerprint=fingerprint_of(task.command, task.payload))
        if task.idempotency_key
        else task
        for task in tasks
    )


def _check_ties(call: Call, body: TaskBody, *, may_join: bool, may_depend: bool) -> None:
    """Refuse a group or dependencies where a task cannot have them."""
    if body.group is not None:
        check_joined(call, body.group)
        if not may_join:
            raise BAD_MEMBER
    if body.depends_on and not may_depend:
        raise INVALID_DEPENDENCY


def _numbers(asked: Sequence[int | None]) -> Sequence[int]:
    """Return delay, time to live, attempts and priority, 0 for each that is absent."""
    numbers = [
        0 if value is None else whole(name, value, error=INVALID)
        for name, value in zip(_NUMBERS, asked, strict=True)
    ]
    if numbers[0] < 0:
        raise INVALID_DELAY
    return numbers


def _check_bounds(limits: LimitSettings, *, delay_s: int, ttl_s: int, max_attempts: int) -> None:
    if ttl_s < 0:
        raise INVALID_TTL
    if delay_s > limits.delay_seconds_max:
        raise too_high("delaySeconds", limits.delay_seconds_max)
    if ttl_s > limits.delay_seconds_max:
        raise too_high("ttlSeconds", limits.delay_seconds_max)
    if max_attempts > limits.max_attempts_max:
        raise too_high("maxAttempts", limits.max_attempts_max)


def _handling_number(name: str, value: int | None) -> int:
    number = whole(name, value, error=INVALID)
    return bounded(name, number, least=0, most=BOUNDS[name][1])


def _backoff(policy: str | None) -> str:
    if policy is not None and policy not in POLICIES:
        raise INVALID_BACKOFF
    return policy or ""


def _trace(call: Call) -> tuple[str, str]:
    headers, tracing = call.headers, call.services.telemetry.tracing
    trace_parent = headers.get("traceparent", "")
    # A malformed parent is ignored, as the standard demands.
    if not trace_parent or not bounds.TRACE_PARENT.fullmatch(trace_parent):
        return ("", "") if tracing is None else tracing.current()
    trace_state = headers.get("tracestate", "")
    # The state is stored and forwarded; the standard allows dropping one that cannot be.
    return trace_parent, trace_state if bounds.is_trace_state(trace_state) else ""
