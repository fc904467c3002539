"""Placing: the shard that a task's keys give it, and tasks whose keys belong on another one.

One log decides about a key. The broker draws the id of a task with a key so that both have the
same shard, for its own number of shards. They still agree for every divisor of that number, and by
chance for any other.
A task may have a key that it shares a limit with, a unique key and an idempotency key. The first of
these that it has places it, so an idempotency key is known among the tasks of the others alone.
"""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.lane import lane_id, lane_name, lane_of
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.sharding import shard_of, shard_of_key, shard_of_lane
from codeq_cluster.core.task import Role, State, Task
from codeq_cluster.core.unique import scope_of, unique_key

# No idempotency key of a request begins with it.
AMONG_LANE = "\0"


def placed_by_key(create: Create, tenant: str, shards: int) -> int | None:
    """Return the shard that a new task's keys give it; None if it has none."""
    lane = create.key or (create.unique.key if create.unique is not None else "")
    return _placed(tenant, create.command, lane, create.idempotency_key, shards)


def placed_again(task: Task, tenant: str, shards: int) -> int | None:
    """Return the shard that a task's keys give it with a tenant; None if it has none."""
    return _placed(tenant, task.command, placing_key(task), task.idempotency_key, shards)


def placing_key(task: Task) -> str:
    """Return the key that a task is placed by, but for its idempotency key; "" if it has none."""
    return lane_of(task) or unique_key(task)


def home_of(create: Create, shards: int) -> int:
    """Return the shard of a new task that has its id."""
    placed = placed_by_key(create, create.tenant, shards)
    return shard_of(create.id, shards) if placed is None else placed


def is_apart(task: Task, shards: int) -> bool:
    """Return whether a task's keys belong on another shard than the task."""
    return placed_again(task, task.tenant, shards) not in (None, shard_of(task.id, shards))


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


def without_keys(task: Task) -> Task:
    """Return the task without its keys; then nothing holds it."""
    if lane_of(task) or unique_key(task):
        assert task.more is not None
        more = replace(task.more, key="", keeps_place=False, stops_key=False, unique=None)
        if task.more.unique is not None and task.more.unique.role is Role.NEXT:
            more = replace(more, waits=False)
        state = State.READY if task.state is State.HELD else task.state
        task = replace(task, more=more, state=state)
    return replace(task, idempotency_key="")
