"""New task: everything that its producer may say of it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.core.bounds import (
    ATTEMPTS_MAX,
    KEY_BYTES_MAX,
    NUMBER_MAX,
    TASK_ID,
    TRACE_PARENT,
    is_json,
    is_queue_name,
    is_trace_state,
    is_url,
)
from codeq_cluster.core.handling import Handling
from codeq_cluster.core.tags import metadata_fault, tags_fault
from codeq_cluster.core.task import COST_MAX, LANE_KEY_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN
from codeq_cluster.core.unique import UniqueTerms

_SPAN_MS_MAX = NUMBER_MAX // 2  # So that it may follow any instant of a clock.


class Create(Struct, frozen=True, array_like=True, tag="create", kw_only=True):
    """Add a task: everything that its producer may say of it.

    Attributes:
        id: Hashes to this shard; a second create with the same id is a retry. It, the tenant and
            the fingerprint are empty until the broker has placed the task.
        payload: JSON text, kept byte for byte.
        max_attempts: 0 for the default of the queue's topic or the broker.
        run_at_ms: The earliest start; 0 if none is asked for.
        delay_ms: From the leader's clock; 0 for at once. Ignored when `run_at_ms` is set.
        ttl_ms: A waiting task becomes a dead letter after this time; 0 for never.
        fingerprint: Hash of command and payload; tells a repeated create from a conflicting one.
        handling: Its time limit and back-off, if it says any.
        key: What it shares a limit with; its shard then follows from it.
        cost: Of the tokens of its key's rate; 1 for a task without a key.
        unique: What it says of its unique key; its shard then follows from that, or from `key`.
        tags: (name, value), in the order of names; lists find it by them.
        metadata: JSON text for its worker and its webhook; empty for none.
    """

    id: str = ""
    tenant: str = ""
    command: str
    payload: str
    priority: int = 0
    max_attempts: int = 0
    webhook: str = ""
    idempotency_key: str = ""
    fingerprint: str = ""
    run_at_ms: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    trace_parent: str = ""
    trace_state: str = ""
    handling: Handling | None = None
    key: str = ""
    cost: int = 1
    unique: UniqueTerms | None = None
    tags: tuple[tuple[str, str], ...] = ()
    metadata: str = ""


class CreateKeyed(Struct, frozen=True, array_like=True, tag="create_keyed"):
    """Add a task that has a key; a release that knows no keys refuses it."""

    create: Create


class CreateTagged(Struct, frozen=True, array_like=True, tag="create_tagged"):
    """Add a task with tags or metadata, without a key of either kind.

    A release that knows no tags refuses it.
    """

    create: Create


class CreateUnique(Struct, frozen=True, array_like=True, tag="create_unique"):
    """Add a task that has a unique key, or give what it says to the one that holds the key."""

    create: Create


def template_of(task: Create) -> Create:
    """Return what each of the tasks has that are made from a template; each has its own rest."""
    return replace(task, id="", tenant="", idempotency_key="", run_at_ms=0, delay_ms=0)


def sound_create(value: object) -> str:
    """Bound a new task as a request's is, by the largest settings."""
    assert isinstance(value, Create)
    sound_key = len(value.idempotency_key.encode()) <= KEY_BYTES_MAX
    fits = (
        TASK_ID.fullmatch(value.id)
        and is_queue_name(value.command)
        and is_json(value.payload)
        and PRIORITY_MIN <= value.priority <= PRIORITY_MAX
        and 0 <= value.max_attempts <= ATTEMPTS_MAX
        and 0 <= value.run_at_ms <= NUMBER_MAX
        and 0 <= value.delay_ms <= _SPAN_MS_MAX
        and 0 <= value.ttl_ms <= _SPAN_MS_MAX
        and (not value.webhook or is_url(value.webhook))
        and (not value.trace_parent or TRACE_PARENT.fullmatch(value.trace_parent))
        and is_trace_state(value.trace_state)
        and (value.handling is None or value.handling.is_sound)
        and sound_key
        and len(value.key.encode()) <= LANE_KEY_BYTES_MAX
        and 1 <= value.cost <= (COST_MAX if value.key else 1)
        and value.unique is None
        and not tags_fault(value.tags)
        and not metadata_fault(value.metadata)
    )
    return "" if fits else "must be a task that a request can make"
