"""Asides: a task set aside in a running node, as its timers do when they fail at it."""

from __future__ import annotations

import asyncio

from codeq_cluster.broker.engine.faults import setting_aside
from codeq_cluster.broker.ports import Shards
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.sharding import shard_of


async def set_aside(shards: Shards, task_id: str, *, tenant: str) -> str:
    """Set aside a task with a timer, for this tenant; return the id to retry it by."""
    deadline = asyncio.get_running_loop().time() + 10
    shard = shard_of(task_id, shards.count)
    stored = await shards.read(shard, (keyspace.task(task_id),), deadline=deadline)
    task = records.decode_task(stored.values[0] or b"")
    [timer] = [key for key in keyspace.index_keys(task) if keyspace.due_ms(key)]
    operation = setting_aside(timer, AssertionError("a test"), tenant=tenant)
    await shards.operate(shard, [operation], deadline=deadline)
    return f"{operation.kind}.{operation.subject}"
