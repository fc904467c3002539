"""Audit record: the row that an operator's action leaves."""

from __future__ import annotations

from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.items import Audit, audit_id
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.view import View

Said = tuple[str, str, str]  # The action, its target and a detail.


def recorded(
    view: View,
    rules: LifetimeRules,
    said: Said,
    *,
    tenant: str,
    by: str,
    request: str,
    record_id: str = "",
) -> ItemChange:
    """Return the change that adds a record; its id is of now and the request, unless given."""
    now_ms = view.now_ms
    action, target, detail = said
    item = Audit(
        tenant=tenant,
        id=record_id or audit_id(now_ms, request),
        at_ms=now_ms,
        actor=by,
        action=action,
        target=target,
        detail=detail,
        request=request,
        expires_ms=now_ms + rules.audit_retention_ms,
    )
    # A retry may do the rest in the same millisecond: that is one action, and its last record
    # stays.
    return ItemChange(before=view.item(ItemKind.AUDIT, item.tenant, item.id), after=item)
