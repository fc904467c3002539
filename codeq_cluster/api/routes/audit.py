"""Audit: the changes that admins and operators made, with author and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.routes.listing import PAGE, caller, listed
from codeq_cluster.api.routes.task_views import COMMAND, CURSOR, NOON_MS
from codeq_cluster.auth import Access
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.items import Audit
from codeq_cluster.errors import CodeqError, OutcomeUnknown

ROUTES = Routes(__name__, __doc__, Access.ADMIN)


class AuditView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A change by an admin or an operator.

    `index` is that of its log entry.
    """

    id: str
    at: str
    actor: str
    action: str
    target: str
    detail: str = ""
    index: Int64


class AuditPage(Struct):
    """A page of a list; the cursor is missing at its end."""

    records: Sequence[AuditView]
    cursor: str | UnsetType = UNSET


_RECORD = AuditView(
    id="000998230052800000-5f0c4a2e9b7d4c1f8e3a6b2d1c0f9e8d",
    at=rfc3339(NOON_MS + 30 * 60_000),
    actor="ops@example.com",
    action="topic.put",
    target=COMMAND,
    detail="version 2",
    index=1042,
)


@ROUTES("GET", "/admin/audit", Answer("A page.", AuditPage([_RECORD], CURSOR)), parameters=PAGE)
async def audit(call: Call) -> HttpAnswer[AuditPage]:
    """Return the changes by the tenant's admins and by its operators.

    The newest comes first. An operator's changes of the cluster are recorded in the operator's own
    tenant.
    """
    return await records(call, lambda _: True)


async def records(call: Call, shown: Callable[[Audit], bool]) -> HttpAnswer[AuditPage]:
    """Return the requested page of records, without those that `shown` rejects."""
    found, cursor = await listed(call, Audit)
    views = [_view(each) for each in found if shown(each)]
    return reply(AuditPage(views, cursor))


async def put_on_record(call: Call, action: str, target: str, *, detail: str = "") -> None:
    """Record a change that has been made, with the caller as its author.

    Raises:
        OutcomeUnknown: The change was made but may not be recorded.
    """
    try:
        await call.services.broker.queue_policies.record(
            caller(call), action=action, target=target, detail=detail
        )
    except CodeqError as error:
        raise OutcomeUnknown("it is done, and perhaps not on record") from error


def _view(record: Audit) -> AuditView:
    return AuditView(
        id=record.id,
        at=rfc3339(record.at_ms),
        actor=record.actor,
        action=record.action,
        target=record.target,
        detail=record.detail,
        index=record.index,
    )
