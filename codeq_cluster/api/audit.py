"""Audit: what admins and operators changed, by whom and when."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from codeq_cluster.api import paging
from codeq_cluster.api.call import Call, reply
from codeq_cluster.api.item_views import AuditPage, audit_view
from codeq_cluster.api.rendering import encode
from codeq_cluster.core.items import Audit, Kind


async def audit(call: Call) -> web.Response:
    """Return what was done by admins of the tenant and by operators who belong to it.

    The newest comes first. An operator's actions on the cluster are on record in the operator's
    own tenant.
    """
    return await records(call, lambda _: True)


async def records(call: Call, shown: Callable[[Audit], bool]) -> web.Response:
    """Return the part of them that is asked for, as far as it is to be shown."""
    asked = paging.asked(call)
    found, edge = await call.services.broker.operators.items(
        call.identity.tenant,
        Kind.AUDIT,
        after=asked.after,
        count=asked.count,
        timeout_s=call.timeout_s,
    )
    views = [audit_view(each) for each in found if isinstance(each, Audit) and shown(each)]
    return reply(encode(AuditPage.of(views, asked.cursor(edge))))
