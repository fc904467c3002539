"""Webhooks: result callbacks in progress or dead, and subscriptions to queues."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request
from codeq_cluster.api.routes.listing import listed
from codeq_cluster.api.routes.subscriptions import SubscriptionPage, subscription_view
from codeq_cluster.api.routes.webhooks import DeliveryPage, delivery_view
from codeq_cluster.core.items import Delivery, Subscription
from codeq_cluster.ui.views.rows import shown_url


async def deliveries(call: Call) -> HttpAnswer[DeliveryPage]:
    """Return the tenant's dead deliveries, the latest first, or those in progress."""
    status = call.query_text("status")
    if status not in {"dead", "pending"}:
        raise bad_request("invalid 'status' (use dead or pending)", "invalid-query")
    dead = status == "dead"
    found, cursor = await listed(call, Delivery, order=status, dead_only=dead)
    views = [
        replace(delivery_view(each), url=shown_url(each.url, call.identity))
        for each in found
        if bool(each.died_ms) == dead
    ]
    return reply(DeliveryPage(views, cursor))


async def subscriptions(call: Call) -> HttpAnswer[SubscriptionPage]:
    """Return the tenant's subscriptions, which are called when a queue fills."""
    found, cursor = await listed(call, Subscription)
    views = [
        replace(subscription_view(each), callback_url=shown_url(each.callback_url, call.identity))
        for each in found
    ]
    return reply(SubscriptionPage(views, cursor))
