"""Keyspace: the table of keys, and which of them a task has. Pure; nothing here reads or writes.

    codeq/tasks/<id>                                             the task
    codeq/payload/<id>                                           its payload's JSON text
    codeq/results/<id>                                           how it ended
    codeq/q/<queue>/<tenant>/pending/<priority>/<seq be8>/<id>   READY, in claim order
    codeq/q/<queue>/<tenant>/delayed/<due be8>/<id>              DELAYED
    codeq/q/<queue>/<tenant>/inprog/<id>                         LEASED
    codeq/q/<queue>/<tenant>/done/<~ended be8>/<id>              DONE, the newest first
    codeq/q/<queue>/<tenant>/failed/<~ended be8>/<id>            FAILED, the newest first
    codeq/q/<queue>/<tenant>/dlq/<~ended be8>/<id>               DEAD, the newest first
    codeq/q/<queue>/<tenant>/held/<lane>/<rank>/<id>             HELD, in the order of its lane
    codeq/slot/<queue>/<tenant>/<lane>/<rank>/<id>               READY, or backs off in its place
    codeq/lease/<until be8>/<id>                                 LEASED, in the order leases end
    codeq/ttl/<due be8>/<id>                                     every other timer, in order of time
    codeq/by-tag/<tenant>/<tag>/<~created be8>/<id>              tasks with a tag, the newest first
    codeq/claim/<request>/<id>                                   LEASED, by the claim that leased it
    codeq/idempo/<tenant>/<key>                                  an idempotency key's task
    codeq/stats/<queue>/<tenant>                                 how many tasks are in each place
    codeq/item/<kind>/<tenant>/<id>                              a topic, a subscription, ...
    codeq/body/<tenant>/<id>                                     a delivery's body
    codeq/dead/<tenant>/<~died be8>/<id>                         dead deliveries, the newest first
    codeq/groups/<tenant>/<~rank be8>/<id>                       groups, in the order of their list
    codeq/outbox/<due be8>/<kind>/<tenant>/<id>                  outbox jobs, by due time
    codeq/expiry/<end be8>/<kind>/<tenant>/<id>                  items that end by themselves
    codeq/sched/<tenant>/<due be8>/<kind>/<tenant>/<id>          schedules, by their next firing
    codeq/forward/<shard be2>/<number be8>/<kind>/<tenant>/<id>  relays to another shard, in order
    codeq/meta/<name>                                            applied index, digest, clock, ...

`~` is 2^64 - 1 minus the number, so that the newest sorts first. The priority is one byte, 255 -
priority, so that 9 sorts first. `lane_keys` has the parts of `held` and `slot`, `tag_keys` those of
`by-tag`.
A queue is a command in lower case. A dead letter is in the queue that keeps its command's dead
letters. The default tenant is `_`, which is no valid tenant name.
Binary parts may contain the byte of `/`. They are between names on the left and an id on the right,
and ids, requests, commands and tenants contain no `/`. An idempotency key may contain it, because
it comes last.

The functions are named for use as `keyspace.task(task_id)`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum, auto
from functools import lru_cache
from operator import methodcaller
from typing import Any, assert_never

from codeq_cluster.codec import lane_keys, tag_keys
from codeq_cluster.codec.key_parts import (
    NUMBER_BYTES,
    NUMBER_MAX,
    PARTS_CACHED,
    QUEUE_PREFIX,
    QUEUES_CACHED,
    be8,
    part,
    queue_part,
    tenant_name,
    tenant_part,
)
from codeq_cluster.codec.line_keys import (
    FIRE_PREFIX,
    FORWARD_PREFIX,
    GROUPS_PREFIX,
    fire_from,
    fire_parts,
    forward_from,
    groups_prefix,
)
from codeq_cluster.core.items import KIND_OF, Item
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task

TASK_PREFIX = b"codeq/tasks/"
PAYLOAD_PREFIX = b"codeq/payload/"
RESULT_PREFIX = b"codeq/results/"
LEASE_PREFIX = b"codeq/lease/"
TTL_PREFIX = b"codeq/ttl/"
CLAIM_PREFIX = b"codeq/claim/"
IDEMPOTENCY_PREFIX = b"codeq/idempo/"
STATS_PREFIX = b"codeq/stats/"
ITEM_PREFIX = b"codeq/item/"
BODY_PREFIX = b"codeq/body/"
DEAD_PREFIX = b"codeq/dead/"
OUTBOX_PREFIX = b"codeq/outbox/"
EXPIRY_PREFIX = b"codeq/expiry/"
META_PREFIX = b"codeq/meta/"


class QueuePlace(StrEnum):
    """The place of a task in its queue; the words are part of the keys."""

    PENDING = "pending"
    DELAYED = "delayed"
    INPROG = "inprog"
    DONE = "done"
    FAILED = "failed"
    DLQ = "dlq"
    HELD = "held"


PLACE_OF = {
    State.READY: QueuePlace.PENDING,
    State.DELAYED: QueuePlace.DELAYED,
    State.LEASED: QueuePlace.INPROG,
    State.DONE: QueuePlace.DONE,
    State.FAILED: QueuePlace.FAILED,
    State.DEAD: QueuePlace.DLQ,
    State.HELD: QueuePlace.HELD,
}


class Family(Enum):
    """The kind of a key: one member for each line of the table."""

    TASK = auto()
    PAYLOAD = auto()
    RESULT = auto()
    PENDING = auto()
    DELAYED = auto()
    INPROG = auto()
    DONE = auto()
    FAILED = auto()
    DLQ = auto()
    HELD = auto()
    SLOT = auto()
    TAG = auto()
    LEASE = auto()
    TTL = auto()
    CLAIM = auto()
    IDEMPOTENCY = auto()
    STATS = auto()
    ITEM = auto()
    BODY = auto()
    DEAD = auto()
    GROUPS = auto()
    OUTBOX = auto()
    EXPIRY = auto()
    FIRE = auto()
    FORWARD = auto()
    META = auto()
    OTHER = auto()


# The two bytes after `codeq/` differ from family to family.
CODE = slice(6, 8)
QUEUE_CODE = b"q/"

# Whether a key is that of a queue's counters. Filters call it without a step of the interpreter.
is_stats = methodcaller("startswith", STATS_PREFIX)
FAMILIES = {
    b"ta": (TASK_PREFIX, Family.TASK),
    b"pa": (PAYLOAD_PREFIX, Family.PAYLOAD),
    b"re": (RESULT_PREFIX, Family.RESULT),
    b"le": (LEASE_PREFIX, Family.LEASE),
    b"tt": (TTL_PREFIX, Family.TTL),
    b"cl": (CLAIM_PREFIX, Family.CLAIM),
    b"id": (IDEMPOTENCY_PREFIX, Family.IDEMPOTENCY),
    b"st": (STATS_PREFIX, Family.STATS),
    b"it": (ITEM_PREFIX, Family.ITEM),
    b"bo": (BODY_PREFIX, Family.BODY),
    b"de": (DEAD_PREFIX, Family.DEAD),
    b"gr": (GROUPS_PREFIX, Family.GROUPS),
    b"ou": (OUTBOX_PREFIX, Family.OUTBOX),
    b"ex": (EXPIRY_PREFIX, Family.EXPIRY),
    b"sc": (FIRE_PREFIX, Family.FIRE),
    b"fo": (FORWARD_PREFIX, Family.FORWARD),
    b"me": (META_PREFIX, Family.META),
    b"sl": (lane_keys.SLOT_PREFIX, Family.SLOT),
    b"by": (tag_keys.TAG_PREFIX, Family.TAG),
}
_TIMED = (Family.LEASE, Family.TTL, Family.OUTBOX, Family.EXPIRY)
_TASK_INDEXES = frozenset((QUEUE_CODE, b"le", b"tt", b"cl", b"sl", b"by"))
_KINDS = frozenset(kind.value.encode() for kind in ItemKind)
_PLACES = {place.value.encode(): Family[place.name] for place in QueuePlace}


def queue_name(command: str) -> str:
    """Return the queue of a command; queues ignore case."""
    return command.lower()


@lru_cache(PARTS_CACHED)
def task(task_id: str) -> bytes:
    """Return the key of the task's record."""
    return TASK_PREFIX + part(task_id)


def payload(task_id: str) -> bytes:
    """Return the key of the payload, written once."""
    return PAYLOAD_PREFIX + part(task_id)


def result(task_id: str) -> bytes:
    """Return the key of the task's result."""
    return RESULT_PREFIX + part(task_id)


def pending(queue: str, tenant: str, *, priority: int, seq: int, task_id: str) -> bytes:
    """Return the key of a READY task: its place in the claim order."""
    number = seq.to_bytes(NUMBER_BYTES)
    place = queue_part(queue, tenant), 0xFF - priority, number, part(task_id)
    return b"%bpending/%c/%b/%b" % place


def delayed(queue: str, tenant: str, *, due_ms: int, task_id: str) -> bytes:
    """Return the key of a DELAYED task."""
    return b"%bdelayed/%b/%b" % (queue_part(queue, tenant), be8(due_ms), part(task_id))


def inprog(queue: str, tenant: str, *, task_id: str) -> bytes:
    """Return the key of a LEASED task."""
    return b"%binprog/%b" % (queue_part(queue, tenant), part(task_id))


def ended(place: QueuePlace, queue: str, tenant: str, *, ended_ms: int, task_id: str) -> bytes:
    """Return the key of a DONE, FAILED or DEAD task; the newest sorts first."""
    number = (NUMBER_MAX - ended_ms).to_bytes(NUMBER_BYTES)
    return b"%b%b/%b" % (place_prefix(place, queue, tenant), number, part(task_id))


def ended_before(place: QueuePlace, queue: str, tenant: str, ended_ms: int) -> bytes:
    """Return the first key, in a place of ended tasks, of those that ended before an instant."""
    return place_prefix(place, queue, tenant) + be8(NUMBER_MAX - ended_ms + 1)


def lease(until_ms: int, task_id: str) -> bytes:
    """Return the key of a lease in the order of time."""
    return b"%b%b/%b" % (LEASE_PREFIX, until_ms.to_bytes(NUMBER_BYTES), part(task_id))


def ttl(due_ms: int, task_id: str) -> bytes:
    """Return the key of any other timer in the order of time."""
    return b"%b%b/%b" % (TTL_PREFIX, due_ms.to_bytes(NUMBER_BYTES), part(task_id))


def timed_range(prefix: bytes, from_ms: int, to_ms: int) -> tuple[bytes, bytes]:
    """Return the range of the keys of leases, or of other timers, of from <= instant < to."""
    return prefix + from_ms.to_bytes(NUMBER_BYTES), prefix + to_ms.to_bytes(NUMBER_BYTES)


def claim(request: str, task_id: str) -> bytes:
    """Return the key under which a retried claim finds a task it leased."""
    return b"%b%b/%b" % (CLAIM_PREFIX, part(request), part(task_id))


def idempotency(tenant: str, key: str) -> bytes:
    """Return the key of an idempotency key's row; `key` is any text but the empty one."""
    assert key
    return b"%b%b/%b" % (IDEMPOTENCY_PREFIX, tenant_part(tenant), key.encode())


@lru_cache(QUEUES_CACHED)
def stats(queue: str, tenant: str) -> bytes:
    """Return the key of the queue's counters."""
    return b"%b%b/%b" % (STATS_PREFIX, part(queue), tenant_part(tenant))


def meta(name: str) -> bytes:
    """Return the key of a row that the shard keeps about itself."""
    return META_PREFIX + part(name)


def pending_prefix(queue: str, tenant: str, priority: int | None = None) -> bytes:
    """Return the prefix of the keys of a queue's READY tasks, of one priority or of all."""
    prefix = queue_part(queue, tenant) + b"pending/"
    return prefix if priority is None else b"%b%c/" % (prefix, 0xFF - priority)


@lru_cache(QUEUES_CACHED)
def place_prefix(place: QueuePlace, queue: str, tenant: str) -> bytes:
    """Return the prefix of the keys of a queue's tasks in one place."""
    return b"%b%b/" % (queue_part(queue, tenant), place.value.encode())


@lru_cache(PARTS_CACHED)
def item(kind: ItemKind, tenant: str, item_id: str) -> bytes:
    """Return the key of an item."""
    return b"%b%b" % (item_prefix(kind, tenant), part(item_id))


@lru_cache(QUEUES_CACHED)
def item_prefix(kind: ItemKind, tenant: str | None = None) -> bytes:
    """Return the prefix of the keys of a kind's items, of one tenant or of all."""
    prefix = b"%b%b/" % (ITEM_PREFIX, kind.value.encode())
    return prefix if tenant is None else b"%b%b/" % (prefix, tenant_part(tenant))


def body(tenant: str, delivery_id: str) -> bytes:
    """Return the key of a delivery's body."""
    return b"%b%b/%b" % (BODY_PREFIX, tenant_part(tenant), part(delivery_id))


def dead_prefix(tenant: str) -> bytes:
    """Return the prefix of the keys of a tenant's dead deliveries."""
    return b"%b%b/" % (DEAD_PREFIX, tenant_part(tenant))


def claim_prefix(request: str) -> bytes:
    """Return the prefix of the keys of the tasks leased under a claim."""
    return b"%b%b/" % (CLAIM_PREFIX, part(request))


def prefix_range(prefix: bytes) -> tuple[bytes, bytes]:
    """Return start and end of the half-open range of keys that begin with `prefix`."""
    head = prefix.rstrip(b"\xff")
    assert head  # No key begins with 0xFF, and nothing else needs a range without an end.
    return prefix, head[:-1] + bytes((head[-1] + 1,))


@lru_cache(QUEUES_CACHED)
def pending_range(queue: str, tenant: str) -> tuple[bytes, bytes]:
    """Return the half-open range of a queue's READY tasks, in claim order."""
    return prefix_range(pending_prefix(queue, tenant))


def family(key: bytes) -> Family:
    """Return the family of a key; OTHER when this version does not know it."""
    known = FAMILIES.get(key[CODE])
    if known is not None:
        prefix, found = known
        return found if key.startswith(prefix) else Family.OTHER
    if not key.startswith(QUEUE_PREFIX):
        return Family.OTHER
    parts = key.split(b"/", 5)
    return _PLACES.get(parts[4], Family.OTHER) if len(parts) == 6 else Family.OTHER


def is_task_index(key: bytes) -> bool:
    """Return whether a key is an index row of a task."""
    return key[CODE] in _TASK_INDEXES


def queue_of(key: bytes) -> tuple[str, str]:
    """Return (queue, tenant) from the key of a task's place in its queue."""
    _, _, queue, tenant, _ = key.split(b"/", 4)
    return queue.decode(), tenant_name(tenant)


def pending_parts(key: bytes) -> tuple[int, int, str]:
    """Return (priority, seq, task id) from a READY task's key."""
    slash = key.rindex(b"/")
    seq = int.from_bytes(key[slash - NUMBER_BYTES : slash])
    return 0xFF - key[slash - NUMBER_BYTES - 2], seq, key[slash + 1 :].decode()


def timed_parts(key: bytes) -> tuple[int, str]:
    """Return (Unix milliseconds, task id) from the key of a lease, a timer or a DELAYED task."""
    slash = key.rindex(b"/")
    return int.from_bytes(key[slash - NUMBER_BYTES : slash]), key[slash + 1 :].decode()


def item_parts(key: bytes) -> tuple[ItemKind, str, str]:
    """Return (kind, tenant, id) from the key of an item, of its outbox job or of its expiry.

    Raises:
        ValueError: This version does not know the kind.
    """
    _, kind, tenant, item_id = key.rsplit(b"/", 3)
    return ItemKind(kind.decode()), tenant_name(tenant), item_id.decode()


def knows_kind(key: bytes) -> bool:
    """Return whether the key of an item, its outbox job or its expiry is of a known kind.

    During an upgrade a newer leader may write other kinds; they are kept, and otherwise ignored.
    """
    return key.rsplit(b"/", 3)[1] in _KINDS


def item_timer_ms(key: bytes) -> int:
    """Return the instant, Unix milliseconds, from the key of an outbox job or of an expiry."""
    prefix = OUTBOX_PREFIX if key.startswith(OUTBOX_PREFIX) else EXPIRY_PREFIX
    return int.from_bytes(key[len(prefix) : len(prefix) + NUMBER_BYTES])


def due_ms(key: bytes) -> int:
    """Return the instant, Unix milliseconds, from the key of any timer; 0 for any other key."""
    known = FAMILIES.get(key[CODE])
    if known is not None and known[1] is Family.FIRE:
        return fire_parts(key)[1]
    if known is None or known[1] not in _TIMED:
        return 0
    start = len(known[0])
    return int.from_bytes(key[start : start + NUMBER_BYTES])


@lru_cache(QUEUES_CACHED)
def stats_parts(key: bytes) -> tuple[str, str]:
    """Return (queue, tenant) from a key of counters; the default tenant is empty."""
    queue, tenant = key.removeprefix(STATS_PREFIX).split(b"/")
    return queue.decode(), tenant_name(tenant)


def index_keys(of: Task) -> tuple[bytes, ...]:
    """Return the key of every index row: place, timer if any, claim, its key's slot, its tags.

    These depend on the task alone, so a task is in exactly one place. Its record, payload, result,
    idempotency row and counters are not indexes.
    """
    keys, more = _place_keys(of), of.more
    if more is None:
        return keys
    if more.key and (slots := lane_keys.slot_keys(of)):
        keys = (*keys, *slots)
    return (*keys, *tag_keys.tag_keys(of)) if more.tags else keys


def _place_keys(of: Task) -> tuple[bytes, ...]:
    queue = of.command.lower()
    tenant = of.tenant
    task_id = of.id
    match of.state:
        case State.READY:
            place = pending(queue, tenant, priority=of.priority, seq=of.seq, task_id=task_id)
            return (place, ttl(of.expires_ms, task_id)) if of.expires_ms else (place,)
        case State.LEASED:
            return (
                inprog(queue, tenant, task_id=task_id),
                lease(of.lease_until_ms, task_id),
                claim(of.claim, task_id),
            )
        case State.DELAYED:
            place = delayed(queue, tenant, due_ms=of.due_ms, task_id=task_id)
            expires_first = 0 < of.expires_ms < of.due_ms
            return place, ttl(of.expires_ms if expires_first else of.due_ms, task_id)
        case State.HELD:
            place = lane_keys.held(of)
            return (place, ttl(of.expires_ms, task_id)) if of.expires_ms else (place,)
        case State.DONE | State.FAILED | State.DEAD:
            if of.state is State.DEAD:
                queue = of.dead_queue
            place = ended(
                PLACE_OF[of.state], queue, tenant, ended_ms=of.updated_ms, task_id=task_id
            )
            return place, ttl(of.retain_until_ms, task_id)
        case _:
            assert_never(of.state)


def item_index_keys(of: Item) -> tuple[bytes, ...]:
    """Return the key of every index row of an item: outbox job, place in a list, expiry, line."""
    keys: tuple[bytes, ...] = ()
    for name, key in _INDEXES_OF[type(of)]:
        value = getattr(of, name)
        if value:
            keys += (key(of, value),)
    return keys


def _indexed_name(of: Item) -> bytes:
    return b"%b/%b/%b" % (KIND_OF[type(of)].encode(), tenant_part(of.tenant), part(of.id))


# What gives an item an index row if it is not 0 or None, and the key of that row.
_INDEXES: dict[str, Callable[[Item, Any], bytes]] = {
    "job_ms": lambda of, ms: b"%b%b/%b" % (OUTBOX_PREFIX, be8(ms), _indexed_name(of)),
    "dead_ms": lambda of, ms: (
        b"%b%b/%b" % (dead_prefix(of.tenant), be8(NUMBER_MAX - ms), part(of.id))
    ),
    "rank": lambda of, rank: (
        b"%b%b/%b" % (groups_prefix(of.tenant), be8(NUMBER_MAX - rank), part(of.id))
    ),
    "fires_ms": lambda of, ms: b"%b/%b" % (fire_from(of.tenant, ms), _indexed_name(of)),
    "end_ms": lambda of, ms: b"%b%b/%b" % (EXPIRY_PREFIX, be8(ms), _indexed_name(of)),
    "sent_as": lambda of, place: b"%b/%b" % (forward_from(*place), _indexed_name(of)),
}
_INDEXES_OF = {
    kind: tuple((field, key) for name, key in _INDEXES.items() if (field := kind.declared(name)))
    for kind in KIND_OF
}


def last_id(key: bytes) -> str:
    """Return the last part of a key: the id of the task, or of the item, that a row is for."""
    return key[key.rfind(b"/") + 1 :].decode()
