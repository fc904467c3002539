"""Placing: the shard that a task's keys give it, and tasks whose keys belong on another one.

One log decides about a key. The broker draws the id of a task with a key so that both have the
same shard, for its own number of shards. They still agree for every divisor of that number, and by
chance for any other.
All new tasks of a queue with a limit of its own are on the shard of the queue, and those of a queue
that shares one on the shard of that limit, whatever keys they have.
A task may have a key that it shares a limit with, a unique key and an idempotency key. The first of
these that it has places it, so an idempotency key is known among the tasks of the others alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from codeq_cluster.core.lane import lane_id, lane_name, lane_of
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.sharding import (
    shard_of,
    shard_of_key,
    shard_of_lane,
    shard_of_queue,
    with_shard,
)
from codeq_cluster.core.task import Role, State, Task
from codeq_cluster.core.unique import scope_of, unique_key

# No idempotency key of a request begins with it.
AMONG_LANE = "\0"

# By tenant and queue, the scope that places all new tasks of the queue; see `Flow.pinned`.
Pins = Mapping[tuple[str, str], str]
_NONE: Pins = {}


def placed_by_key(create: Create, tenant: str, shards: int, pins: Pins = _NONE) -> int | None:
    """Return the shard that a new task's queue or keys give it; None if any will do.

    Args:
        pins: What places all new tasks of a queue.
    """
    if pins and (pinned := pins.get((tenant, create.command.lower()))):
        return shard_of_queue(tenant, pinned, shards)
    lane = create.key or (create.unique.key if create.unique is not None else "")
    return _placed(tenant, create.command, lane, create.idempotency_key, shards)


def kept_id(
    drawn: str,
    create: Create,
    tenant: str,
    *,
    home: int,
    shards: int,
    pins: Pins,
    is_there: Callable[[str], bool],
) -> str:
    """Return the id of a task that its maker names again each time.

    One that is there keeps its id, although its queue has got a limit since and a place by it.

    Args:
        drawn: The id but for its shard.
        home: Its shard if any will do.
        pins: As `placed_by_key` takes them.
        is_there: Returns whether an id is of a task that was made.
    """
    placed = placed_by_key(create, tenant, shards)
    task_id = with_shard(drawn, shards=shards, wanted=home if placed is None else placed)
    pinned = pins.get((tenant, create.command.lower()))
    if not pinned or is_there(task_id):
        return task_id
    return with_shard(drawn, shards=shards, wanted=shard_of_queue(tenant, pinned, shards))


def placed_again(task: Task, tenant: str, shards: int) -> int | None:
    """Return the shard that a task's queue or keys give it with a tenant; None if any will do."""
    if task.more is not None and task.more.pinned:
        return shard_of_queue(tenant, task.more.pinned, shards)
    return _placed(tenant, task.command, placing_key(task), task.idempotency_key, shards)


def placing_key(task: Task) -> str:
    """Return the key that a task is placed by, but for its idempotency key; "" if it has none."""
    return lane_of(task) or unique_key(task)


def is_apart(thing: Create | Task, shards: int) -> bool:
    """Return whether a task's keys, or its queue, belong on another shard than the task.

    Args:
        thing: The task, or one that has its id and is on its way; of that, its keys alone count.
        shards: Another number of them than the id was drawn for.
    """
    if isinstance(thing, Create):
        placed = placed_by_key(thing, thing.tenant, shards)
    else:
        placed = placed_again(thing, thing.tenant, shards)
    return placed not in (None, shard_of(thing.id, shards))


def is_misplaced(thing: Create | Task, shards: int, pins: Pins) -> bool:
    """Return whether all new tasks of a task's queue are on another shard than its id says."""
    pinned = pins.get((thing.tenant, thing.command.lower()))
    if not pinned:
        return False
    return shard_of(thing.id, shards) != shard_of_queue(thing.tenant, pinned, shards)


def pin_of(task: Task) -> dict[tuple[str, str], str]:
    """Return what places the queue of a task, if anything does."""
    pinned = task.more.pinned if task.more is not None else ""
    return {(task.tenant, task.command.lower()): pinned} if pinned else {}


def once_name(thing: Create | Task) -> str:
    """Return the name under which a task's idempotency key is known; "" if it has none."""
    once = thing.idempotency_key
    if not once or (isinstance(thing, Task) and thing.more is None):
        return once
    lane = thing.key if isinstance(thing, Create) else lane_of(thing)
    if not lane and not unique_key(thing):
        return once
    name = lane_id(thing.command.lower(), lane_name(lane)) if lane else scope_of(thing)
    return f"{AMONG_LANE}{name}/{once}"


def _placed(tenant: str, command: str, lane: str, once: str, shards: int) -> int | None:
    if lane:
        return shard_of_lane(tenant, command.lower(), lane, shards)
    return shard_of_key(tenant, once, shards) if once else None


def keyless(create: Create) -> Create:
    """Return a new task without its keys."""
    return replace(create, idempotency_key="", fingerprint="", key="", cost=1, unique=None)


def without_keys(task: Task) -> Task:
    """Return the task without its keys; then only its start and its dependencies hold it."""
    if task.more is not None and (lane_of(task) or unique_key(task) or task.more.pinned):
        more = replace(
            task.more,
            pinned="",
            key="",
            keeps_place=False,
            stops_key=False,
            slotless=False,
            unique=None,
        )
        unique = task.more.unique
        start_ms = 0
        if unique is not None and unique.role is Role.NEXT:
            more, start_ms = replace(more, waits=False), unique.start_ms
        task = replace(task, more=more)
        if task.state is State.HELD and not more.waits:
            task = replace(task, state=State.READY)
            if start_ms:
                task = replace(task, state=State.DELAYED, seq=0, due_ms=start_ms)
    return replace(task, idempotency_key="")
