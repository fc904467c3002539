"""Placing: the shard that a task's keys give it, and tasks whose keys belong on another one.

One log decides about a key. The broker draws the id of a task with a key so that both have the
same shard, for its own number of shards. They still agree for every divisor of that number, and by
chance for any other.
"""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.lane import lane_of
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.sharding import shard_of, shard_of_key, shard_of_lane
from codeq_cluster.core.task import State, Task


def placed_by_key(create: Create, tenant: str, shards: int) -> int | None:
    """Return the shard that a new task's keys give it; None if it has none."""
    if create.key:
        return shard_of_lane(tenant, create.command.lower(), create.key, shards)
    if create.idempotency_key:
        return shard_of_key(tenant, create.idempotency_key, shards)
    return None


def home_of(create: Create, shards: int) -> int:
    """Return the shard of a new task that has its id."""
    placed = placed_by_key(create, create.tenant, shards)
    return shard_of(create.id, shards) if placed is None else placed


def is_apart(task: Task, shards: int) -> bool:
    """Return whether one of a task's keys belongs on another shard than the task."""
    home, lane, key = shard_of(task.id, shards), lane_of(task), task.idempotency_key
    if lane and shard_of_lane(task.tenant, task.command.lower(), lane, shards) != home:
        return True
    return bool(key) and shard_of_key(task.tenant, key, shards) != home


def without_keys(task: Task) -> Task:
    """Return the task without its keys; then nothing holds it."""
    if lane_of(task):
        assert task.more is not None
        more = replace(task.more, key="", keeps_place=False, stops_key=False)
        state = State.READY if task.state is State.HELD else task.state
        task = replace(task, more=more, state=state)
    return replace(task, idempotency_key="")
