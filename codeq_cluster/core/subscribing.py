"""Subscribing: which workers are notified when a queue becomes non-empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from codeq_cluster.core.changes import Decision, ItemChange
from codeq_cluster.core.items import SUBSCRIPTIONS_MAX, Subscription
from codeq_cluster.core.operations import RenewSubscription, Subscribe, Unsubscribe
from codeq_cluster.core.outcomes import Changed, Rejected, Rejection, Subscribed
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.view import View


def _subscribe(view: View, operation: Subscribe, _: LifetimeRules) -> Decision:
    """Add a subscription."""
    assert operation.ttl_ms >= 1
    found = view.item(ItemKind.SUBSCRIPTION, operation.tenant, operation.id)
    if isinstance(found, Subscription):
        return Decision(Subscribed(found))
    have = view.count_items(ItemKind.SUBSCRIPTION, operation.tenant, SUBSCRIPTIONS_MAX)
    if have == SUBSCRIPTIONS_MAX:
        return Decision(Rejected(Rejection.TOO_MANY, "subscriptions"))
    item = Subscription(
        tenant=operation.tenant,
        id=operation.id,
        worker=operation.worker,
        callback_url=operation.callback_url,
        event_types=operation.event_types,
        mode=operation.mode,
        group_id=operation.group_id,
        ttl_ms=operation.ttl_ms,
        min_interval_ms=operation.min_interval_ms,
        created_ms=view.now_ms,
        expires_ms=view.now_ms + operation.ttl_ms,
    )
    return Decision(Subscribed(item), (ItemChange(before=None, after=item),))


def _renew(view: View, operation: RenewSubscription, _: LifetimeRules) -> Decision:
    """Extend a subscription; an ended one stays ended."""
    found = view.item(ItemKind.SUBSCRIPTION, operation.tenant, operation.id)
    if not isinstance(found, Subscription) or found.expires_ms <= view.now_ms:
        return Decision(Rejected(Rejection.NOT_FOUND))
    ttl_ms = operation.ttl_ms or found.ttl_ms
    after = replace(found, ttl_ms=ttl_ms, expires_ms=view.now_ms + ttl_ms)
    if after == found:
        return Decision(Subscribed(found))
    return Decision(Subscribed(after), (ItemChange(before=found, after=after),))


def _unsubscribe(view: View, operation: Unsubscribe, _: LifetimeRules) -> Decision:
    """End a subscription."""
    found = view.item(ItemKind.SUBSCRIPTION, operation.tenant, operation.id)
    if found is None:
        return Decision(Changed(0))
    return Decision(Changed(1), (ItemChange(before=found, after=None),))


RULES: dict[type, Callable[[View, Any, LifetimeRules], Decision]] = {
    Subscribe: _subscribe,
    RenewSubscription: _renew,
    Unsubscribe: _unsubscribe,
}
