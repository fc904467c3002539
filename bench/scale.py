"""Scale: the cost of a million tasks for a starting node, and for one with an empty disk.

    python -m bench.scale --tasks 1000000

The broker's own engines, one per shard, create the tasks directly in the data of two nodes: the
same rows as requests would create. Their counters are checked. Then the two nodes start, and a
third one with an empty disk, which fetches a snapshot of every shard. Finally all three are stopped
and started again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.filled import COMMAND, data_bytes, fill, installed
from bench.machine import describe, rss_mib, scratch
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import WORKER_TOKENS

_PAYLOAD_BYTES = 300
_CLAIMS = 200
_READY_WITHIN_S = 1800.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill, measure and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--snapshot-bytes-per-s", type=int, default=32 * 2**20)
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        figures = asyncio.run(_measure(options, directory))
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
    fill(
        first,
        second,
        third,
        shards=options.shards,
        tasks=options.tasks,
        payload_bytes=_PAYLOAD_BYTES,
    )
    filled_s = time.monotonic() - begun_s
    size = data_bytes(first)
    _say(f"filled in {filled_s:.0f} s, {size / 2**20:.0f} MiB a node")

    begun_s = time.monotonic()
    async with cluster:
        installed_s = time.monotonic() - begun_s
        _say(f"all ready {installed_s:.1f} s after the start, one of them from nothing")
        await cluster.wait_converged()
        snapshots = {node: await _snapshot_seconds(cluster, node) for node in cluster.nodes}
        sizes, seconds = installed(third)
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


async def _restart(cluster: LocalCluster) -> tuple[dict[str, float], float]:
    """Stop and start all nodes; return seconds until ready, and the time of the first claim."""
    await asyncio.gather(*(cluster.stop(node) for node in cluster.nodes))
    for node in cluster.nodes:
        cluster.start(node)
    begun_s = time.monotonic()

    async def ready(node: str) -> float:
        await cluster.wait_ready([node], within_s=_READY_WITHIN_S)
        return round(time.monotonic() - begun_s, 2)

    took = await asyncio.gather(*map(ready, cluster.nodes))
    async with RecordingClient(cluster.urls) as client:
        return dict(zip(cluster.nodes, took, strict=True)), await _claim_ms(client, "n1")


async def _restart_one(cluster: LocalCluster, node: str) -> float:
    await cluster.stop(node)
    cluster.start(node)
    begun_s = time.monotonic()
    await cluster.wait_ready([node], within_s=_READY_WITHIN_S)
    return round(time.monotonic() - begun_s, 2)


async def _claims(cluster: LocalCluster) -> dict[str, float]:
    async with RecordingClient(cluster.urls) as client:
        took = sorted([await _claim_ms(client, "n1") for _ in range(_CLAIMS)])
    return {"p50": took[len(took) // 2], "p99": took[-len(took) // 100]}


async def _claim_ms(client: RecordingClient, node: str) -> float:
    begun_s = time.perf_counter()
    answer = await client.claim(node, WORKER_TOKENS["worker-0"], [COMMAND], leaseSeconds=3600)
    took_ms = (time.perf_counter() - begun_s) * 1000
    if answer.status != 200:
        raise RuntimeError(f"no claim: {answer}")
    return round(took_ms, 2)


async def _snapshot_seconds(cluster: LocalCluster, node: str) -> float:
    """Return the time of all snapshots that a node has taken or installed."""
    found = (await cluster.metrics(node)).items()
    name = "codeq_raft_snapshot_seconds_sum"
    return round(sum(value for sample, value in found if sample.startswith(name)), 3)


def _say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
