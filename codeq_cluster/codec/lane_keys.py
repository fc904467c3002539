"""Lane keys: the rows of tasks that have a key, and of those that wait for other tasks.

The lane is the digest of the key, so that a key may be any text. A rank is nine bytes: 255 - the
priority, and the place in the order; zeros for a task that keeps its place and is not READY.
Tasks that wait for others are in a lane of their own, whatever their keys.
"""

from __future__ import annotations

from functools import lru_cache

from codeq_cluster.codec import key_parts
from codeq_cluster.core.lane import Lane, lane_name, lane_of, takes_place
from codeq_cluster.core.task import PRIORITY_MAX, State, Task

SLOT_PREFIX = b"codeq/slot/"

_WAITING = "waiting"  # No digest.
_FIRST = bytes(1 + key_parts.NUMBER_BYTES)


def held(of: Task) -> bytes:
    """Return the key of a HELD task."""
    lane = _WAITING if of.waits_for_others else lane_name(lane_of(of))
    prefix = _held_prefix(of.tenant, of.command.lower(), lane)
    return b"%b%b/%b" % (prefix, _rank(of), key_parts.part(of.id))


def held_range(lane: Lane, priority: int) -> tuple[bytes, bytes]:
    """Return the half-open range of a lane's HELD tasks of a priority, and of lower ones."""
    prefix = _held_prefix(lane.tenant, lane.queue, lane.name)
    return _from(prefix, priority), _end(prefix)


def held_lane(key: bytes) -> tuple[bytes, int]:
    """Return (end of its lane, place in the order) from the key of a HELD task."""
    slash = key.rindex(b"/")
    seq = int.from_bytes(key[slash - key_parts.NUMBER_BYTES : slash])
    return _end(key[: slash - len(_FIRST)]), seq


def slot_keys(of: Task) -> tuple[bytes, ...]:
    """Return the key of the slot of a task, if it has one: the row of a place of its key.

    A task in progress has none, because `explain` alone asks for it and finds it in its queue. One
    that is not `slotless` is of a time when it had, and keeps it, so that none is left behind.
    """
    more = of.more
    if more is None or not more.key:
        return ()
    if of.state is State.READY:
        rank = _rank(of)
    elif (more.slotless and of.state is State.LEASED) or not takes_place(of):
        return ()
    else:
        rank = _FIRST
    prefix = _slot_prefix(of.tenant, of.command.lower(), more.key)
    return (b"%b%b/%b" % (prefix, rank, key_parts.part(of.id)),)


def slot_range(lane: Lane, *, ready_only: bool) -> tuple[bytes, bytes]:
    """Return the half-open range of the slots of a lane; those of READY tasks are the last."""
    prefix = _slot_prefix(lane.tenant, lane.queue, lane.key)
    return _from(prefix, PRIORITY_MAX) if ready_only else prefix, _end(prefix)


def _held_prefix(tenant: str, queue: str, lane: str) -> bytes:
    return b"%bheld/%b/" % (key_parts.queue_part(queue, tenant), key_parts.part(lane))


@lru_cache(key_parts.PARTS_CACHED)
def _slot_prefix(tenant: str, queue: str, key: str) -> bytes:
    lane = key_parts.part(lane_name(key))
    parts = key_parts.part(queue), key_parts.tenant_part(tenant), lane
    return SLOT_PREFIX + b"%b/%b/%b/" % parts


def _end(prefix: bytes) -> bytes:
    """Return the end of the range of keys with a prefix, which ends with a slash."""
    return prefix[:-1] + b"0"


def _from(prefix: bytes, priority: int) -> bytes:
    return b"%b%c" % (prefix, 0xFF - priority)


def _rank(of: Task) -> bytes:
    return b"%c%b" % (0xFF - of.priority, of.seq.to_bytes(key_parts.NUMBER_BYTES))
