"""Audit: the changes that admins and operators made, with author and time."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.schemas import paging
from codeq_cluster.api.schemas.item_views import AuditPage, audit_view
from codeq_cluster.core.items import Audit, ItemKind


async def audit(call: Call) -> HttpAnswer[AuditPage]:
    """Return the actions of the tenant's admins and of the operators who belong to it.

    The newest comes first. The tenant of an operator has the record of that operator's actions on
    the cluster.
    """
    return await records(call, lambda _: True)


async def records(call: Call, shown: Callable[[Audit], bool]) -> HttpAnswer[AuditPage]:
    """Return the part of them that is asked for, as far as it is to be shown."""
    asked = paging.asked(call)
    found, edge = await call.services.broker.operators.items(
        call.identity.tenant,
        ItemKind.AUDIT,
        after=asked.after,
        count=asked.count,
        timeout_s=call.timeout_s,
    )
    views = [audit_view(each) for each in found if isinstance(each, Audit) and shown(each)]
    return reply(AuditPage(views, asked.cursor(edge)))
