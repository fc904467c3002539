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
    """A worker's claim; `count` matters only to the batch route."""

    commands: list[str] | None = None
    lease_seconds: int | None = None
    wait_seconds: int | None = None
    count: int | None = None


class LeaseBody(Struct, rename="camel", forbid_unknown_fields=True):
    """The fields of a heartbeat, an abandon and a nack."""

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
    """A result; `task_id` matters only to the batch route."""

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
    """A selection of dead letters, and whether only to count them."""

    ids: list[str] | None = None
    error: str | None = None
    limit: int | None = None
    dry_run: bool | None = None


class CleanupBody(Struct, rename="camel", forbid_unknown_fields=True):
    """A selection of finished tasks to delete."""

    limit: int | None = None
    before: str | None = None


class TopicBody(Struct, rename="camel", forbid_unknown_fields=True):
    """The policy of a queue; absent fields get the broker's defaults."""

    priority_tiers: list[int] | None = None
    max_attempts: int | None = None
    dead_letter_topic_ref: str | None = None
    retention_seconds: int | None = None
    max_consumers: int | None = None
    weight: int | None = None


class ReplayBody(Struct, rename="camel", forbid_unknown_fields=True):
    """A selection of dead deliveries to retry."""

    ids: list[str] | None = None
    all: bool | None = None


class TransferBody(Struct, rename="camel", forbid_unknown_fields=True):
    """A transfer of a shard's leadership."""

    shard: int | None = None
    to: str | None = None


class JoinBody(Struct, rename="camel", forbid_unknown_fields=True):
    """The node to add, and its addresses."""

    node_id: str | None = None
    addr: str | None = None
    http_addr: str | None = None
    dry_run: bool | None = None


class UpgradeBody(Struct, rename="camel", forbid_unknown_fields=True):
    """The version of formats to enable."""

    level: int | None = None
    dry_run: bool | None = None


class RemoveBody(Struct, rename="camel", forbid_unknown_fields=True):
    """The node to remove for good."""

    node_id: str | None = None
    dry_run: bool | None = None


class SubscriptionBody(Struct, rename="camel", forbid_unknown_fields=True):
    """A subscription to queues that stop being empty."""

    callback_url: str | None = None
    event_types: list[str] | None = None
    ttl_seconds: int | None = None
    delivery_mode: str | None = None
    group_id: str | None = None
    min_interval_seconds: int | None = None


class RenewalBody(Struct, rename="camel", forbid_unknown_fields=True):
    """The new lifetime of a subscription."""

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
