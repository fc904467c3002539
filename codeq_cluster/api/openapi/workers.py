"""Workers: the requests and answers of the handlers of claims, leases and results."""

from __future__ import annotations

from codeq_cluster.api.http.refusals import (
    INVALID_COMMAND,
    INVALID_STATUS,
    NOT_ALLOWED,
    NOT_FOUND,
    TASK_NOT_FOUND,
    batch_too_large,
    too_high,
    too_many,
)
from codeq_cluster.api.openapi import artifacts
from codeq_cluster.api.openapi.examples import CLAIMED, RESULT, TASK_ID
from codeq_cluster.api.openapi.parameters import header
from codeq_cluster.api.openapi.tasks import (
    ANY_JSON,
    TOO_LARGE,
    budget_exceeded,
    items_of,
    rate_limited,
)
from codeq_cluster.api.openapi.types import (
    COMMAND_SCHEMA,
    BodyFields,
    DescribedAnswer,
    DescribedBody,
    DescribedOperation,
    Fields,
    Operations,
    said,
)
from codeq_cluster.api.routes import workers
from codeq_cluster.api.routes.allowed import COMMANDS_MAX
from codeq_cluster.api.routes.attachments import ARTIFACTS_MAX
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.lease_views import (
    AbandonedTask,
    ClaimedBatch,
    ExtendedLease,
    RefusedTask,
    SubmittedBatch,
    SubmittedItem,
)
from codeq_cluster.settings import LimitSettings, NodeSettings

_LEASE_TOKEN = (
    header(
        "X-CodeQ-Lease-Token",
        "The claim's `leaseToken`, if the body does not have it.",
        "integer",
    ),
)
_LOST = (*artifacts.NOT_HELD, workers.INVALID_TOKEN)
_TOKEN = {"leaseToken": CLAIMED.lease_token}
_NEW_RESULT = {
    "status": RESULT.status,
    "result": RESULT.result,
    "artifacts": RESULT.artifacts,
    **_TOKEN,
}
_NOTHING_CAME = DescribedAnswer("No task became ready in time.", status=204)


def operations(limits: LimitSettings) -> Operations:
    """Return the description of these handlers within these limits."""
    return _claiming(limits) | _holding(limits) | _ending(limits)


def _claiming(limits: LimitSettings) -> Operations:
    example = {"commands": [CLAIMED.command], "leaseSeconds": 300, "waitSeconds": 10}
    errors = (
        too_high("leaseSeconds", limits.lease_seconds_max),
        too_many("commands", COMMANDS_MAX),
        INVALID_COMMAND,
        NOT_ALLOWED,
        rate_limited(*workers.CLAIMING),
        budget_exceeded("inFlight", "claim"),
    )
    return {
        workers.claim: DescribedOperation(
            DescribedAnswer("The task, now leased to the caller.", CLAIMED),
            _NOTHING_CAME,
            body=DescribedBody(requests.ClaimBody, example),
            errors=errors,
        ),
        workers.claim_batch: DescribedOperation(
            DescribedAnswer(
                "The tasks, now leased to the caller; at least one.", ClaimedBatch([CLAIMED])
            ),
            _NOTHING_CAME,
            body=DescribedBody(
                requests.ClaimBody,
                {"count": min(10, limits.batch_max)} | example,
                required=("count",),
            ),
            errors=(workers.count_too_large(limits.batch_max), *errors),
        ),
    }


def _holding(limits: LimitSettings) -> Operations:
    return {
        workers.heartbeat: DescribedOperation(
            DescribedAnswer(
                "The new end of the lease; a majority of the nodes has it.",
                ExtendedLease(ok=True, lease_until="2026-01-31T12:09:30.000Z"),
            ),
            body=DescribedBody(requests.LeaseBody, {"extendSeconds": 300} | _TOKEN),
            parameters=_LEASE_TOKEN,
            errors=(too_high("extendSeconds", limits.lease_seconds_max), NOT_FOUND, *_LOST),
        ),
        workers.abandon: DescribedOperation(
            DescribedAnswer(
                "The task returned to its queue, or became a dead letter.",
                AbandonedTask("requeued"),
            ),
            body=DescribedBody(requests.LeaseBody, _TOKEN, may_miss=True),
            parameters=_LEASE_TOKEN,
            errors=(NOT_FOUND, *_LOST),
        ),
        workers.nack: DescribedOperation(
            DescribedAnswer(
                "The task returns to its queue after a delay, or became a dead letter.",
                RefusedTask("requeued", delay_seconds=30),
            ),
            body=DescribedBody(
                requests.LeaseBody, {"delaySeconds": 30, "reason": "upstream is down"} | _TOKEN
            ),
            parameters=_LEASE_TOKEN,
            errors=(NOT_FOUND, *_LOST),
        ),
    }


def _ending(limits: LimitSettings) -> Operations:
    unheard_of = {"taskId": "unheard-of", "status": "FAILED", "error": "no such image"}
    refused = SubmittedItem("unheard-of", error=TASK_NOT_FOUND.text, code=TASK_NOT_FOUND.code)
    return {
        workers.submit: DescribedOperation(
            DescribedAnswer(
                "The result is stored; a repetition of the request gets the same answer.", RESULT
            ),
            body=DescribedBody(requests.ResultBody, _NEW_RESULT),
            parameters=_LEASE_TOKEN,
            errors=(
                workers.RESULT_REQUIRED,
                workers.ERROR_REQUIRED,
                INVALID_STATUS,
                too_many("artifacts", ARTIFACTS_MAX),
                *artifacts.result_errors(limits),
                workers.result_too_large(limits),
                workers.error_too_large(limits),
                TOO_LARGE,
                TASK_NOT_FOUND,
                *_LOST,
            ),
        ),
        workers.submit_batch: DescribedOperation(
            DescribedAnswer(
                "The outcome of each item, in order.",
                SubmittedBatch([SubmittedItem(TASK_ID, RESULT), refused]),
            ),
            body=DescribedBody(
                requests.ResultsBody, {"results": [{"taskId": TASK_ID} | _NEW_RESULT, unheard_of]}
            ),
            errors=(batch_too_large(limits.batch_max),),
        ),
    }


def fields(settings: NodeSettings) -> BodyFields:
    """Return the description of these bodies' fields beyond their types, with these settings."""
    limits, lifecycle = settings.limits, settings.lifecycle
    lease_token = said(
        "The claim's `leaseToken`; a stale one is refused. Without it, the token's subject must "
        "hold the lease."
    )
    return {
        requests.ClaimBody: Fields(
            known={
                "commands": said(
                    "Queues to claim from; the token must allow each. Absent or empty for all that "
                    "it allows.",
                    maxItems=COMMANDS_MAX,
                    items=COMMAND_SCHEMA,
                ),
                "leaseSeconds": said(
                    f"Duration of the lease; {lifecycle.default_lease_seconds} for 0 or less.",
                    maximum=limits.lease_seconds_max,
                ),
                "waitSeconds": said(
                    "How long to wait for a task; clamped to 0 to "
                    f"{limits.claim_wait_seconds_max}. The wait ends {workers.EARLY_S} s early."
                ),
                "count": said(
                    "Maximum number of tasks; only the batch route uses it.",
                    minimum=1,
                    maximum=limits.batch_max,
                ),
            },
        ),
        requests.LeaseBody: Fields(
            known={
                "extendSeconds": said(
                    "Of a heartbeat: time from now to the new end of the lease; "
                    f"{lifecycle.default_lease_seconds} for 0 or less.",
                    maximum=limits.lease_seconds_max,
                ),
                "delaySeconds": said(
                    "Of a nack: time until the task is ready again, clamped to 0 to "
                    f"{lifecycle.backoff_max_seconds}; 0 for the delay of the back-off."
                ),
                "reason": said(
                    "Of a nack: why; the task's history keeps the first "
                    f"{workers.REASON_CHARS_MAX} characters."
                ),
                "leaseToken": lease_token,
            },
        ),
        requests.ResultBody: Fields(
            required=("status",),
            known={
                "status": said("How the task ended.", enum=["COMPLETED", "FAILED"]),
                "result": said(
                    f"{ANY_JSON} codeQ accepts only objects. At most "
                    f"{limits.max_result_bytes} bytes; required when COMPLETED."
                ),
                "error": said(
                    f"Why it failed: at most {limits.max_error_bytes} bytes; required when FAILED, "
                    "and not blank."
                ),
                "artifacts": said(
                    "Files of the result: a URL, or content that the broker is to store.",
                    maxItems=ARTIFACTS_MAX,
                    items={"$ref": "#/components/schemas/ArtifactBody"},
                ),
                "leaseToken": lease_token,
                "taskId": said("Id of the task; only the batch route uses it, and requires it."),
            },
        ),
        requests.ResultsBody: Fields(
            required=("results",),
            known={"results": items_of("ResultBody", limits, required=["taskId"])},
        ),
    }
