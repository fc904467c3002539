"""Items: the rows of a shard beside its tasks, such as topics, deliveries and audit records.

Each item has a kind, a tenant and an id that is unique among the tenant's items of that kind.
Instants are Unix milliseconds; 0 means "not set".
A tenant's topics, pauses and subscriptions are on its home shard, the other items on the shard of
their task.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

# codeQ's bounds on a topic's priorities. A task's own priority is at most 9, so tier 10 means 9.
TIERS_MAX = 10
TIER_MAX = 10


class ItemKind(StrEnum):
    """The kind of an item; the words are part of the stored keys."""

    TOPIC = "topic"
    PAUSE = "pause"
    SUBSCRIPTION = "sub"
    DELIVERY = "hook"
    SWEEP = "sweep"
    AUDIT = "audit"


class Topic(Struct, frozen=True, array_like=True, tag="topic", kw_only=True):
    """The policy of one command's queue; 0 or empty means the broker's default.

    Attributes:
        id: The queue: the topic's name in lower case.
        name: The topic's name as the caller spelt it.
        version: 1 for a new topic; grows by one with every change of its content.
        priority_tiers: The priorities that a new task may have, ascending; an existing task keeps
            its own.
        max_attempts: Default and upper bound of a new task's `max_attempts`.
        dead_letter: The queue that keeps the command's dead letters; empty for its own.
        retention_s: From a task's end to its deletion, except for dead letters.
        max_consumers: Bound on the queue's tasks in progress, over the whole cluster.
        weight: Share of the queue in claims from several queues.
        request: Id of the request that wrote this version.
    """

    tenant: str
    id: str
    name: str
    version: int = 1
    priority_tiers: tuple[int, ...] = ()
    max_attempts: int = 0
    dead_letter: str = ""
    retention_s: int = 0
    max_consumers: int = 0
    weight: int = 1
    created_ms: int = 0
    updated_ms: int = 0
    request: str = ""


class Pause(Struct, frozen=True, array_like=True, tag="pause", kw_only=True):
    """A queue from which nobody may claim; its id is the queue."""

    tenant: str
    id: str
    by: str = ""
    since_ms: int = 0
    request: str = ""


class Mode(StrEnum):
    """The subscriptions to notify: all, one of each group in turn, or one by rendezvous hash."""

    FANOUT = "fanout"
    GROUP = "group"
    HASH = "hash"


class Subscription(Struct, frozen=True, array_like=True, tag="sub", kw_only=True):
    """A callback that is notified when queues become non-empty.

    Attributes:
        worker: The subscriber.
        event_types: Commands as given; empty for every command of the tenant.
        ttl_ms: From the last renewal to the end.
        min_interval_ms: Between two notifications.
    """

    tenant: str
    id: str
    worker: str
    callback_url: str
    event_types: tuple[str, ...] = ()
    mode: Mode = Mode.FANOUT
    group_id: str = ""
    ttl_ms: int = 0
    min_interval_ms: int = 0
    created_ms: int = 0
    expires_ms: int = 0


class Delivery(Struct, frozen=True, array_like=True, tag="hook", kw_only=True):
    """A result callback on its way to a task's webhook; its body is kept beside it.

    Attributes:
        id: The task's id and the number of the ending it reports; the same on every attempt.
        attempts: Attempts made, all failed.
        due_ms: Time of the next attempt; 0 for a dead delivery.
        died_ms: When it was given up; 0 while it is pending.
        expires_ms: When a dead delivery is deleted.
        replay: Id of the request that replayed it last.
        since_ms: When it became pending: when it was created, or replayed last.
    """

    tenant: str
    id: str
    task_id: str
    command: str
    url: str
    created_ms: int
    attempts: int = 0
    due_ms: int = 0
    died_ms: int = 0
    expires_ms: int = 0
    error: str = ""
    trace_parent: str = ""
    trace_state: str = ""
    replay: str = ""
    since_ms: int = 0


class Sweep(Struct, frozen=True, array_like=True, tag="sweep", kw_only=True):
    """An upload to delete, because no task needs it; the id is `<task id>.<upload>`."""

    tenant: str
    id: str
    task_id: str
    upload: str
    due_ms: int
    attempts: int = 0


class Audit(Struct, frozen=True, array_like=True, tag="audit", kw_only=True):
    """A change that an admin or an operator made.

    Attributes:
        id: Newer records sort first.
        actor: The subject of the author's token.
        action: For example `topic.put` or `dlq.requeue`.
        target: The changed queue, topic or task.
        index: Of the log entry that carries it; set when the entry is applied.
    """

    tenant: str
    id: str
    at_ms: int
    actor: str
    action: str
    target: str
    detail: str = ""
    request: str = ""
    expires_ms: int = 0
    index: int = 0


Item = Topic | Pause | Subscription | Delivery | Sweep | Audit

KIND_OF: dict[type, ItemKind] = {
    Topic: ItemKind.TOPIC,
    Pause: ItemKind.PAUSE,
    Subscription: ItemKind.SUBSCRIPTION,
    Delivery: ItemKind.DELIVERY,
    Sweep: ItemKind.SWEEP,
    Audit: ItemKind.AUDIT,
}

_AUDIT_ID_BASE = 10**15  # Milliseconds up to the year 33658, counted down: newer ids sort first.


def audit_id(at_ms: int, request: str) -> str:
    """Return the id of an audit item."""
    return f"{_AUDIT_ID_BASE - at_ms:015d}-{request}"


class Policy(Struct, frozen=True):
    """The policy of one queue now.

    Attributes:
        topic: None when the queue has none.
        paused: Nobody may claim from it.
    """

    topic: Topic | None = None
    paused: bool = False

    @property
    def weight(self) -> int:
        """Return the queue's share in claims from several queues."""
        return self.topic.weight if self.topic is not None else 1

    @property
    def max_consumers(self) -> int:
        """Return how many tasks may be in progress at once; 0 for no limit."""
        return self.topic.max_consumers if self.topic is not None else 0

    def claimable(self, wanted: int, leased: Callable[[], int]) -> int:
        """Return how many of the wanted tasks may be claimed now.

        Args:
            wanted: The number available, or the number asked for.
            leased: Returns how many are in progress; called only when that is bounded.
        """
        if self.paused:
            return 0
        if not self.max_consumers:
            return wanted
        return max(0, min(wanted, self.max_consumers - leased()))


NO_POLICY = Policy()
