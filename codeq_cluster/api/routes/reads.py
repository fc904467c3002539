"""Reads: a task and its result, of the caller's own tenant only."""

from __future__ import annotations

from collections.abc import Mapping

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.http.refusals import NO_TASK, TASK_NOT_FOUND
from codeq_cluster.api.http.waits import WaitEnded
from codeq_cluster.api.routes.workers import EARLY_S
from codeq_cluster.api.schemas.task_views import (
    ExplanationView,
    TaskAndResult,
    TaskView,
    explanation_view,
    result_view,
    task_view,
)
from codeq_cluster.broker.values import FoundTask


async def task(call: Call) -> HttpAnswer[TaskView]:
    """Return a task."""
    stale = call.stale()
    found = await call.services.broker.task(
        call.identity.tenant,
        call.task_id(not_found=NO_TASK),
        stale=stale,
        timeout_s=call.timeout_s,
    )
    if found is None:
        raise NO_TASK
    return reply(_view(call, found), headers=_freshness(found, stale=stale))


async def result(call: Call) -> HttpAnswer[TaskAndResult]:
    """Return a task and how it ended, waiting for the end as long as the caller asks."""
    stale = call.stale()
    wait_s = call.query_integer("waitSeconds")
    wait_s = min(max(wait_s, 0), call.services.settings.limits.result_wait_seconds_max)
    task_id = call.task_id(not_found=TASK_NOT_FOUND)
    asking = call.services.broker.result(
        call.identity.tenant,
        task_id,
        wait_s=max(0.0, wait_s - EARLY_S),
        stale=stale,
        timeout_s=call.timeout_s,
    )
    try:
        answer = await asking if wait_s == 0 else await call.services.waits.wait(asking)
    except WaitEnded as ended_early:
        raise result_not_found({}) from ended_early
    if answer is None:
        raise TASK_NOT_FOUND
    found, ended = answer
    headers = _freshness(found, stale=stale)
    if ended is None:
        raise result_not_found(headers)
    return reply(TaskAndResult(_view(call, found), result_view(ended)), headers=headers)


async def explain(call: Call) -> HttpAnswer[ExplanationView]:
    """Explain why a task is in its state: the one reason it is not running, or that it is.

    If several reasons apply, it is the one that must end first.
    """
    task_id = call.task_id(not_found=TASK_NOT_FOUND)
    found = await call.services.broker.operators.explain(
        call.identity.tenant, task_id, timeout_s=call.timeout_s
    )
    if found is None:
        raise TASK_NOT_FOUND
    return reply(explanation_view(task_id, found))


def result_not_found(headers: Mapping[str, str]) -> ApiError:
    """Return the 404 for a task that has not ended."""
    return ApiError(404, "result not found", "result-not-found", retryable=True, headers=headers)


def _view(call: Call, found: FoundTask) -> TaskView:
    return task_view(found.task, found.payload, shards=call.services.settings.shards)


def _freshness(found: FoundTask, *, stale: bool) -> dict[str, str]:
    return {"X-CodeQ-Applied-Index": str(found.applied_index)} if stale else {}
