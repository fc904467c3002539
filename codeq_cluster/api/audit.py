"""Audit: what operators changed, by whom and when."""

from __future__ import annotations

from aiohttp import web

from codeq_cluster.api import paging
from codeq_cluster.api.call import Call, reply
from codeq_cluster.api.item_views import AuditPage, audit_view
from codeq_cluster.api.rendering import encode
from codeq_cluster.core.items import Audit, Kind


async def audit(call: Call) -> web.Response:
    """Return what was done to the tenant's queues and tasks by its operators, the newest first."""
    asked = paging.asked(call)
    found, edge = await call.services.broker.operators.items(
        call.identity.tenant,
        Kind.AUDIT,
        after=asked.after,
        count=asked.count,
        timeout_s=call.timeout_s,
    )
    views = [audit_view(each) for each in found if isinstance(each, Audit)]
    return reply(encode(AuditPage.of(views, asked.cursor(edge))))
