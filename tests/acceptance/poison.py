"""Poison: a stored task changed on the disks of stopped nodes, as no request can change it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Task
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from tests.fakes.spilled_shard import put


def rewrite(
    paths: Iterable[Path], task_id: str, change: Callable[[Task], Task], *, shards: int
) -> None:
    """Change the record of a task in each of these data directories; no entry did that."""
    settings, key = StoreSettings(), keyspace.task(task_id)
    for path in paths:
        directory = path / f"shard-{shard_of(task_id, shards)}"
        shard = RocksShard(directory, settings=settings, cache=new_cache(settings))
        record = shard.state.get(key)
        assert record is not None, "the task is still in the write-ahead log"
        put(shard, {key: records.encode(change(records.decode_task(record)))})
        shard.close()
