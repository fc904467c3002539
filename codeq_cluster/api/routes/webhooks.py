"""Webhooks: result callbacks, the keys that sign them, and the requests that nodes make.

A node accepts webhooks only if it can sign calls, or may send unsigned ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.api.declared.bodies import Body, Schema, field
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.parameters import query
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, is_task_id
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.api.http.refusals import INVALID_STATUS
from codeq_cluster.api.routes.dead_letters import ids_field, read_ids
from codeq_cluster.api.routes.listing import PAGE, caller, listed
from codeq_cluster.api.routes.task_views import COMMAND, NOON_MS, TASK_ID
from codeq_cluster.auth import Access
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.items import WEBHOOK_KEY_ID, Delivery
from codeq_cluster.settings import Signing
from codeq_cluster.webhooks import signing
from codeq_cluster.webhooks.http_client import DELIVERY
from codeq_cluster.webhooks.queue_ready import CLAIM_URL, Notice
from codeq_cluster.webhooks.result_delivery import Callback

OVERLAP_S = 7 * 86_400
OVERLAP_MAX_S = 30 * 86_400

KEYS = Routes(
    "webhook_keys",
    "Webhook keys: the keys by which receivers verify a tenant's callbacks and notices.",
    Access.ADMIN,
)

NOT_CONFIGURED = bad_request(
    "webhooks are not configured (set webhookHmacSecret, which signs them, or webhooks.unsigned "
    "to allow)",
    "webhooks-not-configured",
)
SHARED = ApiError(
    409,
    "this cluster signs for all tenants with one secret, which only its operator has "
    "(webhooks.signing is cluster)",
    "signed-by-cluster",
)
UNSIGNED = ApiError(
    409,
    "this cluster signs nothing, so there are no keys (webhookHmacSecret is not set)",
    "webhooks-unsigned",
)


class RotationBody(Body):
    """A rotation of the key that signs callbacks."""

    overlap_seconds: int | None = field(
        "How long the previous key signs beside the new one.",
        ge=0,
        le=OVERLAP_MAX_S,
        default=OVERLAP_S,
    )


_ROTATION = Schema(RotationBody)


class WebhookKeyView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A key that signs callbacks; the current one has no end."""

    id: str
    key: str
    version: int
    signs_until: str = ""


class WebhookKeys(Struct):
    """The keys that sign now, the current one first."""

    keys: Sequence[WebhookKeyView]


_KEYS = WebhookKeys(
    [
        WebhookKeyView(id="8f14e45fceea", key="cqwh_" + 43 * "x", version=2),
        WebhookKeyView(
            id="c9f0f895fb98",
            key="cqwh_" + 43 * "y",
            version=1,
            signs_until=rfc3339(NOON_MS + 604_800_000),
        ),
    ]
)
_REFUSED = (SHARED, UNSIGNED)


@KEYS("GET", "/admin/webhooks/keys", Answer("The keys.", _KEYS), errors=_REFUSED)
async def keys(call: Call) -> HttpAnswer[WebhookKeys]:
    """Return the keys that sign the tenant's callbacks and notices now; an audit record says so.

    A receiver that has any of them can verify a call.
    """
    _require_keys(call)
    await call.services.broker.queue_policies.record(
        caller(call), action="webhook-key.read", target=WEBHOOK_KEY_ID, detail=""
    )
    return await _shown(call)


@KEYS(
    "POST",
    "/admin/webhooks/keys/rotate",
    Answer("The keys, with a new current one.", _KEYS),
    body=_ROTATION,
    example={"overlapSeconds": 86_400},
    may_miss=True,
    errors=_REFUSED,
)
async def rotate(call: Call) -> HttpAnswer[WebhookKeys]:
    """Begin the next version of the tenant's key; both versions sign until the overlap ends.

    A receiver that accepts either one misses no call.
    """
    overlap_s = _ROTATION.decode_any(call.text).overlap_seconds
    _require_keys(call)
    await call.services.broker.queue_policies.rotate_webhook_key(
        caller(call), overlap_ms=(OVERLAP_S if overlap_s is None else overlap_s) * 1000
    )
    return await _shown(call)


def takes_webhooks(call: Call) -> bool:
    """Return whether a webhook or a subscription may be registered."""
    return call.services.settings.webhooks.signing is not Signing.REFUSED


def require_webhooks(call: Call) -> None:
    """Raise a 400 that names the settings, unless a webhook may be registered."""
    if not takes_webhooks(call):
        raise NOT_CONFIGURED


def _require_keys(call: Call) -> None:
    match call.services.settings.webhooks.signing:
        case Signing.SIGNED:
            return
        case Signing.SHARED:
            raise SHARED
        case Signing.UNSIGNED | Signing.REFUSED:
            raise UNSIGNED


async def _shown(call: Call) -> HttpAnswer[WebhookKeys]:
    services = call.services
    rotated = await services.broker.queue_policies.webhook_key(caller(call))
    found = signing.signing_keys(services.settings.webhooks, rotated, now_ms=services.now_ms())
    return reply(WebhookKeys(list(map(_view, found))))


def _view(key: signing.SigningKey) -> WebhookKeyView:
    return WebhookKeyView(
        id=key.id,
        key=key.text,
        version=key.version,
        signs_until=rfc3339(key.until_ms) if key.until_ms else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request that nodes make.

    Attributes:
        headers: The description of each header; those of `SIGNED` come with every signed request.
        fields: The description of each field of the body.
        example: A body, which gives its type.
    """

    summary: str
    text: str
    headers: Mapping[str, str]
    fields: Mapping[str, str]
    example: Struct


SIGNED = {
    DELIVERY: "Names the delivery; the same on every attempt, so that a repetition is recognised.",
    signing.TIMESTAMP: "When the request was signed, Unix seconds. Refuse one of some minutes ago.",
    signing.SIGNATURE: "Hex HMAC-SHA256 of timestamp, full stop and body, by the current key.",
    signing.SIGNATURES: "The same by each key that signs now: `id=signature`, separated by commas.",
}
_TRACE = {
    "traceparent": "W3C trace context of the task, if its producer or the nodes trace.",
    "tracestate": "The same.",
}

SENT = {
    "taskEnded": Sent(
        summary="A task with a `webhook` has ended.",
        text="Sent to the task's webhook at least once: repeated until it is answered with 2xx, at "
        "most `resultWebhookMaxAttempts` times. Redirects are not followed.",
        headers=SIGNED | _TRACE,
        fields={
            "taskId": "The task.",
            "eventType": "Its command.",
            "status": "`COMPLETED` or `FAILED`.",
            "result": "Of its worker; null for none.",
            "error": "Why it failed, or empty.",
            "artifacts": "Name and URL of each file of its result; null for none.",
            "completedAt": "When it ended.",
        },
        example=Callback(
            task_id=TASK_ID,
            event_type=COMMAND,
            status="COMPLETED",
            result=Raw(b'{"width":640}'),
            error="",
            artifacts=[{"name": "log.txt", "url": "https://files.example.com/log.txt"}],
            completed_at=rfc3339(NOON_MS),
        ),
    ),
    "queueReady": Sent(
        summary="A queue that a subscription covers has become non-empty.",
        text="Sent to the subscription's `callbackUrl` at most once: subscribers must poll too.",
        headers=SIGNED,
        fields={
            "eventType": "The command, as the subscription names it.",
            "available": "Always true.",
            "queueDepth": "Tasks that can be claimed when the request is sent.",
            "claimUrl": "The path to claim from, on any node.",
            "sentAt": "When the request was made.",
            "notificationId": "The same as the header `X-CodeQ-Delivery`.",
        },
        example=Notice(
            event_type=COMMAND,
            available=True,
            queue_depth=12,
            claim_url=CLAIM_URL,
            sent_at=rfc3339(NOON_MS),
            notification_id="7d1f0a52-93c1-4f0e-8b0b-2f9a2f0c4d12",
        ),
    ),
}


DELIVERIES = Routes(
    "deliveries",
    "Deliveries: result callbacks that are pending, or that failed for good.",
    Access.ADMIN,
)

IDS_REQUIRED = bad_request("ids or all required", "ids-required")
DELIVERY_NOT_FOUND = ApiError(404, "delivery not found", "not-found")


class ReplayBody(Body):
    """A selection of dead deliveries, or of what is set aside, to retry."""

    ids: list[str] | None = ids_field("Ids of dead deliveries, or of what is set aside.")
    all: bool | None = field("Retry all; required without `ids`.")


REPLAY = Schema(ReplayBody)


class DeliveryView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A result callback; `attempts` have failed, the last of them with `error`."""

    id: str
    task_id: str
    command: str
    url: str
    status: str
    attempts: int
    error: str = ""
    created_at: str
    next_attempt_at: str = ""
    died_at: str = ""


class DeliveryPage(Struct):
    """A page of a list; the cursor is missing at its end."""

    deliveries: Sequence[DeliveryView]
    cursor: str | UnsetType = UNSET


class Replayed(Struct):
    """How many deliveries are pending again."""

    replayed: int


_DEAD = DeliveryView(
    id=f"{TASK_ID}.1",
    task_id=TASK_ID,
    command=COMMAND,
    url="https://example.com/done",
    status="dead",
    attempts=5,
    error="HTTP 500",
    created_at=rfc3339(NOON_MS + 9_000),
    died_at=rfc3339(NOON_MS + 60_000),
)
_REPLAYED = Answer("The number of deliveries that are pending again.", Replayed(3))


@DELIVERIES(
    "GET",
    "/admin/deliveries",
    Answer("A page.", DeliveryPage([_DEAD])),
    parameters=(
        query("status", "Only deliveries in this state.", INVALID_STATUS, enum=["dead", "pending"]),
        *PAGE,
    ),
)
async def deliveries(call: Call) -> HttpAnswer[DeliveryPage]:
    """Return the tenant's deliveries by id, or the dead ones, the latest death first.

    A page may be short and still have a cursor, because entries that a filter drops count toward
    it.
    """
    status = call.query_text("status")
    if status not in ("", "dead", "pending"):
        raise INVALID_STATUS.because("use dead or pending")
    dead_only = status == "dead"
    found, cursor = await listed(
        call, Delivery, order="death" if dead_only else "id", dead_only=dead_only
    )
    views = [delivery_view(each) for each in found if not (status == "pending" and each.died_ms)]
    return reply(DeliveryPage(views, cursor))


@DELIVERIES(
    "POST",
    "/admin/deliveries/replay",
    _REPLAYED,
    body=REPLAY,
    example={"ids": [_DEAD.id]},
    errors=(IDS_REQUIRED,),
)
async def replay(call: Call) -> HttpAnswer[Replayed]:
    """Retry dead deliveries from the first attempt: those named, or all."""
    return reply(Replayed(await _replay(call, read_replay(call))))


@DELIVERIES("POST", "/admin/deliveries/{id}/replay", _REPLAYED, errors=(DELIVERY_NOT_FOUND,))
async def replay_one(call: Call) -> HttpAnswer[Replayed]:
    """Retry one dead delivery from the first attempt."""
    delivery_id = call.request.match_info["id"]
    replayed = await _replay(call, (delivery_id,)) if is_task_id(delivery_id) else 0
    if not replayed:
        raise DELIVERY_NOT_FOUND
    return reply(Replayed(replayed))


def read_replay(call: Call) -> tuple[str, ...]:
    """Return the ids that a body selects; none for all.

    Raises:
        ApiError: 400; it selects nothing.
    """
    body = REPLAY.decode_any(call.text)
    if body.ids is None and not body.all:
        raise IDS_REQUIRED
    return () if body.ids is None else read_ids(body.ids)


async def _replay(call: Call, ids: tuple[str, ...]) -> int:
    return await call.services.broker.operators.replay(caller(call), ids)


def delivery_view(delivery: Delivery) -> DeliveryView:
    """Render a delivery."""
    return DeliveryView(
        id=delivery.id,
        task_id=delivery.task_id,
        command=delivery.command,
        url=delivery.url,
        status="dead" if delivery.died_ms else "pending",
        attempts=delivery.attempts,
        error=delivery.error,
        created_at=rfc3339(delivery.created_ms),
        next_attempt_at=rfc3339(delivery.due_ms) if delivery.due_ms else "",
        died_at=rfc3339(delivery.died_ms) if delivery.died_ms else "",
    )
