"""Reads: a task and its result, of the caller's own tenant only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct

from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.parameters import query
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.api.http.refusals import INVALID_CONSISTENCY, NO_TASK, TASK_NOT_FOUND
from codeq_cluster.api.http.waits import WaitEnded
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.api.routes.task_views import (
    FINISHED,
    RESULT,
    TASK_ID,
    TaskAndResult,
    TaskView,
    result_view,
    task_view,
)
from codeq_cluster.api.routes.workers import EARLY_S
from codeq_cluster.auth import Access
from codeq_cluster.broker.values import FoundTask
from codeq_cluster.core.explaining import Explanation, Reason
from codeq_cluster.core.instants import rfc3339

ROUTES = Routes(__name__, __doc__, Access.TENANT)

PREFIX = re.compile(r"[A-Za-z0-9_:-]{8,128}")
INVALID_PREFIX = bad_request(
    "invalid 'idPrefix' (use at least 8 characters of an id)", "bad-prefix"
)
CONSISTENCY = query(
    "consistency",
    "`stale` reads this node's replica at once, however far behind it is.",
    INVALID_CONSISTENCY,
    enum=["linearizable", "stale"],
    default="linearizable",
)
_APPLIED_INDEX = {
    "X-CodeQ-Applied-Index": "Last entry that the replica has applied; only on stale reads."
}


class TaskIds(Struct):
    """The first ids that begin with a prefix; `more` if there may be others."""

    ids: Sequence[str]
    more: bool


class ExplanationView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The reason for a task's state; `until` is when the passing of time ends it."""

    task_id: str
    reason: Reason
    message: str
    waiting: bool
    until: str = ""


def result_not_found(headers: Mapping[str, str]) -> ApiError:
    """Return the 404 for a task that has not ended."""
    return ApiError(404, "result not found", "result-not-found", retryable=True, headers=headers)


@ROUTES(
    "GET",
    "/tasks",
    Answer("The ids, in order.", TaskIds([FINISHED.id], more=False)),
    parameters=(
        query(
            "idPrefix",
            "The beginning of an id.",
            INVALID_PREFIX,
            required=True,
            pattern=f"^{PREFIX.pattern}$",
        ),
    ),
)
async def ids(call: Call) -> HttpAnswer[TaskIds]:
    """Return the ids that begin with a prefix, as lists and logs show them."""
    prefix = call.query_text("idPrefix")
    if not PREFIX.fullmatch(prefix):
        raise INVALID_PREFIX
    found, more = await call.services.broker.searching.ids(caller(call), prefix)
    return reply(TaskIds(found, more))


@ROUTES(
    "GET",
    "/tasks/{id}",
    Answer("The task.", FINISHED, headers=_APPLIED_INDEX),
    parameters=(CONSISTENCY,),
    errors=(NO_TASK,),
    stale=True,
)
async def task(call: Call) -> HttpAnswer[TaskView]:
    """Return a task."""
    stale = call.stale()
    found = await call.services.broker.task(
        call.identity.tenant, call.task_id(not_found=NO_TASK), stale=stale, timeout_s=call.timeout_s
    )
    if found is None:
        raise NO_TASK
    return reply(_view(call, found), headers=_freshness(found, stale=stale))


@ROUTES(
    "GET",
    "/tasks/{id}/result",
    Answer("The task has ended.", TaskAndResult(FINISHED, RESULT), headers=_APPLIED_INDEX),
    parameters=(
        query(
            "waitSeconds",
            "How long to wait for the end; clamped to 0 to {node.limits.result_wait_seconds_max}.",
            type="integer",
            default=0,
        ),
        CONSISTENCY,
    ),
    errors=(TASK_NOT_FOUND, result_not_found({})),
    stale=True,
)
async def result(call: Call) -> HttpAnswer[TaskAndResult]:
    """Return a task and how it ended, waiting for the end as long as the caller asks."""
    stale = call.stale()
    wait_s = call.query_integer("waitSeconds")
    wait_s = min(max(wait_s, 0), call.services.settings.limits.result_wait_seconds_max)
    task_id = call.task_id(not_found=TASK_NOT_FOUND)
    try:
        answer = await call.services.broker.result(
            call.identity.tenant,
            task_id,
            wait_s=max(0.0, wait_s - EARLY_S),
            place=partial(call.services.shares.waits.in_place, call.identity),
            stale=stale,
            timeout_s=call.timeout_s,
        )
    except WaitEnded as ended_early:
        raise result_not_found({}) from ended_early
    if answer is None:
        raise TASK_NOT_FOUND
    found, ended = answer
    headers = _freshness(found, stale=stale)
    if ended is None:
        raise result_not_found(headers)
    return reply(TaskAndResult(_view(call, found), result_view(ended)), headers=headers)


@ROUTES(
    "GET",
    "/tasks/{id}/explain",
    Answer(
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
)
async def explain(call: Call) -> HttpAnswer[ExplanationView]:
    """Explain why a task is in its state: the one reason it is not running, or that it is.

    If several reasons apply, it is the one that must end first.
    """
    task_id = call.task_id(not_found=TASK_NOT_FOUND)
    found = await call.services.broker.operators.explain(caller(call), task_id)
    if found is None:
        raise TASK_NOT_FOUND
    return reply(explanation_view(task_id, found))


def _freshness(found: FoundTask, *, stale: bool) -> dict[str, str]:
    return {"X-CodeQ-Applied-Index": str(found.applied_index)} if stale else {}


def _view(call: Call, found: FoundTask) -> TaskView:
    return task_view(found.task, found.payload, shards=call.services.settings.shards)


def explanation_view(task_id: str, explanation: Explanation) -> ExplanationView:
    """Render the reason for a task's state."""
    return ExplanationView(
        task_id=task_id,
        reason=explanation.reason,
        message=explanation.text,
        waiting=explanation.reason.waiting,
        until=rfc3339(explanation.until_ms) if explanation.until_ms else "",
    )
