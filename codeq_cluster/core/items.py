"""Items: the rows of a shard beside its tasks, such as topics, deliveries and audit records.

Each item has a kind, a tenant and an id that is unique among the tenant's items of that kind.
Instants are Unix milliseconds; 0 means "not set".

A kind is declared once: a class below `StoredItem`, a member of `ItemKind` and one of `Item`. Keys,
timers, the outbox, backups, imports and tests read there how they treat it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, TypeAlias, get_args

from msgspec import Meta, Struct

from codeq_cluster.core.bounds import (
    AUDIT_BYTES_MAX,
    DELIVERY_ATTEMPTS_MAX,
    LABEL,
    NAME,
    NUMBER_MAX,
    OWNER,
    SUBJECT_BYTES_MAX,
    TASK_ID,
    UPLOAD_ID,
    Id,
    Instant,
    Name,
    NameOrNone,
    Number,
    Owner,
    Queue,
    QueueOrNone,
    Reason,
    ScopeOrNone,
    Seq,
    Subject,
    TraceParent,
    TraceState,
    Upload,
    Url,
    anything,
    is_queue_name,
    listed,
    one_of,
    summary,
    text,
    that,
    whole,
)
from codeq_cluster.core.bulk import BulkJob
from codeq_cluster.core.checkpoint import Checkpoint
from codeq_cluster.core.dependencies import Dependencies, Edge, GraphKey, Input, Walk
from codeq_cluster.core.durable import Signal, Step
from codeq_cluster.core.gate import Gate, PerQueueOrNone, running_max
from codeq_cluster.core.groups import Group, Member
from codeq_cluster.core.handling import HandlingOrNone
from codeq_cluster.core.lane import Flow, KeyRule, Lane, PerKeyOrNone
from codeq_cluster.core.limit import Limit
from codeq_cluster.core.log_line import LogLine
from codeq_cluster.core.relays import Relay, RelayLink
from codeq_cluster.core.schedules import Schedule
from codeq_cluster.core.stored_item import ItemKind, Place, StoredItem
from codeq_cluster.core.tags import Metadata, Tags
from codeq_cluster.core.tally import Tally
from codeq_cluster.core.unique import Holder, Merged

# codeQ's bounds on a topic's priorities. A task's own priority is at most 9, so tier 10 means 9.
TIERS_MAX = 10
TIER_MAX = 10

WEBHOOK_KEY_ID = "callbacks"  # A tenant has one such item.
# A topic's numbers that are set, from and to; 0 of the first is "not set".
WEIGHT_MAX = 100
TOPIC_ATTEMPTS = (1, 100)
RETENTION_S = (0, 2**31 - 1)
CONSUMERS = (0, 10_000)
WEIGHT = (1, WEIGHT_MAX)

# Of one tenant, because every node keeps them in memory.
TOPICS_MAX = 1000
PAUSES_MAX = 1000
SUBSCRIPTIONS_MAX = 1000  # Each may be called when any of the tenant's queues fills.
EVENT_TYPES_MAX = 100  # Every node keeps them in memory.
GROUP_BYTES_MAX = 256
SUBSCRIPTION_TTL_S_MAX = 86_400
INTERVAL_S_MAX = 86_400

# Pending and dead callbacks that an import brings with one task: one for each end, and a task ends
# again only after a requeue.
DELIVERIES_MAX = 20

NEW_NAME = "must be another name than . and .."
TASK = "task"  # The kind of a task that is set aside; the other kinds are those of items.
NO_OWNER = "-"  # No valid tenant name.
REASON_CHARS_MAX = 500

_CALLBACK = re.compile(rf"{TASK_ID.pattern}\.[0-9]{{1,15}}")
_SWEEP = re.compile(rf"{TASK_ID.pattern}\.{UPLOAD_ID.pattern}")
_ASIDE_ID = re.compile(r"[a-z]{1,16}\.[^/]{1,512}", re.DOTALL)
_RECORD_ID = re.compile(r"[A-Za-z0-9._:-]{1,256}")  # A time, a request, and perhaps a shard.
_LABEL = that(LABEL.fullmatch, "a DNS label with at most 63 characters, in lower case", empty=True)
_OwnerIfKnown: TypeAlias = Annotated[str, lambda name: "" if name == NO_OWNER else OWNER(name)]
_AuditText: TypeAlias = Annotated[str, text(AUDIT_BYTES_MAX)]


class Topic(StoredItem, frozen=True, array_like=True, tag="topic", kw_only=True):
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
        handling: The queue's time limit and back-off; None if it says nothing of them.
        per_key: The rule of each key of its tasks; None for none.
        rule_seq: When the rules were put, by which shards tell them from older ones.
        per_queue, pinned, limit: As in `Flow`.
    """

    is_known_everywhere = True
    count_max = TOPICS_MAX

    tenant: Owner
    id: Queue
    name: Name
    version: Annotated[int, whole(1, NUMBER_MAX)] = 1
    priority_tiers: Annotated[
        tuple[int, ...], Meta(max_length=TIERS_MAX), listed(TIERS_MAX, whole(0, TIER_MAX))
    ] = ()
    max_attempts: Annotated[int, whole(0, TOPIC_ATTEMPTS[1])] = 0
    dead_letter: Annotated[str, _LABEL] = ""
    retention_s: Annotated[int, whole(*RETENTION_S)] = 0
    max_consumers: Annotated[int, whole(*CONSUMERS)] = 0
    weight: Annotated[int, whole(*WEIGHT)] = 1
    created_ms: Instant = 0
    updated_ms: Instant = 0
    request: NameOrNone = ""
    handling: HandlingOrNone = None
    per_key: PerKeyOrNone = None
    rule_seq: Seq = 0
    per_queue: PerQueueOrNone = None
    pinned: ScopeOrNone = ""
    limit: QueueOrNone = ""

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        return "id: must be the name in lower case" if self.id != self.name.lower() else ""

    @property
    def new_fault(self) -> str:
        """Return why it could not be made here now, or ""."""
        if not is_queue_name(self.name):
            return f"name: {NEW_NAME}"
        return "dead_letter: must differ from the topic" if self.dead_letter == self.id else ""


class Pause(StoredItem, frozen=True, array_like=True, tag="pause", kw_only=True):
    """A queue from which nobody may claim; its id is the queue."""

    is_known_everywhere = True
    count_max = PAUSES_MAX

    tenant: Owner
    id: Queue
    by: Subject = ""
    since_ms: Instant = 0
    request: NameOrNone = ""


class Mode(StrEnum):
    """The subscriptions to notify: all, one of each group in turn, or one by rendezvous hash."""

    FANOUT = "fanout"
    GROUP = "group"
    HASH = "hash"


class Subscription(StoredItem, frozen=True, array_like=True, tag="sub", kw_only=True):
    """A callback that is notified when queues become non-empty.

    Attributes:
        worker: The subscriber.
        event_types: Commands as given; empty for every command of the tenant.
        ttl_ms: From the last renewal to the end.
        min_interval_ms: Between two notifications.
    """

    is_known_everywhere = True
    count_max = SUBSCRIPTIONS_MAX

    tenant: Owner
    id: Name
    worker: Annotated[str, text(SUBJECT_BYTES_MAX, empty=False)]
    callback_url: Url
    event_types: Annotated[
        tuple[str, ...], Meta(max_length=EVENT_TYPES_MAX), listed(EVENT_TYPES_MAX, NAME)
    ] = ()
    mode: Mode = Mode.FANOUT
    group_id: Annotated[str, text(GROUP_BYTES_MAX)] = ""
    ttl_ms: Annotated[int, whole(1, SUBSCRIPTION_TTL_S_MAX * 1000)] = 0
    min_interval_ms: Annotated[int, whole(0, INTERVAL_S_MAX * 1000)] = 0
    created_ms: Instant = 0
    expires_ms: Annotated[int, whole(1, NUMBER_MAX)] = 0

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        lacks_group = self.mode is Mode.GROUP and not self.group_id
        return "group_id: must not be empty, since mode is group" if lacks_group else ""


class Delivery(StoredItem, frozen=True, array_like=True, tag="hook", kw_only=True):
    """A result callback on its way to a task's webhook; its body is kept beside it.

    Attributes:
        id: The task's id and the number of the ending it reports; the same on every attempt.
        attempts: Attempts made, all failed.
        due_ms: Time of the next attempt; 0 for a dead delivery.
        died_ms: When it was given up; 0 while it is pending.
        expires_ms: When a dead delivery is deleted.
        replay: Id of the request that replayed it last.
        since_ms: When it became pending: when it was created, or replayed last.
        tags: Of the task at that ending, as is `metadata`; the task may be deleted already.
    """

    place = Place.TASK
    has_body = True

    tenant: Owner
    id: Annotated[str, that(_CALLBACK.fullmatch, "a task's id, a dot and a number")]
    task_id: Id
    command: Name
    url: Url
    created_ms: Instant
    attempts: Annotated[int, whole(0, DELIVERY_ATTEMPTS_MAX)] = 0
    due_ms: Instant = 0
    died_ms: Instant = 0
    expires_ms: Instant = 0
    error: Reason = ""
    trace_parent: TraceParent = ""
    trace_state: TraceState = ""
    replay: NameOrNone = ""
    since_ms: Instant = 0
    tags: Tags = ()
    metadata: Metadata = ""

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        if self.id.split(".")[0] != self.task_id:
            return "id: must begin with its task's"
        if bool(self.died_ms) != bool(self.expires_ms):
            return "expires_ms: must be set if it is dead, and only then"
        if bool(self.died_ms) == bool(self.due_ms):
            return "due_ms: must be set unless it is dead"
        return ""


class Sweep(StoredItem, frozen=True, array_like=True, tag="sweep", kw_only=True):
    """An upload to delete, because no task needs it; the id is `<task id>.<upload>`."""

    place = Place.TASK

    tenant: Owner
    id: Annotated[str, that(_SWEEP.fullmatch, "a task's id, a dot and an upload")]
    task_id: Id
    upload: Upload
    due_ms: Instant
    attempts: Number = 0

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        is_named = self.id == f"{self.task_id}.{self.upload}"
        return "" if is_named else "id: must be its task's and its upload's"


class Audit(StoredItem, frozen=True, array_like=True, tag="audit", kw_only=True):
    """A change that an admin or an operator made.

    Attributes:
        id: Newer records sort first.
        actor: The subject of the author's token.
        action: For example `topic.put` or `dlq.requeue`.
        target: The changed queue, topic or task.
        index: Of the log entry that carries it; set when the entry is applied.
    """

    place = Place.ORIGIN

    tenant: Owner
    id: Annotated[str, that(_RECORD_ID.fullmatch, "1 to 256 of A-Za-z0-9._:-")]
    at_ms: Instant
    actor: Subject
    action: _AuditText
    target: _AuditText
    detail: _AuditText = ""
    request: NameOrNone = ""
    expires_ms: Annotated[int, whole(1, NUMBER_MAX)] = 0
    index: Seq = 0


class WebhookKey(StoredItem, frozen=True, array_like=True, tag="hookkey", kw_only=True):
    """The version of the key that signs a tenant's callbacks; without the item it is the first.

    The key itself is derived from the cluster's secret and stored nowhere.

    Attributes:
        version: Grows by one with every rotation.
        previous_until_ms: Until then, the version before signs as well.
        request: Id of the request that made this version.
    """

    is_known_everywhere = True

    tenant: Owner
    id: Annotated[str, one_of((WEBHOOK_KEY_ID,))] = WEBHOOK_KEY_ID
    version: Annotated[int, whole(1, NUMBER_MAX)] = 1
    previous_until_ms: Instant = 0
    rotated_ms: Instant = 0
    request: NameOrNone = ""


class Aside(StoredItem, frozen=True, array_like=True, tag="aside", kw_only=True):
    """Something set aside, because the broker failed at it; its timer row is kept here instead.

    Attributes:
        tenant: The owner; `NO_OWNER` if the record that names the owner cannot be read.
        id: `<kind>.<id of the thing>`; the kind is `TASK` or that of an item.
        timer: The key of the row of the time index that led to the thing. It is in the index or
            here, never in both.
        reason: The failure, for an operator.
    """

    is_in_memory = True
    is_restored = False

    tenant: _OwnerIfKnown
    id: Annotated[str, that(_ASIDE_ID.fullmatch, "a kind, a dot and an id")]
    timer: Annotated[bytes, anything]
    reason: Annotated[str, summary(REASON_CHARS_MAX)]
    since_ms: Instant

    @property
    def kind(self) -> str:
        """Return the kind of the thing."""
        return aside_kind(self.id)

    @property
    def subject(self) -> str:
        """Return the id of the thing."""
        return self.id.partition(".")[2]


class SetAside(Struct, frozen=True, array_like=True, tag="set_aside", kw_only=True):
    """Set aside something that the broker fails at; the leader's own operation.

    Fields as in `Aside`, whose id is made of `kind` and `subject`. The decision reads nothing of
    the thing itself, so it cannot fail at it.
    """

    tenant: str
    kind: str
    subject: str
    timer: bytes
    reason: str


Item = (
    Topic
    | Pause
    | Subscription
    | Delivery
    | Sweep
    | Audit
    | Aside
    | WebhookKey
    | Relay
    | RelayLink
    | Schedule
    | Tally
    | Flow
    | Lane
    | Gate
    | KeyRule
    | Limit
    | Group
    | Member
    | Dependencies
    | Edge
    | Input
    | Walk
    | GraphKey
    | Holder
    | Merged
    | Step
    | Signal
    | Checkpoint
    | LogLine
    | BulkJob
)

# What an export carries beside tasks, and an import takes over.
Governing = Topic | Pause | Subscription | Schedule | KeyRule | Limit

KIND_OF: dict[type[StoredItem], ItemKind] = {
    each: ItemKind(each.__struct_config__.tag) for each in get_args(Item)
}

# The kinds whose items may have a row in the index of time, of outbox jobs or of firings.
TIMED_KINDS = tuple(
    kind
    for each, kind in KIND_OF.items()
    if {"due_ms", "expires_ms"}.intersection(each.__struct_fields__) or each is Schedule
)

_AUDIT_ID = re.compile(r"\d{15}-[0-9a-f]{24}")
_AUDIT_ID_BASE = 10**15  # Milliseconds up to the year 33658, counted down: newer ids sort first.


def aside_id(kind: str, subject: str) -> str:
    """Return the id of what is set aside."""
    return f"{kind}.{subject}"


def aside_kind(name: str) -> str:
    """Return the kind of the thing in the id of an `Aside`."""
    return name.partition(".")[0]


def audit_id(at_ms: int, request: str) -> str:
    """Return the id of an audit item."""
    return f"{_AUDIT_ID_BASE - at_ms:015d}-{request}"


def audit_ms(name: str) -> int | None:
    """Return the instant in an audit id, Unix milliseconds; None if it is no such id."""
    if _AUDIT_ID.fullmatch(name) is None:
        return None
    return _AUDIT_ID_BASE - int(name.partition("-")[0])


class Policy(Struct, frozen=True):
    """The policy of one queue now.

    Attributes:
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
        topic = self.topic
        return running_max(topic.per_queue, topic.max_consumers) if topic is not None else 0

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
