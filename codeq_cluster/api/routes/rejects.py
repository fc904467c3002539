"""Rejects: a worker says that no attempt can finish its task."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.api.declared.bodies import Body, Schema, field
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.http.refusals import NOT_FOUND, accepted
from codeq_cluster.api.routes import workers
from codeq_cluster.api.routes.workers import LEASE_TOKEN, LEASE_TOKEN_FIELD, NOT_HELD, lease_token
from codeq_cluster.auth import Access
from codeq_cluster.broker.values import new_request
from codeq_cluster.codec.levels import REJECTS_FROM
from codeq_cluster.core.bounds import REASON_CHARS_MAX
from codeq_cluster.core.reject import Reject

ROUTES = Routes("workers", workers.__doc__, Access.WORKER)

_TOO_EARLY = TooEarly(REJECTS_FROM, "a reject needs")


class RejectBody(Body):
    """Why no attempt can finish the task; everything may be absent."""

    reason: str | None = field(
        f"The error of the dead letter; the first {REASON_CHARS_MAX} characters, or REJECTED."
    )
    lease_token: Int64 | None = LEASE_TOKEN_FIELD


_REJECT = Schema(RejectBody)


class RejectedTask(Struct):
    """Where the task went: `dlq`, or `cancelled` if it was to end."""

    status: str


@ROUTES(
    "POST",
    "/tasks/{id}/reject",
    Answer("The task is a dead letter, or cancelled.", RejectedTask("dlq")),
    scope="codeq:nack",
    body=_REJECT,
    example={"reason": "no such customer: 42"},
    may_miss=True,
    parameters=(LEASE_TOKEN,),
    errors=(NOT_FOUND, *NOT_HELD, _TOO_EARLY),
    whole=True,
)
async def reject(call: Call) -> HttpAnswer[RejectedTask]:
    """Make a task a dead letter, whatever attempts it has left; a body is optional.

    Its error is the reason. An operator may requeue it, as any dead letter.
    """
    body = _REJECT.decode_any(call.text)
    task_id = call.task_id(not_found=NOT_FOUND)
    _TOO_EARLY.check(call)
    operation = Reject(
        request=new_request(),
        id=task_id,
        tenant=call.identity.tenant,
        worker=call.identity.subject,
        reason=(body.reason or "")[:REASON_CHARS_MAX],
        token=lease_token(call, body.lease_token),
    )
    returned = accepted(await call.services.broker.give_back(operation, call.timeout_s))
    return reply(RejectedTask(workers.went(returned)))
