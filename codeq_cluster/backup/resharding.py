"""Resharding: the shard of each row in a cluster with another number of shards.

A task's id decides its shard by a hash, and so does an idempotency key: one log decides about both.
The broker draws the id of a keyed task so that the two have the same shard, for its own number of
shards. They still agree for every divisor of that number, and by chance for any other.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from codeq_cluster.backup.rows import Row, tenant_key
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.items import Item
from codeq_cluster.core.schedules import schedule_shard
from codeq_cluster.core.sharding import home_shard, shard_of, shard_of_key
from codeq_cluster.core.stored_item import Place
from codeq_cluster.core.task import Task


def shard_of_task(task_id: str, shards: int) -> int:
    """Return the shard of a task's rows."""
    return shard_of(task_id, shards)


def shard_of_item(item: Item, *, source: int, shards: int) -> int:
    """Return the shard of an item.

    Args:
        item: Of any kind.
        source: The shard it comes from: an audit record may be on any.
        shards: The new number of shards.
    """
    match item.place:
        case Place.TASK:
            # Its id begins with its task's id.
            return shard_of(item.id.split(".", 1)[0], shards)
        case Place.SCHEDULE:
            return schedule_shard(item.tenant, item.id, shards)
        case Place.ORIGIN:
            return source % shards
        case Place.TENANT:
            return home_shard(item.tenant, shards)
        case _:
            assert_never(item.place)


def is_apart(task: Task, shards: int) -> bool:
    """Return whether a task's key belongs on another shard than the task."""
    key = task.idempotency_key
    if not key:
        return False
    return shard_of_key(task.tenant, key, shards) != shard_of_task(task.id, shards)


def is_key_apart(row: Row, shards: int) -> bool:
    """Return the same as `is_apart`, by the row of the key."""
    tenant, key = tenant_key(row[0])
    task_id = records.decode_key_row(row[1]).task_id
    return shard_of_key(tenant, key, shards) != shard_of_task(task_id, shards)


def without_key(task: Task) -> Task:
    """Return the task without its idempotency key."""
    return replace(task, idempotency_key="")


def shard_of_row(row: Row, *, source: int, shards: int) -> int:
    """Return the shard of a primary row; see `shard_of_item` for `source`."""
    key, value = row
    match keyspace.family(key):
        case Family.IDEMPOTENCY:
            return shard_of_key(*tenant_key(key), shards)
        case Family.ITEM:
            return shard_of_item(records.decode_item(value), source=source, shards=shards)
        case Family.BODY:
            # A delivery's id begins with its task's id.
            return shard_of_task(tenant_key(key)[1].split(".", 1)[0], shards)
        case _:
            return shard_of_task(key[key.rindex(b"/") + 1 :].decode(), shards)
