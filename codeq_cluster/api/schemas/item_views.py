"""Item views: the broker's objects other than tasks, as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.items import Audit, Delivery, Subscription, Topic


class PolicyView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The policy of a queue; missing fields have the broker's defaults."""

    priority_tiers: tuple[int, ...] = ()
    max_attempts: int = 0
    dead_letter_topic_ref: str = ""
    retention_seconds: int = 0
    max_consumers: int = 0
    weight: int


class TopicView(PolicyView, rename="camel", omit_defaults=True, kw_only=True):
    """A topic; its policy's fields are beside its name, and in `policy` for codeQ's clients."""

    name: str
    version: int
    created_at: str
    updated_at: str
    topic_id: str
    topic_name: str
    tenant_id: str = ""
    policy: PolicyView


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


class AuditView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A change by an admin or an operator.

    `index` is that of its log entry.
    """

    id: str
    at: str
    actor: str
    action: str
    target: str
    detail: str = ""
    index: int


class TopicPage(Struct):
    """A page of a list; the cursor is missing at its end."""

    topics: Sequence[TopicView]
    cursor: str | UnsetType = UNSET


class SubscriptionPage(Struct):
    """A page of a list; the cursor is missing at its end."""

    subscriptions: Sequence[SubscriptionView]
    cursor: str | UnsetType = UNSET


class DeliveryPage(Struct):
    """A page of a list; the cursor is missing at its end."""

    deliveries: Sequence[DeliveryView]
    cursor: str | UnsetType = UNSET


class AuditPage(Struct):
    """A page of a list; the cursor is missing at its end."""

    records: Sequence[AuditView]
    cursor: str | UnsetType = UNSET


class Replayed(Struct):
    """How many deliveries are pending again."""

    replayed: int


class SubscriptionLife(Struct, rename="camel"):
    """When a subscription ends."""

    subscription_id: str
    expires_at: str


def topic_view(topic: Topic) -> TopicView:
    """Render a topic."""
    policy = PolicyView(
        priority_tiers=topic.priority_tiers,
        max_attempts=topic.max_attempts,
        dead_letter_topic_ref=topic.dead_letter,
        retention_seconds=topic.retention_s,
        max_consumers=topic.max_consumers,
        weight=topic.weight,
    )
    return TopicView(
        name=topic.name,
        version=topic.version,
        created_at=rfc3339(topic.created_ms),
        updated_at=rfc3339(topic.updated_ms),
        topic_id=f"{topic.tenant or '_'}.{topic.name}",
        topic_name=topic.name,
        tenant_id=topic.tenant,
        policy=policy,
        **asdict(policy),
    )


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


def audit_view(record: Audit) -> AuditView:
    """Render an audit record."""
    return AuditView(
        id=record.id,
        at=rfc3339(record.at_ms),
        actor=record.actor,
        action=record.action,
        target=record.target,
        detail=record.detail,
        index=record.index,
    )
