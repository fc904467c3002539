"""Operations: what each handler takes and answers, where the route table does not say it.

What a route does is its handler's docstring; who may call it, and the answers that come of that
or of an unreadable body, follow from the route. Here stands the rest.
"""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.api.http.call import COMMAND
from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure, from_rejection
from codeq_cluster.api.http.middleware import Handler
from codeq_cluster.api.openapi import artifacts
from codeq_cluster.api.openapi.types import (
    COMMAND_SCHEMA,
    DescribedAnswer,
    DescribedOperation,
    Fields,
    Parameter,
)
from codeq_cluster.api.routes import openapi, ops, queues, raft, reads, tasks, webhooks, workers
from codeq_cluster.api.routes.allowed import COMMANDS_MAX
from codeq_cluster.api.routes.attachments import ARTIFACTS_MAX
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.node_views import NotReady, Word
from codeq_cluster.broker.requests.producer import over_budget
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.task import PRIORITY_MAX, PRIORITY_MIN
from codeq_cluster.errors import LimitExceeded, OperationTooLarge
from codeq_cluster.ratelimit.token_bucket import Scope
from codeq_cluster.settings import NodeSettings

_ID = "0c8a2f4e-6d1b-4f7a-9b3c-5e2d8f1a7c60"
_TASK = {
    "id": _ID,
    "command": "resize-image",
    "payload": '{"image":"cat.png","width":640}',
    "priority": 5,
    "status": "PENDING",
    "lastKnownLocation": "PENDING_LIST",
    "attempts": 0,
    "maxAttempts": 5,
    "tenantId": "acme",
    "createdAt": "2026-01-31T12:00:00.000Z",
    "updatedAt": "2026-01-31T12:00:00.000Z",
    "shard": 0,
}
_CLAIMED = _TASK | {
    "status": "IN_PROGRESS",
    "lastKnownLocation": "INPROG_SET",
    "workerId": "worker-7",
    "leaseUntil": "2026-01-31T12:05:01.000Z",
    "attempts": 1,
    "updatedAt": "2026-01-31T12:00:01.000Z",
    "leaseToken": 281474976710657,
}
_FINISHED = _TASK | {
    "status": "COMPLETED",
    "lastKnownLocation": "NONE",
    "attempts": 1,
    "resultKey": f"codeq/results/{_ID}",
    "updatedAt": "2026-01-31T12:00:09.000Z",
    "history": [
        {
            "worker": "worker-7",
            "startedAt": "2026-01-31T12:00:01.000Z",
            "endedAt": "2026-01-31T12:00:09.000Z",
            "outcome": "COMPLETED",
        }
    ],
}
_RESULT = {
    "taskId": _ID,
    "status": "COMPLETED",
    "result": {"url": "https://example.com/cat-640.png"},
    "artifacts": [{"name": "thumbnail", "url": "https://example.com/cat-64.png"}],
    "completedAt": "2026-01-31T12:00:09.000Z",
}
_QUEUE = {
    "command": "resize-image",
    "ready": 12,
    "delayed": 3,
    "inProgress": 4,
    "dlq": 0,
    "oldestReadySeconds": 7,
}
_RAFT = {
    "enabled": True,
    "numGroups": 1,
    "groups": [
        {
            "shardIdx": 0,
            "isLeader": True,
            "selfId": "n1",
            "selfAddr": "10.0.0.1:7000",
            "leaderId": "n1",
            "leaderAddr": "10.0.0.1:7000",
            "leaderHTTPAddr": "http://10.0.0.1:8080",
            "hasLeader": True,
            "term": 3,
            "commitIndex": 1042,
            "appliedIndex": 1042,
            "digest": "9f2c1a7be0d34c55",
            "logBytes": 65536,
            "durability": "fsync",
            "logSync": "thread",
            "selfHTTPAddr": "http://10.0.0.1:8080",
            "peers": [
                {
                    "id": "n2",
                    "httpAddr": "http://10.0.0.2:8080",
                    "connected": True,
                    "matchIndex": 1042,
                }
            ],
        }
    ],
}
_KEYED_TASK = {
    "command": "resize-image",
    "payload": {"image": "cat.png", "width": 640},
    "idempotencyKey": "cat-640",
}
_NEW_RESULT = {
    "status": "COMPLETED",
    "result": _RESULT["result"],
    "artifacts": _RESULT["artifacts"],
    "leaseToken": _CLAIMED["leaseToken"],
}


_LEASE_TOKEN = Parameter(
    name="X-CodeQ-Lease-Token",
    place="header",
    text="The claim's `leaseToken`, for bodies that do not carry it.",
    schema={"type": "integer"},
)
_CONSISTENCY = Parameter(
    name="consistency",
    place="query",
    text="`stale` reads this node's replica at once, however far behind it is.",
    schema={"type": "string", "enum": ["linearizable", "stale"], "default": "linearizable"},
)
_TRACE = tuple(
    Parameter(name=name, place="header", text="W3C Trace Context.", schema={"type": "string"})
    for name in ("traceparent", "tracestate")
)
_ANY_JSON = "Any JSON but null: an object, an array, a text, a number, true or false."
_APPLIED_INDEX = {"X-CodeQ-Applied-Index": "How far the replica is; on stale reads alone."}

_TOO_LARGE = from_failure(OperationTooLarge())
_LEASE_TOKEN_MALFORMED = bad_request(
    "invalid 'X-CodeQ-Lease-Token' (use an integer)", "invalid-lease-token"
)
_NOTHING_CAME = DescribedAnswer(status=204, text="Nothing came in time.")


def operations(settings: NodeSettings) -> dict[Handler, DescribedOperation]:
    """Return what each handler takes and answers on a node of these settings."""
    return _producing(settings) | _claiming(settings) | _ending(settings) | _asking(settings)


def fields(settings: NodeSettings) -> dict[type[Struct], Fields]:
    """Return what bodies' types do not say, on a node of these settings."""
    limits, lifecycle = settings.limits, settings.lifecycle
    lease_token = _said("The claim's; a stale one is refused. Absent: the caller's name decides.")
    return {
        requests.TaskBody: Fields(
            required=("command", "payload"),
            known={
                "command": _said("The queue; case is kept.", pattern=f"^{COMMAND.pattern}$"),
                "payload": _said(
                    f"{_ANY_JSON} Kept as the text that was sent, nested at most "
                    f"{limits.payload_depth_max} deep.",
                    **{"not": {"type": "null"}},
                ),
                "priority": _said(
                    f"Higher goes first; moved into {PRIORITY_MIN} to {PRIORITY_MAX}, 0 when "
                    "absent; one of the topic's `priorityTiers`, where it has them."
                ),
                "webhook": _said(
                    "URL of http or https, on a public address; for nodes that sign, or that may "
                    "do without.",
                    format="uri",
                ),
                "maxAttempts": _said(
                    f"Deliveries before the task is a dead letter; {lifecycle.max_attempts_default}"
                    " for 0 or less.",
                    maximum=limits.max_attempts_max,
                ),
                "idempotencyKey": _said(
                    "A second create with it returns the first one's task; at most "
                    f"{limits.idempotency_key_bytes_max} bytes."
                ),
                "runAt": _said(
                    "Not delivered before; wins over `delaySeconds`. RFC 3339.", format="date-time"
                ),
                "delaySeconds": _said(
                    "Not delivered for so long.", minimum=0, maximum=limits.delay_seconds_max
                ),
                "ttlSeconds": _said(
                    "A dead letter when not delivered for so long; 0 for never.",
                    minimum=0,
                    maximum=limits.delay_seconds_max,
                ),
            },
        ),
        requests.TasksBody: Fields(
            required=("tasks",),
            known={
                "tasks": _said(
                    "Each is judged on its own.",
                    minItems=1,
                    maxItems=limits.batch_max,
                    items={"$ref": "#/components/schemas/TaskBody"},
                )
            },
        ),
        requests.ClaimBody: Fields(
            known={
                "commands": _said(
                    "Queues to take from, each allowed by the token; absent or empty for all of "
                    "the token's.",
                    maxItems=COMMANDS_MAX,
                    items=COMMAND_SCHEMA,
                ),
                "leaseSeconds": _said(
                    f"How long the tasks are the caller's; {lifecycle.default_lease_seconds} for 0 "
                    "or less.",
                    maximum=limits.lease_seconds_max,
                ),
                "waitSeconds": _said(
                    "How long to wait for a task; moved into 0 to "
                    f"{limits.claim_wait_seconds_max}. The wait ends {workers.EARLY_S} s early."
                ),
                "count": _said(
                    "How many tasks at most; heeded by the batch route alone.",
                    minimum=1,
                    maximum=limits.batch_max,
                ),
            },
        ),
        requests.LeaseBody: Fields(
            known={
                "extendSeconds": _said(
                    "Of a heartbeat: the lease ends so long from now; "
                    f"{lifecycle.default_lease_seconds} for 0 or less.",
                    maximum=limits.lease_seconds_max,
                ),
                "delaySeconds": _said(
                    "Of a nack: ready again after so long, moved into 0 to "
                    f"{lifecycle.backoff_max_seconds}; 0 for the back-off's choice."
                ),
                "reason": _said(
                    f"Of a nack: kept in the task's history, its first {workers.REASON_CHARS_MAX} "
                    "characters."
                ),
                "leaseToken": lease_token,
            },
        ),
        requests.ArtifactBody: artifacts.fields(settings),
        requests.ResultBody: Fields(
            required=("status",),
            known={
                "status": _said("How the task ended.", enum=["COMPLETED", "FAILED"]),
                "result": _said(
                    f"{_ANY_JSON} codeQ takes objects alone. At most "
                    f"{limits.max_result_bytes} bytes; required when COMPLETED."
                ),
                "error": _said(
                    f"At most {limits.max_error_bytes} bytes; required when FAILED, and not blank."
                ),
                "artifacts": _said(
                    "Products, kept elsewhere or to be kept here.",
                    maxItems=ARTIFACTS_MAX,
                    items={"$ref": "#/components/schemas/ArtifactBody"},
                ),
                "leaseToken": lease_token,
                "taskId": _said("Heeded, and required, by the batch route alone."),
            },
        ),
        requests.ResultsBody: Fields(
            required=("results",),
            known={
                "results": _said(
                    "Each is judged on its own.",
                    minItems=1,
                    maxItems=limits.batch_max,
                    items={"$ref": "#/components/schemas/ResultBody", "required": ["taskId"]},
                )
            },
        ),
    }


def _limited(scope: Scope, operation: str) -> ApiError:
    return from_failure(LimitExceeded(scope=scope, operation=operation, retry_after_s=1))


def _over_budget(limit: str, operation: str) -> ApiError:
    return from_failure(over_budget(Rejected(Rejection.BUDGET_EXCEEDED, limit), operation))


def _producing(settings: NodeSettings) -> dict[Handler, DescribedOperation]:
    limits = settings.limits
    return {
        tasks.create: DescribedOperation(
            body=requests.TaskBody,
            example=_KEYED_TASK | {"priority": 5},
            parameters=_TRACE,
            answers=(
                DescribedAnswer(
                    status=202,
                    text="The task stands, new or made before with the same idempotency key.",
                    example=_TASK,
                    headers={
                        "X-CodeQ-Idempotent-Replay": "`true` when the task had been made before."
                    },
                ),
            ),
            errors=(
                bad_request("invalid 'runAt' (use RFC3339)", "invalid-run-at"),
                bad_request("invalid 'delaySeconds' (must be >= 0)", "invalid-delay-seconds"),
                _INVALID_COMMAND,
                webhooks.NOT_CONFIGURED,
                bad_request("invalid webhook url", "invalid-webhook-url"),
                _beyond("delaySeconds", limits.delay_seconds_max),
                bad_request("invalid 'ttlSeconds' (must be >= 0)", "invalid-ttl-seconds"),
                _beyond("ttlSeconds", limits.delay_seconds_max),
                _beyond("maxAttempts", limits.max_attempts_max),
                bad_request(
                    f"invalid 'idempotencyKey' (at most {limits.idempotency_key_bytes_max} bytes)",
                    "invalid-idempotency-key",
                ),
                from_rejection(Rejected(Rejection.INVALID_PRIORITY, "0, 5, 9")),
                _CONFLICT,
                _TOO_LARGE,
                _limited(Scope.PRODUCER, "create_task"),
                _over_budget("readyTasks", "create_task"),
                _over_budget("storedBytes", "create_task"),
            ),
        ),
        tasks.create_batch: DescribedOperation(
            body=requests.TasksBody,
            example={"tasks": [_KEYED_TASK, _KEYED_TASK | {"payload": {"image": "dog.png"}}]},
            parameters=_TRACE,
            answers=(
                DescribedAnswer(
                    text="What became of each item, in order.",
                    example={
                        "results": [
                            {"task": _TASK},
                            {"error": _CONFLICT.text, "code": _CONFLICT.code},
                        ]
                    },
                ),
            ),
            errors=(
                _batch_too_large(limits.batch_max),
                _limited(Scope.PRODUCER, "create_task"),
            ),
        ),
        tasks.cancel: DescribedOperation(
            answers=(
                DescribedAnswer(
                    text="The task is cancelled; its holder's result will be refused.",
                    example={"status": "cancelled", "id": _ID},
                ),
            ),
            errors=(
                _rejected(Rejection.NOT_FOUND, "not found"),
                _rejected(Rejection.ALREADY_TERMINAL),
            ),
        ),
    }


def _claiming(settings: NodeSettings) -> dict[Handler, DescribedOperation]:
    limits = settings.limits
    example = {"commands": ["resize-image"], "leaseSeconds": 300, "waitSeconds": 10}
    errors = (
        _beyond("leaseSeconds", limits.lease_seconds_max),
        bad_request(f"invalid 'commands' (at most {COMMANDS_MAX})", _BEYOND),
        _INVALID_COMMAND,
        ApiError(403, "event type not allowed", "event-type-not-allowed"),
        _limited(Scope.WORKER, "claim"),
        _over_budget("inFlight", "claim"),
    )
    count_too_large = bad_request(f"count exceeds maximum of {limits.batch_max}", "count-too-large")
    return {
        workers.claim: DescribedOperation(
            body=requests.ClaimBody,
            example=example,
            answers=(
                DescribedAnswer(text="The task, now the caller's.", example=_CLAIMED),
                _NOTHING_CAME,
            ),
            errors=errors,
        ),
        workers.claim_batch: DescribedOperation(
            body=requests.ClaimBody,
            required=("count",),
            example={"count": min(10, limits.batch_max)} | example,
            answers=(
                DescribedAnswer(
                    text="The tasks, now the caller's; at least one.",
                    example={"tasks": [_CLAIMED]},
                ),
                _NOTHING_CAME,
            ),
            errors=(count_too_large, *errors),
        ),
    }


def _ending(settings: NodeSettings) -> dict[Handler, DescribedOperation]:
    limits = settings.limits
    lost = (
        _rejected(Rejection.NOT_OWNER),
        _rejected(Rejection.NOT_IN_PROGRESS),
        _rejected(Rejection.LEASE_LOST),
        _LEASE_TOKEN_MALFORMED,
    )
    unknown = _rejected(Rejection.NOT_FOUND)
    token = {"leaseToken": _CLAIMED["leaseToken"]}
    return {
        workers.heartbeat: DescribedOperation(
            body=requests.LeaseBody,
            example={"extendSeconds": 300} | token,
            parameters=(_LEASE_TOKEN,),
            answers=(
                DescribedAnswer(
                    text="The lease is longer, on a majority of the nodes.",
                    example={"ok": True, "leaseUntil": "2026-01-31T12:09:30.000Z"},
                ),
            ),
            errors=(_beyond("extendSeconds", limits.lease_seconds_max), unknown, *lost),
        ),
        workers.abandon: DescribedOperation(
            body=requests.LeaseBody,
            body_may_miss=True,
            example=token,
            parameters=(_LEASE_TOKEN,),
            answers=(
                DescribedAnswer(
                    text="The task is back in its queue, or a dead letter.",
                    example={"status": "requeued"},
                ),
            ),
            errors=(unknown, *lost),
        ),
        workers.nack: DescribedOperation(
            body=requests.LeaseBody,
            example={"delaySeconds": 30, "reason": "upstream is down"} | token,
            parameters=(_LEASE_TOKEN,),
            answers=(
                DescribedAnswer(
                    text="The task is back in its queue after a delay, or a dead letter.",
                    example={"status": "requeued", "delaySeconds": 30},
                ),
            ),
            errors=(unknown, *lost),
        ),
        workers.submit: DescribedOperation(
            body=requests.ResultBody,
            example=_NEW_RESULT,
            parameters=(_LEASE_TOKEN,),
            answers=(
                DescribedAnswer(
                    text="The result stands; the same one sent again gets the same answer.",
                    example=_RESULT,
                ),
            ),
            errors=(
                bad_request("result required when status=COMPLETED", "result-required"),
                bad_request("error required when status=FAILED", "error-required"),
                bad_request("invalid status", "invalid-status"),
                bad_request(f"invalid 'artifacts' (at most {ARTIFACTS_MAX})", _BEYOND),
                *artifacts.result_errors(limits),
                ApiError(
                    413, f"result exceeds {limits.max_result_bytes} bytes", "result-too-large"
                ),
                ApiError(413, f"error exceeds {limits.max_error_bytes} bytes", "error-too-large"),
                _TOO_LARGE,
                _TASK_NOT_FOUND,
                *lost,
            ),
        ),
        workers.submit_batch: DescribedOperation(
            body=requests.ResultsBody,
            example={
                "results": [
                    {"taskId": _ID} | _NEW_RESULT,
                    {"taskId": "unheard-of", "status": "FAILED", "error": "no such image"},
                ]
            },
            answers=(
                DescribedAnswer(
                    text="What became of each item, in order.",
                    example={
                        "results": [
                            {"taskId": _ID, "result": _RESULT},
                            {
                                "taskId": "unheard-of",
                                "error": _TASK_NOT_FOUND.text,
                                "code": _TASK_NOT_FOUND.code,
                            },
                        ]
                    },
                ),
            ),
            errors=(_batch_too_large(limits.batch_max),),
        ),
        **artifacts.operations(settings),
    }


def _asking(settings: NodeSettings) -> dict[Handler, DescribedOperation]:
    inconsistent = bad_request(
        "invalid 'consistency' (use linearizable or stale)", "invalid-consistency"
    )
    wait = Parameter(
        name="waitSeconds",
        place="query",
        text=(
            "How long to wait for the end; moved into 0 to "
            f"{settings.limits.result_wait_seconds_max}."
        ),
        schema={"type": "integer", "default": 0},
    )
    return {
        reads.task: DescribedOperation(
            parameters=(_CONSISTENCY,),
            answers=(DescribedAnswer(text="The task.", example=_FINISHED, headers=_APPLIED_INDEX),),
            errors=(inconsistent, _rejected(Rejection.NOT_FOUND, "not found")),
        ),
        reads.result: DescribedOperation(
            parameters=(wait, _CONSISTENCY),
            answers=(
                DescribedAnswer(
                    text="The task has ended.",
                    example={"task": _FINISHED, "result": _RESULT},
                    headers=_APPLIED_INDEX,
                ),
            ),
            errors=(
                inconsistent,
                bad_request("invalid 'waitSeconds' (use an integer)", "invalid-query"),
                _TASK_NOT_FOUND,
                ApiError(404, "result not found", "result-not-found", retryable=True),
            ),
        ),
        raft.status: DescribedOperation(
            answers=(
                DescribedAnswer(
                    text="The groups, by shard.",
                    example=_RAFT,
                ),
            ),
            replicated=False,
        ),
        queues.queues: DescribedOperation(
            answers=(DescribedAnswer(text="The queues, by name.", example=[_QUEUE]),),
        ),
        queues.queue: DescribedOperation(
            answers=(DescribedAnswer(text="The queue.", example=_QUEUE),),
        ),
        ops.healthz: DescribedOperation(
            answers=(DescribedAnswer(text="It serves.", example={"status": "ok"}),),
            replicated=False,
        ),
        ops.readyz: DescribedOperation(
            answers=(
                DescribedAnswer(text="It is.", body=Word, example={"status": "ready"}),
                DescribedAnswer(
                    status=503,
                    text="It is not.",
                    body=NotReady,
                    example={
                        "error": "not ready",
                        "code": "not-ready",
                        "retryable": True,
                        "requestId": "0f8fad5b-d9cb-469f-a165-70867728950e",
                        "missing": ["shard 3 has no leader"],
                    },
                    headers={"Retry-After": "Seconds."},
                ),
            ),
            replicated=False,
        ),
        ops.metrics: DescribedOperation(
            answers=(DescribedAnswer(text="Prometheus text.", media="text/plain"),),
            replicated=False,
        ),
        openapi.spec: DescribedOperation(
            answers=(DescribedAnswer(text="This document."),), replicated=False
        ),
        openapi.page: DescribedOperation(
            answers=(
                DescribedAnswer(
                    text="The page.",
                    media="text/html",
                    headers={
                        "Content-Security-Policy": "Allows what is written in the page alone.",
                        "Referrer-Policy": "`no-referrer`.",
                        "X-Content-Type-Options": "`nosniff`.",
                    },
                ),
            ),
            replicated=False,
        ),
    }


def _said(text: str, **facts: object) -> dict[str, object]:
    return {"description": text, **facts}


def _rejected(rejection: Rejection, not_found: str = "not-found") -> ApiError:
    return from_rejection(Rejected(rejection), not_found=not_found)


def _beyond(name: str, most: int) -> ApiError:
    return bad_request(f"invalid '{name}' (must be <= {most})", _BEYOND)


def _batch_too_large(batch_max: int) -> ApiError:
    return bad_request(f"batch size exceeds maximum of {batch_max}", "batch-too-large")


_BEYOND = "out-of-range"
_CONFLICT = _rejected(Rejection.IDEMPOTENCY_CONFLICT)
_INVALID_COMMAND = bad_request("invalid command", "invalid-command")
_TASK_NOT_FOUND = _rejected(Rejection.NOT_FOUND, "task not found")
