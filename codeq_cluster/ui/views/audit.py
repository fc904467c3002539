"""Audit: what is on record, as far as a role may see it."""

from __future__ import annotations

from aiohttp import web

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.routes import audit as audit_routes
from codeq_cluster.auth import Role
from codeq_cluster.core.items import Audit

# What operators do; all else names a tenant's tasks and queues.
_OF_CLUSTER = ("cluster.", "backup.")


async def audit(call: Call) -> web.Response:
    """Return what was changed in the caller's tenant, the newest first.

    An operator who is no admin sees what was done to the cluster alone; a page may be short, or
    empty, and still have a cursor.
    """
    of_tenant = Role.ADMIN in call.identity.roles
    return await audit_routes.records(call, lambda each: of_tenant or _of_cluster(each))


def _of_cluster(record: Audit) -> bool:
    return record.action.startswith(_OF_CLUSTER)
