"""Placing: on which shard of another number of shards a row belongs.

A task is where its id hashes to, and an idempotency key where the key does: one log decides about
both. The broker draws the id of a keyed task so that the two meet, for the number of shards it has.
They meet again for every number that divides it, and by chance for any other.
"""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.backup.rows import Row, tenant_key
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.items import Audit, Delivery, Item, Sweep
from codeq_cluster.core.sharding import home_shard, shard_of
from codeq_cluster.core.task import Task


def shard_of_task(task_id: str, shards: int) -> int:
    """Return where the rows of a task belong."""
    return shard_of(task_id, shards)


def shard_of_key(tenant: str, key: str, shards: int) -> int:
    """Return where the row of an idempotency key belongs."""
    return shard_of(f"{tenant}/{key}", shards)


def shard_of_item(item: Item, *, source: int, shards: int) -> int:
    """Return where an item belongs.

    Args:
        item: Of any kind.
        source: The shard it comes from: a record of the audit may be on any.
        shards: How many there are.
    """
    match item:
        case Delivery() | Sweep():
            return shard_of(item.task_id, shards)
        case Audit():
            return source % shards
        case _:
            return home_shard(item.tenant, shards)


def is_apart(task: Task, shards: int) -> bool:
    """Tell whether a task's key belongs on another shard than the task."""
    key = task.idempotency_key
    if not key:
        return False
    return shard_of_key(task.tenant, key, shards) != shard_of_task(task.id, shards)


def is_key_apart(row: Row, shards: int) -> bool:
    """Tell the same by the row of the key."""
    tenant, key = tenant_key(row[0])
    task_id = records.decode_key_row(row[1]).task_id
    return shard_of_key(tenant, key, shards) != shard_of_task(task_id, shards)


def without_key(task: Task) -> Task:
    """Return the task without its idempotency key."""
    return replace(task, idempotency_key="")


def shard_of_row(row: Row, *, source: int, shards: int) -> int:
    """Return where a primary row belongs; see `shard_of_item` for `source`."""
    key, value = row
    match keyspace.family(key):
        case Family.IDEMPOTENCY:
            return shard_of_key(*tenant_key(key), shards)
        case Family.ITEM:
            return shard_of_item(records.decode_item(value), source=source, shards=shards)
        case Family.BODY:
            # A delivery's id begins with its task's.
            return shard_of_task(tenant_key(key)[1].split(".", 1)[0], shards)
        case _:
            return shard_of_task(key[key.rindex(b"/") + 1 :].decode(), shards)
