"""Webhooks: result callbacks in progress or dead, and subscriptions to queues."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request
from codeq_cluster.api.schemas import paging
from codeq_cluster.api.schemas.item_views import (
    DeliveryPage,
    SubscriptionPage,
    delivery_view,
    subscription_view,
)
from codeq_cluster.core.items import Delivery, ItemKind, Subscription
from codeq_cluster.ui.views.rows import shown_url


async def deliveries(call: Call) -> HttpAnswer[DeliveryPage]:
    """Return the tenant's dead deliveries, the latest first, or those in progress."""
    status = call.query_text("status")
    if status not in {"dead", "pending"}:
        raise bad_request("invalid 'status' (use dead or pending)", "invalid-query")
    asked = paging.asked(call, order=status)
    found, edge = await call.services.broker.operators.items(
        call.identity.tenant,
        ItemKind.DELIVERY,
        after=asked.after,
        count=asked.count,
        timeout_s=call.timeout_s,
        dead_only=status == "dead",
    )
    views = [
        replace(delivery_view(each), url=shown_url(each.url, call.identity))
        for each in found
        if isinstance(each, Delivery) and bool(each.died_ms) == (status == "dead")
    ]
    return reply(DeliveryPage(views, asked.cursor(edge)))


async def subscriptions(call: Call) -> HttpAnswer[SubscriptionPage]:
    """Return the tenant's subscriptions, which are called when a queue fills."""
    asked = paging.asked(call)
    found, edge = await call.services.broker.operators.items(
        call.identity.tenant,
        ItemKind.SUBSCRIPTION,
        after=asked.after,
        count=asked.count,
        timeout_s=call.timeout_s,
    )
    views = [
        replace(subscription_view(each), callback_url=shown_url(each.callback_url, call.identity))
        for each in found
        if isinstance(each, Subscription)
    ]
    return reply(SubscriptionPage(views, asked.cursor(edge)))
