"""Audit: the changes that admins and operators made, with author and time."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.routes.listing import listed
from codeq_cluster.api.schemas.item_views import AuditPage, audit_view
from codeq_cluster.core.items import Audit


async def audit(call: Call) -> HttpAnswer[AuditPage]:
    """Return the actions of the tenant's admins and of the operators who belong to it.

    The newest comes first. The tenant of an operator has the record of that operator's actions on
    the cluster.
    """
    return await records(call, lambda _: True)


async def records(call: Call, shown: Callable[[Audit], bool]) -> HttpAnswer[AuditPage]:
    """Return the part of them that is asked for, as far as it is to be shown."""
    found, cursor = await listed(call, Audit)
    views = [audit_view(each) for each in found if shown(each)]
    return reply(AuditPage(views, cursor))
