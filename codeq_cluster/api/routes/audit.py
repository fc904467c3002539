"""Audit: the changes that admins and operators made, with author and time."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.routes.listing import listed
from codeq_cluster.api.schemas.item_views import AuditPage, audit_view
from codeq_cluster.core.items import Audit


async def audit(call: Call) -> HttpAnswer[AuditPage]:
    """Return the changes by the tenant's admins and by its operators.

    The newest comes first. An operator's changes of the cluster are recorded in the operator's own
    tenant.
    """
    return await records(call, lambda _: True)


async def records(call: Call, shown: Callable[[Audit], bool]) -> HttpAnswer[AuditPage]:
    """Return the requested page of records, without those that `shown` rejects."""
    found, cursor = await listed(call, Audit)
    views = [audit_view(each) for each in found if shown(each)]
    return reply(AuditPage(views, cursor))
