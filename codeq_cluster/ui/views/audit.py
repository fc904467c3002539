"""Audit: the audit records that a role may see."""

from __future__ import annotations

from codeq_cluster.api.http.answer import HttpAnswer
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.routes import audit as audit_routes
from codeq_cluster.api.routes.audit import AuditPage
from codeq_cluster.auth import Role
from codeq_cluster.core.items import Audit

# The actions of operators; all others name a tenant's tasks and queues.
_OF_CLUSTER = ("cluster.", "backup.")


async def audit(call: Call) -> HttpAnswer[AuditPage]:
    """Return the changes in the caller's tenant, the newest first.

    An operator who is not an admin sees only changes of the cluster. A page may therefore be short
    or empty and still have a cursor.
    """
    of_tenant = Role.ADMIN in call.identity.roles
    return await audit_routes.records(call, lambda each: of_tenant or _of_cluster(each))


def _of_cluster(record: Audit) -> bool:
    return record.action.startswith(_OF_CLUSTER)
