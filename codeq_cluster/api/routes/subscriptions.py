"""Subscriptions: requests to be called when a queue stops being empty."""

from __future__ import annotations

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, is_task_id
from codeq_cluster.api.http.errors import ApiError, bad_request, from_rejection, invalid_body
from codeq_cluster.api.http.refusals import NOT_FOUND, bounded
from codeq_cluster.api.routes.allowed import allowed_commands
from codeq_cluster.api.routes.listing import listed
from codeq_cluster.api.routes.webhooks import require_webhooks
from codeq_cluster.api.schemas import reading, requests
from codeq_cluster.api.schemas.item_views import (
    SubscriptionLife,
    SubscriptionPage,
    subscription_view,
)
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.items import Mode, Subscription
from codeq_cluster.core.outcomes import Rejected
from codeq_cluster.core.subscribing import SUBSCRIPTIONS_MAX

TTL_DEFAULT_S = 300
TTL_MAX_S = 86_400
INTERVAL_MAX_S = 86_400
EVENT_TYPES_MAX = 100  # Every node keeps them in memory.
GROUP_BYTES_MAX = 256

TOO_MANY = ApiError(409, f"too many subscriptions (at most {SUBSCRIPTIONS_MAX})", "too-many")
INVALID_CALLBACK = bad_request("invalid callback url", "invalid-callback-url")
INVALID_MODE = bad_request("invalid deliveryMode", "invalid-delivery-mode")
GROUP_REQUIRED = bad_request("groupId is required", "group-id-required")
GROUP_TOO_LONG = bad_request(f"invalid 'groupId' (at most {GROUP_BYTES_MAX} bytes)", "out-of-range")
_INVALID = invalid_body()


async def subscribe(call: Call) -> HttpAnswer[SubscriptionLife]:
    """Subscribe to queues, by default to those of the token."""
    body = requests.SUBSCRIPTION.decode(call.text, error=_INVALID.text)
    if not body.callback_url:
        raise _INVALID
    require_webhooks(call)
    if not await call.services.targets.allows(body.callback_url):
        raise INVALID_CALLBACK
    mode, group_id = _mode(body)
    commands = allowed_commands(
        call, body.event_types, field="eventTypes", count_max=EVENT_TYPES_MAX
    )
    interval_s = body.min_interval_seconds
    if interval_s is None:
        interval_s = call.services.settings.webhooks.subscription_min_interval_seconds
    bounded("minIntervalSeconds", interval_s, least=0, most=INTERVAL_MAX_S)
    made = await call.services.broker.queue_policies.subscribe(
        call.identity.tenant,
        call.identity.subject,
        callback_url=body.callback_url,
        event_types=commands,
        mode=mode,
        group_id=group_id,
        ttl_ms=(_ttl_s(body.ttl_seconds) or TTL_DEFAULT_S) * 1000,
        min_interval_ms=interval_s * 1000,
        timeout_s=call.timeout_s,
    )
    if isinstance(made, Rejected):
        raise TOO_MANY
    return reply(_life(made))


async def renew(call: Call) -> HttpAnswer[SubscriptionLife]:
    """Extend a subscription from now, by the given time or its earlier one; a body is optional."""
    # A node without webhooks would never notify the subscription.
    require_webhooks(call)
    body = requests.RENEWAL.decode_any(call.text, error=_INVALID.text)
    outcome = await call.services.broker.queue_policies.renew(
        call.identity.tenant,
        _id(call),
        ttl_ms=_ttl_s(body.ttl_seconds) * 1000,
        timeout_s=call.timeout_s,
    )
    if isinstance(outcome, Rejected):
        raise from_rejection(outcome)
    return reply(_life(outcome))


async def subscriptions(call: Call) -> HttpAnswer[SubscriptionPage]:
    """Return all of the tenant's subscriptions by id."""
    found, cursor = await listed(call, Subscription)
    return reply(SubscriptionPage(list(map(subscription_view, found)), cursor))


async def unsubscribe(call: Call) -> HttpAnswer[None]:
    """End a subscription."""
    queue_policies = call.services.broker.queue_policies
    if not await queue_policies.unsubscribe(
        call.identity.tenant, _id(call), timeout_s=call.timeout_s
    ):
        raise NOT_FOUND
    return HttpAnswer(status=204)


def _id(call: Call) -> str:
    subscription_id = call.request.match_info["id"]
    if not is_task_id(subscription_id):
        raise NOT_FOUND
    return subscription_id


def _mode(body: requests.SubscriptionBody) -> tuple[Mode, str]:
    try:
        mode = Mode(body.delivery_mode or Mode.FANOUT)
    except ValueError as unknown:
        raise INVALID_MODE from unknown
    group_id = body.group_id or ""
    if mode is Mode.GROUP and not group_id:
        raise GROUP_REQUIRED
    if len(group_id.encode()) > GROUP_BYTES_MAX:
        raise GROUP_TOO_LONG
    return mode, group_id


def _ttl_s(asked: int | None) -> int:
    ttl_s = reading.whole(asked, error=_INVALID)
    return bounded("ttlSeconds", ttl_s, least=0, most=TTL_MAX_S)


def _life(subscription: Subscription) -> SubscriptionLife:
    return SubscriptionLife(subscription.id, rfc3339(subscription.expires_ms))
