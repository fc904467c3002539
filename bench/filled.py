"""Filled: data directories for nodes that have not started, with tasks from the broker's engines.

Each shard's engine creates the same rows that requests would create, without the requests. Then the
counters are checked against the tasks. The log starts after the engine's last entry, as after a
snapshot.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.queue_length import engine_on
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.codec.mutations import Recount
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.raft.journal_rows import rows_after_snapshot
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.directory import new_directory, open_directory
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from codeq_cluster.storage.stored_shard import StoredShard
from tests.fakes.spilled_shard import SpilledShard
from tests.harness.node_process import NodeProcess

COMMAND = "work"
_CLUSTER = "acceptance"  # The cluster id of `LocalCluster`.
_TENANT = ""  # The default tenant, which the static tokens have.
_BATCH_BYTES = 512 * 1024
_BATCH_MAX = 500


def fill(
    first: NodeProcess,
    second: NodeProcess,
    third: NodeProcess,
    *,
    shards: int,
    tasks: int,
    payload_bytes: int,
) -> None:
    """Create the data directories of two nodes that have never run; both hold the same tasks.

    Args:
        first: A node of a cluster that has not been started.
        second: Another one.
        third: A node that gets no data, but is a member for the other two.
        shards: Number of shards of the cluster.
        tasks: Number of tasks in all shards together.
        payload_bytes: The approximate size per task; random, so that it does not compress.

    Raises:
        RuntimeError: The counters do not match the tasks.
    """
    with new_directory(
        first.data_path, cluster_id=_CLUSTER, node_id=first.id, shards=shards
    ) as path_of:
        paths = [path_of(shard) for shard in range(shards)]
        with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
            filling = [
                pool.submit(_fill_shard, path, shard, shards, tasks, payload_bytes)
                for shard, path in enumerate(paths)
            ]
            counted = sum(each.result() for each in filling)
        if counted != tasks:
            raise RuntimeError(f"{counted} tasks are there, not {tasks}")
        with new_directory(
            second.data_path, cluster_id=_CLUSTER, node_id=second.id, shards=shards
        ) as copy_of:
            for shard, path in enumerate(paths):
                _link(path, copy_of(shard))
    _found([first, second], third, shards=shards)
    # Otherwise the nodes' first syncs would wait for the kernel to write these files back.
    os.sync()


def _found(nodes: Sequence[NodeProcess], expected: NodeProcess, *, shards: int) -> None:
    """Bootstrap the cluster with these nodes, and admit another one."""
    with ExitStack() as stack:
        directories = [
            stack.enter_context(
                open_directory(node.data_path, cluster_id=_CLUSTER, node_id=node.id, shards=shards)
            )
            for node in nodes
        ]
        members = [
            _member(node, data=directory.data)
            for node, directory in zip(nodes, directories, strict=True)
        ]
        membership = Membership(members=(*members, _member(expected, data=0)))
        for directory in directories:
            directory.note_bootstrap(membership)


def _member(node: NodeProcess, *, data: int) -> Member:
    # A running node registers its own address. An address stored here would bypass the slow link.
    return Member(id=node.id, data=data, voter=data > 0, http=node.url)


def data_bytes(node: NodeProcess) -> int:
    """Return the size of a node's data on disk."""
    return sum(each.stat().st_size for each in node.data_path.rglob("*") if each.is_file())


def installed(node: NodeProcess) -> tuple[list[int], list[float]]:
    """Return bytes and seconds of each snapshot that a node logged as installed."""
    found = told(node, "snapshot installed")
    return [int(line["bytes"]) for line in found], [float(line["seconds"]) for line in found]


def told(node: NodeProcess, event: str) -> list[dict[str, Any]]:
    """Return the lines of a node's log that report an event."""
    lines = [json.loads(line) for line in node.log_path.read_text().splitlines() if line[:1] == "{"]
    return [line for line in lines if line["event"] == event]


def _fill_shard(path: Path, shard: int, shards: int, tasks: int, payload_bytes: int) -> int:
    os.nice(5)
    store = _opened(path)
    asyncio.run(_create(store, shard, shards, tasks, payload_bytes))
    store.close()
    return _counted(path)


def _opened(path: Path) -> SpilledShard:
    settings = StoreSettings()
    return SpilledShard(RocksShard(path, settings=settings, cache=new_cache(settings)))


async def _create(
    store: SpilledShard, shard: int, shards: int, tasks: int, payload_bytes: int
) -> None:
    engine, log = engine_on(store.state, shard=shard, shards=shards)
    log.lead()
    batch: list[Create] = []
    batch_max = max(1, min(_BATCH_MAX, _BATCH_BYTES // payload_bytes))
    for task_id in _ids(tasks):
        if shard_of(task_id, shards) == shard:
            batch.append(
                Create(id=task_id, tenant=_TENANT, command=COMMAND, payload=_payload(payload_bytes))
            )
            if len(batch) == batch_max:
                await engine.operate(batch)
                batch.clear()
    if batch:
        await engine.operate(batch)
    engine.stop()
    # The log continues after the last entry, as after a snapshot.
    puts, _ = rows_after_snapshot(
        engine.applied_index, log.term, vote_term=log.term, voted_for=None
    )
    store.log.write(puts, sync=True)


def _payload(size: int) -> str:
    # In base64, three bytes are four characters.
    text = base64.b64encode(os.urandom(size * 3 // 4 - 9)).decode()
    return f'{{"text":"{text}"}}'


def _ids(count: int) -> Iterator[str]:
    return (f"{number:08x}-0000-4000-8000-000000000000" for number in range(count))


def _counted(path: Path) -> int:
    """Return the number of a shard's tasks, and raise if a queue's counters do not match it."""
    recount, tasks = Recount(), 0
    with StoredShard(path) as stored:
        start, end = keyspace.prefix_range(keyspace.TASK_PREFIX)
        for _, value in stored.rows(start, end):
            recount.add(records.decode_task(value))
            tasks += 1
        for key, value in recount.rows().items():
            if stored.get(key) != value:
                raise RuntimeError(f"{path}: the counters of {key!r} are not its tasks'")
    return tasks


def _link(source: Path, target: Path) -> None:
    """Copy a shard's directory that no process has open; link its immutable files."""

    def copy(one: str, other: str) -> None:
        if one.endswith(".sst"):
            os.link(one, other)
        else:
            shutil.copyfile(one, other)

    shutil.copytree(source, target, copy_function=copy, dirs_exist_ok=True)
