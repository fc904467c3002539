"""Resharding: the shard of each row in a cluster with another number of shards.

A task's id decides its shard by a hash, and so does a key; see `core.placing`.
"""

from __future__ import annotations

from typing import assert_never

from codeq_cluster.backup.rows import Row, tenant_key
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.items import Item
from codeq_cluster.core.sharding import home_shard, shard_of, shard_of_key
from codeq_cluster.core.stored_item import Place


def shard_of_item(item: Item, *, source: int, shards: int) -> int:
    """Return the shard of an item.

    Args:
        source: The shard it comes from: an audit record may be on any.
        shards: The new number of shards.
    """
    match item.place:
        case Place.TASK:
            # Its id begins with its task's id.
            return shard_of(item.id.split(".", 1)[0], shards)
        case Place.NAME:
            return shard_of_key(item.tenant, item.shard_name, shards)
        case Place.ORIGIN:
            return source % shards
        case Place.TENANT:
            return home_shard(item.tenant, shards)
        case _:
            assert_never(item.place)


def shard_of_row(row: Row, *, source: int, shards: int) -> int:
    """Return the shard of a primary row; see `shard_of_item` for `source`."""
    key, value = row
    match keyspace.family(key):
        case Family.IDEMPOTENCY:
            return shard_of(records.decode_key_row(value).task_id, shards)
        case Family.ITEM:
            return shard_of_item(records.decode_item(value), source=source, shards=shards)
        case Family.BODY:
            # A delivery's id begins with its task's id.
            return shard_of(tenant_key(key)[1].split(".", 1)[0], shards)
        case _:
            return shard_of(keyspace.last_id(key), shards)
