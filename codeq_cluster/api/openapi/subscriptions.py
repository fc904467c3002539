"""Subscriptions: the requests and answers of their handlers."""

from __future__ import annotations

from codeq_cluster.api.http.refusals import (
    INVALID_COMMAND,
    NOT_ALLOWED,
    NOT_FOUND,
    too_high,
    too_low,
    too_many,
)
from codeq_cluster.api.openapi.examples import COMMAND, NOON_MS
from codeq_cluster.api.openapi.parameters import PAGE, PAGED
from codeq_cluster.api.openapi.types import (
    COMMAND_SCHEMA,
    BodyFields,
    DescribedAnswer,
    DescribedBody,
    DescribedOperation,
    Fields,
    Operations,
    said,
)
from codeq_cluster.api.routes import subscriptions, webhooks
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.item_views import (
    SubscriptionLife,
    SubscriptionPage,
    subscription_view,
)
from codeq_cluster.core.items import Mode, Subscription

_SUBSCRIPTION = subscription_view(
    Subscription(
        tenant="acme",
        id="7d1f0a52-93c1-4f0e-8b0b-2f9a2f0c4d11",
        worker="worker-7",
        callback_url="https://worker-7.example.com/wake",
        event_types=(COMMAND,),
        mode=Mode.GROUP,
        group_id="resizers",
        ttl_ms=300_000,
        min_interval_ms=5_000,
        created_ms=NOON_MS,
        expires_ms=NOON_MS + 300_000,
    )
)
_LIFE = DescribedAnswer(
    "The subscription, and when it ends.",
    SubscriptionLife(_SUBSCRIPTION.subscription_id, _SUBSCRIPTION.expires_at),
)
_TTL_REFUSED = (too_low("ttlSeconds", 0), too_high("ttlSeconds", subscriptions.TTL_MAX_S))

OPERATIONS: Operations = {
    subscriptions.subscribe: DescribedOperation(
        _LIFE,
        body=DescribedBody(
            requests.SubscriptionBody,
            {
                "callbackUrl": _SUBSCRIPTION.callback_url,
                "eventTypes": _SUBSCRIPTION.event_types,
                "deliveryMode": _SUBSCRIPTION.delivery_mode,
                "groupId": _SUBSCRIPTION.group_id,
            },
        ),
        errors=(
            webhooks.NOT_CONFIGURED,
            subscriptions.INVALID_CALLBACK,
            subscriptions.INVALID_MODE,
            subscriptions.GROUP_REQUIRED,
            subscriptions.GROUP_TOO_LONG,
            too_many("eventTypes", subscriptions.EVENT_TYPES_MAX),
            NOT_ALLOWED,
            subscriptions.TOO_MANY,
            INVALID_COMMAND,
            too_low("minIntervalSeconds", 0),
            too_high("minIntervalSeconds", subscriptions.INTERVAL_MAX_S),
            *_TTL_REFUSED,
        ),
    ),
    subscriptions.renew: DescribedOperation(
        _LIFE,
        body=DescribedBody(requests.RenewalBody, {"ttlSeconds": 600}, may_miss=True),
        errors=(webhooks.NOT_CONFIGURED, NOT_FOUND, *_TTL_REFUSED),
    ),
    subscriptions.subscriptions: DescribedOperation(
        DescribedAnswer("A page.", SubscriptionPage([_SUBSCRIPTION])),
        parameters=PAGE,
        errors=PAGED,
    ),
    subscriptions.unsubscribe: DescribedOperation(
        DescribedAnswer("The subscription has ended.", status=204), errors=(NOT_FOUND,)
    ),
}


def fields(min_interval_seconds: int) -> BodyFields:
    """Return the description of these bodies' fields; the interval is the node's default."""
    return {
        requests.SubscriptionBody: Fields(
            required=("callbackUrl",),
            known={
                "callbackUrl": said(
                    "URL that gets the notices: http or https, on a public address.",
                    format="uri",
                    minLength=1,
                ),
                "eventTypes": said(
                    "Commands; the token must allow each. Absent or empty for all that it allows.",
                    maxItems=subscriptions.EVENT_TYPES_MAX,
                    items=COMMAND_SCHEMA,
                ),
                "ttlSeconds": said(
                    f"Time until the subscription ends; {subscriptions.TTL_DEFAULT_S} for 0.",
                    minimum=0,
                    maximum=subscriptions.TTL_MAX_S,
                ),
                "deliveryMode": said(
                    "Which subscriptions get a notice: every one, one of each group in turn, or "
                    "one by rendezvous hash; `fanout` when absent.",
                    enum=["", *(mode.value for mode in Mode), None],
                ),
                "groupId": said(
                    f"Required by the mode `group`; at most {subscriptions.GROUP_BYTES_MAX} bytes."
                ),
                "minIntervalSeconds": said(
                    f"Shortest time between two notices; {min_interval_seconds} when absent.",
                    minimum=0,
                    maximum=subscriptions.INTERVAL_MAX_S,
                ),
            },
        ),
        requests.RenewalBody: Fields(
            known={
                "ttlSeconds": said(
                    "Time until the subscription ends; 0 for the time it had before.",
                    minimum=0,
                    maximum=subscriptions.TTL_MAX_S,
                )
            }
        ),
    }
