"""Tasks: the requests and answers of the handlers that create, cancel and read them."""

from __future__ import annotations

from collections.abc import Mapping

from codeq_cluster.api.http.call import COMMAND
from codeq_cluster.api.http.errors import ApiError, from_failure, from_rejection
from codeq_cluster.api.http.refusals import (
    INVALID_COMMAND,
    INVALID_CONSISTENCY,
    NO_TASK,
    TASK_NOT_FOUND,
    batch_too_large,
    no_integer,
    too_high,
)
from codeq_cluster.api.openapi.examples import FINISHED, RESULT, TASK, TASK_ID
from codeq_cluster.api.openapi.parameters import header, query
from codeq_cluster.api.openapi.types import (
    BodyFields,
    DescribedAnswer,
    DescribedBody,
    DescribedOperation,
    Fields,
    Operations,
    said,
)
from codeq_cluster.api.routes import reads, tasks, webhooks
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.task_views import (
    CancelledTask,
    CreatedBatch,
    CreatedItem,
    ExplanationView,
    TaskAndResult,
)
from codeq_cluster.broker.requests.producer import over_budget
from codeq_cluster.core.explaining import Reason
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.task import PRIORITY_MAX, PRIORITY_MIN
from codeq_cluster.errors import LimitExceeded, OperationTooLarge
from codeq_cluster.ratelimit.token_bucket import Scope
from codeq_cluster.settings import LimitSettings, NodeSettings

ANY_JSON = "Any JSON but null: an object, an array, a text, a number, true or false."
TOO_LARGE = from_failure(OperationTooLarge())

_KEYED = {
    "command": TASK.command,
    "payload": {"image": "cat.png", "width": 640},
    "idempotencyKey": "cat-640",
}
_TRACE = tuple(header(name, "W3C Trace Context.") for name in ("traceparent", "tracestate"))
_CONSISTENCY = query(
    "consistency",
    "`stale` reads this node's replica at once, however far behind it is.",
    enum=["linearizable", "stale"],
    default="linearizable",
)
_APPLIED_INDEX = {
    "X-CodeQ-Applied-Index": "Last entry that the replica has applied; only on stale reads."
}
_CONFLICT = from_rejection(Rejected(Rejection.IDEMPOTENCY_CONFLICT))


def operations(limits: LimitSettings) -> Operations:
    """Return the description of these handlers within these limits."""
    limited = rate_limited(*tasks.CREATING)
    return {
        tasks.create: DescribedOperation(
            DescribedAnswer(
                "The task: a new one, or the earlier one with the same idempotency key.",
                TASK,
                status=202,
                headers={"X-CodeQ-Idempotent-Replay": "`true` for an earlier task."},
            ),
            body=DescribedBody(requests.TaskBody, _KEYED | {"priority": TASK.priority}),
            parameters=_TRACE,
            errors=(
                tasks.INVALID_RUN_AT,
                tasks.INVALID_DELAY,
                INVALID_COMMAND,
                webhooks.NOT_CONFIGURED,
                tasks.INVALID_WEBHOOK,
                too_high("delaySeconds", limits.delay_seconds_max),
                tasks.INVALID_TTL,
                too_high("ttlSeconds", limits.delay_seconds_max),
                too_high("maxAttempts", limits.max_attempts_max),
                tasks.key_too_long(limits),
                from_rejection(Rejected(Rejection.INVALID_PRIORITY, "0, 5, 9")),
                _CONFLICT,
                TOO_LARGE,
                limited,
                budget_exceeded("readyTasks", "create_task"),
                budget_exceeded("storedBytes", "create_task"),
            ),
        ),
        tasks.create_batch: DescribedOperation(
            DescribedAnswer(
                "The outcome of each item, in order.",
                CreatedBatch(
                    [CreatedItem(TASK), CreatedItem(error=_CONFLICT.text, code=_CONFLICT.code)]
                ),
            ),
            body=DescribedBody(
                requests.TasksBody,
                {"tasks": [_KEYED, _KEYED | {"payload": {"image": "dog.png"}}]},
            ),
            parameters=_TRACE,
            errors=(batch_too_large(limits.batch_max), limited),
        ),
        tasks.cancel: DescribedOperation(
            DescribedAnswer(
                "The task is cancelled; its holder's result will be refused.",
                CancelledTask("cancelled", TASK_ID),
            ),
            errors=(NO_TASK, from_rejection(Rejected(Rejection.ALREADY_TERMINAL))),
        ),
        reads.task: DescribedOperation(
            DescribedAnswer("The task.", FINISHED, headers=_APPLIED_INDEX),
            parameters=(_CONSISTENCY,),
            errors=(INVALID_CONSISTENCY, NO_TASK),
        ),
        reads.result: DescribedOperation(
            DescribedAnswer(
                "The task has ended.", TaskAndResult(FINISHED, RESULT), headers=_APPLIED_INDEX
            ),
            parameters=(
                query(
                    "waitSeconds",
                    "How long to wait for the end; clamped to 0 to "
                    f"{limits.result_wait_seconds_max}.",
                    type="integer",
                    default=0,
                ),
                _CONSISTENCY,
            ),
            errors=(
                INVALID_CONSISTENCY,
                no_integer("waitSeconds"),
                TASK_NOT_FOUND,
                reads.result_not_found({}),
            ),
        ),
        reads.explain: DescribedOperation(
            DescribedAnswer(
                "The reason.",
                ExplanationView(
                    task_id=TASK_ID,
                    reason=Reason.BACKING_OFF,
                    message="attempt 2 of 5 was given back; it backs off",
                    waiting=True,
                    until="2026-01-31T12:00:40.000Z",
                ),
            ),
            errors=(TASK_NOT_FOUND,),
        ),
    }


def fields(settings: NodeSettings) -> BodyFields:
    """Return the description of these bodies' fields beyond their types, with these settings."""
    limits, lifecycle = settings.limits, settings.lifecycle
    return {
        requests.TaskBody: Fields(
            required=("command", "payload"),
            known={
                "command": said(
                    "The name of the queue; upper and lower case are kept.",
                    pattern=f"^{COMMAND.pattern}$",
                ),
                "payload": said(
                    f"{ANY_JSON} Kept as the text that was sent, nested at most "
                    f"{limits.payload_depth_max} deep.",
                    **{"not": {"type": "null"}},
                ),
                "priority": said(
                    f"A higher one is claimed first; clamped to {PRIORITY_MIN} to {PRIORITY_MAX}, "
                    "0 when absent. If the topic has `priorityTiers`, it must be one of these."
                ),
                "webhook": said(
                    "URL that gets the result: http or https, on a public address. A node without "
                    "a signing secret refuses it, unless it allows unsigned calls.",
                    format="uri",
                ),
                "maxAttempts": said(
                    "Deliveries after which the task becomes a dead letter; "
                    f"{lifecycle.max_attempts_default} for 0 or less.",
                    maximum=limits.max_attempts_max,
                ),
                "idempotencyKey": said(
                    "A repeated create with the same key returns the first task; at most "
                    f"{limits.idempotency_key_bytes_max} bytes."
                ),
                "runAt": said(
                    "No worker gets the task before this instant; overrides `delaySeconds`. "
                    "RFC 3339.",
                    format="date-time",
                ),
                "delaySeconds": said(
                    "No worker gets the task within this time.",
                    minimum=0,
                    maximum=limits.delay_seconds_max,
                ),
                "ttlSeconds": said(
                    "Time after which a waiting task becomes a dead letter; 0 for never.",
                    minimum=0,
                    maximum=limits.delay_seconds_max,
                ),
            },
        ),
        requests.TasksBody: Fields(
            required=("tasks",),
            known={"tasks": items_of("TaskBody", limits)},
        ),
    }


def items_of(body: str, limits: LimitSettings, **schema: object) -> Mapping[str, object]:
    """Return the description of a batch's items."""
    return said(
        "The items; a refused one does not affect the others.",
        minItems=1,
        maxItems=limits.batch_max,
        items={"$ref": f"#/components/schemas/{body}", **schema},
    )


def rate_limited(scope: Scope, operation: str) -> ApiError:
    """Return the 429 for an exceeded rate."""
    return from_failure(LimitExceeded(scope=scope, operation=operation, retry_after_s=1))


def budget_exceeded(limit: str, operation: str) -> ApiError:
    """Return the 429 for an exhausted budget."""
    return from_failure(over_budget(Rejected(Rejection.BUDGET_EXCEEDED, limit), operation))
