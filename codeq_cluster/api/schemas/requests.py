"""Requests: request bodies as typed values, and their decoders."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from codeq_cluster.api.schemas.reading import Schema

# Absent and null mean the same. A union with None would make the decoder inspect the text.
_NULL = Raw(b"null")


class TaskBody(Struct, rename="camel", forbid_unknown_fields=True):
    """A task to create."""

    command: str | None = None
    payload: Raw = _NULL
    priority: int | None = None
    webhook: str | None = None
    max_attempts: int | None = None
    idempotency_key: str | None = None
    run_at: str | None = None
    delay_seconds: int | None = None
    ttl_seconds: int | None = None


class TasksBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Tasks to create; each item is decoded on its own."""

    tasks: list[Raw] | None = None


class ClaimBody(Struct, rename="camel", forbid_unknown_fields=True):
    """What a worker wants; `count` matters to the batch route alone."""

    commands: list[str] | None = None
    lease_seconds: int | None = None
    wait_seconds: int | None = None
    count: int | None = None


class LeaseBody(Struct, rename="camel", forbid_unknown_fields=True):
    """What a worker says of a lease: heartbeat, abandon and nack together."""

    extend_seconds: int | None = None
    delay_seconds: int | None = None
    reason: str | None = None
    lease_token: int | None = None


class ArtifactBody(Struct, rename="camel", forbid_unknown_fields=True):
    """A product of a task."""

    name: str | None = None
    url: str | None = None
    content_base64: Raw = msgspec.field(name="contentBase64", default=_NULL)
    content_type: str | None = None


class ResultBody(Struct, rename="camel", forbid_unknown_fields=True):
    """A result; `task_id` matters to the batch route alone."""

    status: str | None = None
    result: Raw = _NULL
    error: str | None = None
    artifacts: list[Raw] | None = None
    lease_token: int | None = None
    task_id: str | None = None


class ResultsBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Results; each item is decoded on its own."""

    results: list[Raw] | None = None


class SelectionBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which dead letters are meant, and whether they are only to be counted."""

    ids: list[str] | None = None
    error: str | None = None
    limit: int | None = None
    dry_run: bool | None = None


class CleanupBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which finished tasks are to be deleted."""

    limit: int | None = None
    before: str | None = None


class TopicBody(Struct, rename="camel", forbid_unknown_fields=True):
    """What governs a queue; what is absent is the broker's to decide."""

    priority_tiers: list[int] | None = None
    max_attempts: int | None = None
    dead_letter_topic_ref: str | None = None
    retention_seconds: int | None = None
    max_consumers: int | None = None
    weight: int | None = None


class ReplayBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which dead deliveries are to be tried again."""

    ids: list[str] | None = None
    all: bool | None = None


class TransferBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which shard's leadership is to go where."""

    shard: int | None = None
    to: str | None = None


class JoinBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which node may come in, and where it is reached."""

    node_id: str | None = None
    addr: str | None = None
    http_addr: str | None = None
    dry_run: bool | None = None


class UpgradeBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which formats are to be used from now on."""

    level: int | None = None
    dry_run: bool | None = None


class RemoveBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Which node is to go for good."""

    node_id: str | None = None
    dry_run: bool | None = None


class SubscriptionBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Who wants to hear when queues become non-empty."""

    callback_url: str | None = None
    event_types: list[str] | None = None
    ttl_seconds: int | None = None
    delivery_mode: str | None = None
    group_id: str | None = None
    min_interval_seconds: int | None = None


class RenewalBody(Struct, rename="camel", forbid_unknown_fields=True):
    """For how long a subscription is to live on."""

    ttl_seconds: int | None = None


TASK = Schema(TaskBody)
TASKS = Schema(TasksBody)
CLAIM = Schema(ClaimBody)
LEASE = Schema(LeaseBody)
ARTIFACT = Schema(ArtifactBody)
RESULT = Schema(ResultBody)
RESULTS = Schema(ResultsBody)
SELECTION = Schema(SelectionBody)
CLEANUP = Schema(CleanupBody)
TOPIC = Schema(TopicBody)
REPLAY = Schema(ReplayBody)
TRANSFER = Schema(TransferBody)
JOIN = Schema(JoinBody)
REMOVE = Schema(RemoveBody)
UPGRADE = Schema(UpgradeBody)
SUBSCRIPTION = Schema(SubscriptionBody)
RENEWAL = Schema(RenewalBody)
