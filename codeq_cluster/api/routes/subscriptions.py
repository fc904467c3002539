"""Subscriptions: requests to be called when a queue stops being empty."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import NODEFAULT, UNSET, Struct, UnsetType

from codeq_cluster.api.declared.bodies import Body, Schema, field
from codeq_cluster.api.declared.operations import COMMAND_SCHEMA, Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, is_task_id
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.api.http.refusals import INVALID_COMMAND, NOT_ALLOWED, NOT_FOUND, accepted
from codeq_cluster.api.routes.listing import PAGE, caller, listed
from codeq_cluster.api.routes.task_views import COMMAND, NOON_MS
from codeq_cluster.api.routes.webhooks import NOT_CONFIGURED, require_webhooks
from codeq_cluster.api.routes.workers import allowed_commands
from codeq_cluster.auth import Access
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.items import (
    EVENT_TYPES_MAX,
    GROUP_BYTES_MAX,
    INTERVAL_S_MAX,
    SUBSCRIPTION_TTL_S_MAX,
    SUBSCRIPTIONS_MAX,
    Mode,
    Subscription,
)
from codeq_cluster.core.operations import Subscribe
from codeq_cluster.core.outcomes import Rejected

TTL_DEFAULT_S = 300

ROUTES = Routes(__name__, __doc__, Access.WORKER)

TOO_MANY = ApiError(409, f"too many subscriptions (at most {SUBSCRIPTIONS_MAX})", "too-many")
INVALID_CALLBACK = bad_request("invalid callback url", "invalid-callback-url")
INVALID_MODE = bad_request("invalid deliveryMode", "invalid-delivery-mode")
GROUP_REQUIRED = bad_request("groupId is required", "group-id-required")
GROUP_TOO_LONG = bad_request(f"invalid 'groupId' (at most {GROUP_BYTES_MAX} bytes)", "out-of-range")


class SubscriptionBody(Body):
    """A subscription to queues that stop being empty."""

    callback_url: str = field(
        "URL that gets the notices: http or https, on a public address.",
        min_length=1,
        format="uri",
        default=NODEFAULT,
    )
    event_types: list[str] | None = field(
        "Commands; the token must allow each. Absent or empty for all that it allows.",
        maxItems=EVENT_TYPES_MAX,
        items=COMMAND_SCHEMA,
    )
    ttl_seconds: int | None = field(
        f"Time until the subscription ends; {TTL_DEFAULT_S} for 0.", ge=0, le=SUBSCRIPTION_TTL_S_MAX
    )
    delivery_mode: str | None = field(
        "Which subscriptions get a notice: every one, one of each group in "
        "turn, or one by rendezvous hash; `fanout` when absent.",
        enum=["", *(mode.value for mode in Mode), None],
        refused=(INVALID_MODE,),
    )
    group_id: str | None = field(
        f"Required by the mode `group`; at most {GROUP_BYTES_MAX} bytes.",
        refused=(GROUP_REQUIRED, GROUP_TOO_LONG),
    )
    min_interval_seconds: int | None = field(
        "Shortest time between two notices; "
        "{node.webhooks.subscription_min_interval_seconds} when absent.",
        ge=0,
        le=INTERVAL_S_MAX,
    )


class RenewalBody(Body):
    """The new lifetime of a subscription."""

    ttl_seconds: int | None = field(
        "Time until the subscription ends; 0 for the time it had before.",
        ge=0,
        le=SUBSCRIPTION_TTL_S_MAX,
    )


_SUBSCRIPTION = Schema(SubscriptionBody)
_RENEWAL = Schema(RenewalBody)


class SubscriptionView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A subscription; no event types mean every command."""

    subscription_id: str
    worker_id: str
    callback_url: str
    event_types: tuple[str, ...]
    delivery_mode: str
    group_id: str = ""
    ttl_seconds: int
    min_interval_seconds: int
    created_at: str
    expires_at: str


class SubscriptionPage(Struct):
    """A page of a list; the cursor is missing at its end."""

    subscriptions: Sequence[SubscriptionView]
    cursor: str | UnsetType = UNSET


class SubscriptionLife(Struct, rename="camel"):
    """When a subscription ends."""

    subscription_id: str
    expires_at: str


_EXAMPLE = SubscriptionView(
    subscription_id="7d1f0a52-93c1-4f0e-8b0b-2f9a2f0c4d11",
    worker_id="worker-7",
    callback_url="https://worker-7.example.com/wake",
    event_types=(COMMAND,),
    delivery_mode=Mode.GROUP,
    group_id="resizers",
    ttl_seconds=300,
    min_interval_seconds=5,
    created_at=rfc3339(NOON_MS),
    expires_at=rfc3339(NOON_MS + 300_000),
)
_LIFE = Answer(
    "The subscription, and when it ends.",
    SubscriptionLife(_EXAMPLE.subscription_id, _EXAMPLE.expires_at),
)
_SCOPE = "codeq:subscribe"


@ROUTES(
    "POST",
    "/workers/subscriptions",
    _LIFE,
    scope=_SCOPE,
    body=_SUBSCRIPTION,
    example={
        "callbackUrl": _EXAMPLE.callback_url,
        "eventTypes": _EXAMPLE.event_types,
        "deliveryMode": _EXAMPLE.delivery_mode,
        "groupId": _EXAMPLE.group_id,
    },
    errors=(NOT_CONFIGURED, INVALID_CALLBACK, NOT_ALLOWED, TOO_MANY, INVALID_COMMAND),
)
async def subscribe(call: Call) -> HttpAnswer[SubscriptionLife]:
    """Subscribe to queues, by default to those of the token."""
    body = _SUBSCRIPTION.decode(call.text)
    require_webhooks(call)
    if not await call.services.targets.allows(body.callback_url, tenant=call.identity.tenant):
        raise INVALID_CALLBACK
    mode, group_id = _mode(body)
    commands = allowed_commands(
        call, body.event_types, field="eventTypes", count_max=EVENT_TYPES_MAX
    )
    interval_s = body.min_interval_seconds
    if interval_s is None:
        interval_s = call.services.settings.webhooks.subscription_min_interval_seconds
    asked = Subscribe(
        tenant=call.identity.tenant,
        worker=call.identity.subject,
        callback_url=body.callback_url,
        event_types=tuple(commands),
        mode=mode,
        group_id=group_id,
        ttl_ms=(body.ttl_seconds or TTL_DEFAULT_S) * 1000,
        min_interval_ms=interval_s * 1000,
    )
    made = await call.services.broker.queue_policies.subscribe(caller(call), asked)
    if isinstance(made, Rejected):
        raise TOO_MANY
    return reply(_life(made))


@ROUTES(
    "GET",
    "/workers/subscriptions",
    Answer("A page.", SubscriptionPage([_EXAMPLE])),
    scope=_SCOPE,
    parameters=PAGE,
)
async def subscriptions(call: Call) -> HttpAnswer[SubscriptionPage]:
    """Return all of the tenant's subscriptions by id."""
    found, cursor = await listed(call, Subscription)
    return reply(SubscriptionPage(list(map(subscription_view, found)), cursor))


@ROUTES(
    "POST",
    "/workers/subscriptions/{id}/heartbeat",
    _LIFE,
    scope=_SCOPE,
    body=_RENEWAL,
    example={"ttlSeconds": 600},
    may_miss=True,
    errors=(NOT_CONFIGURED, NOT_FOUND),
)
async def renew(call: Call) -> HttpAnswer[SubscriptionLife]:
    """Extend a subscription from now, by the given time or its earlier one; a body is optional."""
    # A node without webhooks would never notify the subscription.
    require_webhooks(call)
    body = _RENEWAL.decode_any(call.text)
    renewed = await call.services.broker.queue_policies.renew(
        caller(call), _id(call), ttl_ms=(body.ttl_seconds or 0) * 1000
    )
    return reply(_life(accepted(renewed)))


@ROUTES(
    "DELETE",
    "/workers/subscriptions/{id}",
    Answer("The subscription has ended.", status=204),
    scope=_SCOPE,
    errors=(NOT_FOUND,),
)
async def unsubscribe(call: Call) -> HttpAnswer[None]:
    """End a subscription."""
    if not await call.services.broker.queue_policies.unsubscribe(caller(call), _id(call)):
        raise NOT_FOUND
    return HttpAnswer(status=204)


def _id(call: Call) -> str:
    subscription_id = call.request.match_info["id"]
    if not is_task_id(subscription_id):
        raise NOT_FOUND
    return subscription_id


def _mode(body: SubscriptionBody) -> tuple[Mode, str]:
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


def _life(subscription: Subscription) -> SubscriptionLife:
    return SubscriptionLife(subscription.id, rfc3339(subscription.expires_ms))


def subscription_view(subscription: Subscription) -> SubscriptionView:
    """Render a subscription."""
    return SubscriptionView(
        subscription_id=subscription.id,
        worker_id=subscription.worker,
        callback_url=subscription.callback_url,
        event_types=subscription.event_types,
        delivery_mode=subscription.mode.value,
        group_id=subscription.group_id,
        ttl_seconds=subscription.ttl_ms // 1000,
        min_interval_seconds=subscription.min_interval_ms // 1000,
        created_at=rfc3339(subscription.created_ms),
        expires_at=rfc3339(subscription.expires_ms),
    )
