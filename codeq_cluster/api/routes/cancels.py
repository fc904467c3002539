"""Cancels: ends a task on demand, at once or after a grace for its worker."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.declared.bodies import Body, Schema, field, whole
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import from_rejection, invalid_body
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.http.refusals import NO_TASK, bounded, too_high, too_low
from codeq_cluster.api.routes import tasks
from codeq_cluster.api.routes.task_views import TASK_ID
from codeq_cluster.auth import Access
from codeq_cluster.codec.levels import CANCELS_FROM
from codeq_cluster.core.bounds import REASON_CHARS_MAX
from codeq_cluster.core.grace import GRACE_MS_MAX
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.task import cancelling_of

ROUTES = Routes("tasks", tasks.__doc__, Access.PRODUCER)

GRACE_S_MAX = GRACE_MS_MAX // 1000
_GRACE = "graceSeconds"
_TOO_EARLY = TooEarly(CANCELS_FROM, f"'{_GRACE}', 'reason' and 'dependents' need")
_INVALID = invalid_body()


class CancelBody(Body):
    """How to cancel a task; everything may be absent."""

    grace_seconds: int | None = field(
        "How long the worker that holds the task has to end it. It hears of it in the answer to "
        "its next heartbeat, and at once in one that waits. A result counts until then; if the "
        "worker gives the task back, its lease expires or the time is over, the task is cancelled. "
        "0 cancels at once, as does a task that nobody holds.",
        refused=(too_low(_GRACE, 0), too_high(_GRACE, GRACE_S_MAX)),
        minimum=0,
        maximum=GRACE_S_MAX,
    )
    reason: str | None = field(
        f"Why, for the worker and for people; the first {REASON_CHARS_MAX} characters are kept."
    )
    dependents: bool | None = field(
        "Cancel also what waits for the task by `dependsOn`, and what waits for that, whatever "
        "these ask for in `runIf`; they are cancelled when the task is, and not if it completes.",
        refused=(_TOO_EARLY,),
    )


_CANCEL = Schema(CancelBody)


class CancelledTask(Struct, rename="camel"):
    """The task: `cancelled`, or `cancelling` until the deadline at the latest."""

    status: str
    id: str
    deadline: str | UnsetType = UNSET


@ROUTES(
    "POST",
    "/tasks/{id}/cancel",
    Answer(
        "The task is cancelled and its holder's result will be refused; or its holder has until "
        "the deadline.",
        CancelledTask("cancelling", TASK_ID, "2026-01-31T12:05:00.000Z"),
    ),
    body=_CANCEL,
    example={_GRACE: 30, "reason": "the order was withdrawn", "dependents": True},
    may_miss=True,
    errors=(NO_TASK, from_rejection(Rejected(Rejection.ALREADY_TERMINAL))),
)
async def cancel(call: Call) -> HttpAnswer[CancelledTask]:
    """Cancel a task that has not ended, even if a worker holds it; a body is optional."""
    body = _CANCEL.decode_any(call.text)
    asked_s = whole(_GRACE, body.grace_seconds, error=_INVALID)
    grace_s = bounded(_GRACE, asked_s, least=0, most=GRACE_S_MAX)
    reason = (body.reason or "")[:REASON_CHARS_MAX]
    task_id = call.task_id(not_found=NO_TASK)
    broker, tenant = call.services.broker, call.identity.tenant
    if grace_s or reason or body.dependents:
        _TOO_EARLY.check(call)
    outcome = await broker.cancel(
        tenant,
        task_id,
        grace_ms=grace_s * 1000,
        reason=reason,
        dependents=bool(body.dependents),
        timeout_s=call.timeout_s,
    )
    if isinstance(outcome, Rejected):
        raise from_rejection(outcome, not_found=NO_TASK.text)
    task = outcome.task
    cancelling = cancelling_of(task)
    if task.state.terminal or cancelling is None:
        return reply(CancelledTask("cancelled", task.id))
    deadline = rfc3339(cancelling.deadline_ms)
    return reply(CancelledTask("cancelling", task.id, deadline))
