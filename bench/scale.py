"""Scale: what a million tasks and more cost a node that starts, and one that has nothing.

    python -m bench.scale --tasks 1000000

The tasks are created by the broker's own engines, one a shard, straight into the data of two nodes:
as the requests would have made them, without the requests. Their counters are counted again. Then
the nodes start, a third one with an empty disk, which fetches a snapshot of every shard; then all
are stopped and started again.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import aiohttp

from bench.machine import describe, rss_mib
from bench.queue_length import engine_on
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.mutations import Recount
from codeq_cluster.core.operations import Create
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.raft.journal import rows_after_snapshot
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.directory import new_directory
from codeq_cluster.storage.rocks import RocksShard, StoredShard, new_cache
from codeq_cluster.testing.client import Client
from codeq_cluster.testing.cluster import WORKER_TOKENS, LocalCluster
from codeq_cluster.testing.one_node_log import OneNodeLog

_CLUSTER = "acceptance"  # As `LocalCluster` calls its own.
_TENANT = ""  # The default one, of the static tokens.
_COMMAND = "work"
_RANDOM_BYTES = 216  # 288 in base64; 300 with what is around them. Nothing compresses them.
_BATCH = 500
_CLAIMS = 200
_READY_WITHIN_S = 1800.0
_RETRY_S = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill, measure and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--snapshot-bytes-per-s", type=int, default=32 * 2**20)
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    try:
        machine = describe(directory)
        figures = asyncio.run(_measure(options, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    command = " ".join(["python -m bench.scale", *sys.argv[1:]])
    print(json.dumps({"command": command, **figures, "machine": machine}, indent=2))
    return 0


async def _measure(options: argparse.Namespace, directory: Path) -> dict[str, object]:
    settings = {"raft": {"snapshotBytesPerSecond": options.snapshot_bytes_per_s}}
    cluster = LocalCluster(
        directory, shards=options.shards, settings=settings, ready_within_s=_READY_WITHIN_S
    )
    first, second, third = cluster.nodes.values()
    begun_s = time.monotonic()
    with new_directory(
        first.data_path, cluster_id=_CLUSTER, node_id=first.id, shards=options.shards
    ) as path_of:
        _fill([path_of(shard) for shard in range(options.shards)], options.tasks)
        with new_directory(
            second.data_path, cluster_id=_CLUSTER, node_id=second.id, shards=options.shards
        ) as copy_of:
            for shard in range(options.shards):
                _link(path_of(shard), copy_of(shard))
    filled_s = time.monotonic() - begun_s
    size = _size(first.data_path)
    _say(f"filled in {filled_s:.0f} s, {size / 2**20:.0f} MiB a node")

    begun_s = time.monotonic()
    async with cluster:
        installed_s = time.monotonic() - begun_s
        _say(f"all ready {installed_s:.1f} s after the start, one of them from nothing")
        await cluster.wait_converged()
        snapshots = {node: await _snapshot_seconds(cluster, node) for node in cluster.nodes}
        sizes, seconds = _installed(third.log_path)
        rss_installed = {node: round(rss_mib(cluster.pid(node))) for node in cluster.nodes}
        restarted, first_claim = await _restart(cluster)
        rss_ready = {node: round(rss_mib(cluster.pid(node))) for node in cluster.nodes}
        claims = await _claims(cluster)
        rss_claimed = {node: round(rss_mib(cluster.pid(node))) for node in cluster.nodes}
        one = await _restart_one(cluster, second.id)
    return {
        "tasks": options.tasks,
        "shards": options.shards,
        "fill_s": round(filled_s, 1),
        "data_mib_a_node": round(size / 2**20),
        "all_ready_one_from_nothing_s": round(installed_s, 1),
        "snapshots_installed_s": seconds,
        "snapshots_mib": [round(each / 2**20, 1) for each in sizes],
        "snapshot_seconds_sum_by_node": snapshots,
        "rss_mib_after_install": rss_installed,
        "restart_of_all_to_ready_s": restarted,
        "first_claim_after_restart_ms": first_claim,
        "restart_of_one_to_ready_s": one,
        "rss_mib_after_restart": rss_ready,
        "claim_ms": claims,
        "rss_mib_after_claims": rss_claimed,
    }


# Filling.


def _fill(paths: Sequence[Path], tasks: int) -> None:
    """Create the tasks, each in the shard its id belongs to, and count them again."""
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        done = [
            pool.submit(_fill_shard, path, shard, len(paths), tasks)
            for shard, path in enumerate(paths)
        ]
        counted = sum(each.result() for each in done)
    if counted != tasks:
        raise RuntimeError(f"{counted} tasks are there, not {tasks}")


def _fill_shard(path: Path, shard: int, shards: int, tasks: int) -> int:
    os.nice(5)
    store = _opened(path)
    asyncio.run(_create(store, shard, shards, tasks))
    store.close()
    return _counted(path)


def _opened(path: Path) -> RocksShard:
    settings = StoreSettings()
    return RocksShard(path, settings=settings, cache=new_cache(settings))


async def _create(store: RocksShard, shard: int, shards: int, tasks: int) -> None:
    engine = engine_on(store, shard=shard, shards=shards)
    log = OneNodeLog(engine, engine)
    engine.attach(log)
    log.lead()
    batch: list[Create] = []
    for task_id in _ids(tasks):
        if shard_of(task_id, shards) == shard:
            batch.append(Create(id=task_id, tenant=_TENANT, command=_COMMAND, payload=_payload()))
            if len(batch) == _BATCH:
                await engine.operate(batch)
                batch.clear()
    if batch:
        await engine.operate(batch)
    engine.stop()
    # The log goes on after the last entry, as beside a snapshot of it.
    puts, _ = rows_after_snapshot(
        engine.applied_index, log.term, vote_term=log.term, voted_for=None
    )
    store.log.write(puts, sync=True)


def _payload() -> str:
    text = base64.b64encode(os.urandom(_RANDOM_BYTES)).decode()
    return f'{{"text":"{text}"}}'


def _ids(count: int) -> Iterator[str]:
    return (f"{number:08x}-0000-4000-8000-000000000000" for number in range(count))


def _counted(path: Path) -> int:
    """Return how many tasks a shard has; its counters must say the same of each queue."""
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
    """Copy a shard that nobody has open; files that never change are linked."""

    def copy(one: str, other: str) -> None:
        if one.endswith(".sst"):
            os.link(one, other)
        else:
            shutil.copyfile(one, other)

    shutil.copytree(source, target, copy_function=copy, dirs_exist_ok=True)


# Measuring.


async def _restart(cluster: LocalCluster) -> tuple[dict[str, float], float]:
    """Stop and start all nodes; return seconds to ready, and what the first claim took."""
    await asyncio.gather(*(cluster.stop(node) for node in cluster.nodes))
    for node in cluster.nodes:
        cluster.start(node)
    begun_s = time.monotonic()

    async def ready(node: str) -> float:
        await cluster.wait_ready([node], within_s=_READY_WITHIN_S)
        return round(time.monotonic() - begun_s, 2)

    took = await asyncio.gather(*map(ready, cluster.nodes))
    async with Client(cluster.urls) as client:
        return dict(zip(cluster.nodes, took, strict=True)), await _claim_ms(client, "n1")


async def _restart_one(cluster: LocalCluster, node: str) -> float:
    await cluster.stop(node)
    cluster.start(node)
    begun_s = time.monotonic()
    await cluster.wait_ready([node], within_s=_READY_WITHIN_S)
    return round(time.monotonic() - begun_s, 2)


async def _claims(cluster: LocalCluster) -> dict[str, float]:
    async with Client(cluster.urls) as client:
        took = sorted([await _claim_ms(client, "n1") for _ in range(_CLAIMS)])
    return {"p50": took[len(took) // 2], "p99": took[-len(took) // 100]}


async def _claim_ms(client: Client, node: str) -> float:
    begun_s = time.perf_counter()
    answer = await client.claim(node, WORKER_TOKENS["worker-0"], [_COMMAND], leaseSeconds=3600)
    took_ms = (time.perf_counter() - begun_s) * 1000
    if answer.status != 200:
        raise RuntimeError(f"no claim: {answer}")
    return round(took_ms, 2)


async def _snapshot_seconds(cluster: LocalCluster, node: str) -> float:
    """Return how long all snapshots a node has taken or installed took."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{cluster.nodes[node].url}/metrics") as response,
    ):
        text = await response.text()
    name = "codeq_raft_snapshot_seconds_sum"
    return round(
        sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name)), 3
    )


def _installed(log_path: Path) -> tuple[list[int], list[float]]:
    """Return bytes and seconds of each snapshot a node says it has installed."""
    lines = [json.loads(line) for line in log_path.read_text().splitlines() if line[:1] == "{"]
    found = [line for line in lines if line["event"] == "snapshot installed"]
    return [line["bytes"] for line in found], [line["seconds"] for line in found]


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def _say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
