"""Audit: the requests and answers of its handler."""

from __future__ import annotations

from codeq_cluster.api.openapi.examples import COMMAND, NOON_MS
from codeq_cluster.api.openapi.parameters import CURSOR, PAGE, PAGED
from codeq_cluster.api.openapi.types import DescribedAnswer, DescribedOperation, Operations
from codeq_cluster.api.routes import audit
from codeq_cluster.api.schemas.item_views import AuditPage, audit_view
from codeq_cluster.core.items import Audit

_RECORD = Audit(
    tenant="acme",
    id="000998230052800000-5f0c4a2e9b7d4c1f8e3a6b2d1c0f9e8d",
    at_ms=NOON_MS + 30 * 60_000,
    actor="ops@example.com",
    action="topic.put",
    target=COMMAND,
    detail="version 2",
    index=1042,
)

OPERATIONS: Operations = {
    audit.audit: DescribedOperation(
        DescribedAnswer("A page.", AuditPage([audit_view(_RECORD)], CURSOR)),
        parameters=PAGE,
        errors=PAGED,
    )
}
