"""Run: measure a cluster of real processes on this machine, beside servers that do nothing."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench.floor import floors
from bench.generator import generate
from bench.job import Job
from bench.machine import cpu_seconds, describe, rss_mib, scratch
from bench.report import Row, render
from bench.wake import wakes
from tests.harness.accounting import Percentiles, audit
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.load import Load, outlived, workers
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS

_ROOT = Path(__file__).parent.parent
RESULTS = _ROOT / "bench" / "results"
LEVELS = (1, 32, 128)
BATCH_LANES = 4
WAKE_ROUNDS = 200
KILLS = 20
IDLE_S = 10.0
FLOOR_SERVERS = 3
PARTS = ("floor", "create", "cycle", "batch", "wake", "idle", "repair")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested parts, print a table, keep the figures in `bench/results`."""
    options = _options(arguments)
    with scratch(options.directory) as directory:
        report = uvloop.run(_measure(options, directory))
    RESULTS.mkdir(exist_ok=True)
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{report['machine']['commit'][:10]}"
    target = RESULTS / f"{name}.json"
    target.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    print(render(report))
    print(f"\n{target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target}")
    return 1 if any(row["failed"] for row in report["rows"]) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured, each level")
    parser.add_argument("--kills", type=int, default=KILLS, help="leaders killed for `repair`")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument(
        "--levels", type=int, nargs="+", default=LEVELS, metavar="N", help="requests in flight"
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument(
        "--durability", choices=("fsync", "os"), default="fsync", help="of every node"
    )
    parser.add_argument(
        "--directory", type=Path, default=None, help="where the data goes; must be a real disk"
    )
    return parser.parse_args(arguments)


async def _measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    rows: list[Row] = []
    machine = describe(directory)
    if "floor" in options.only:
        rows += await asyncio.to_thread(_floor, options)
    settings = {"durability": options.durability}
    async with LocalCluster(
        directory, nodes=options.nodes, shards=options.shards, settings=settings
    ) as cluster:
        rss_at_start = _rss(cluster)
        # Idle cost is measured before any load; afterwards compactions would count as idle work.
        idle = await _idle(cluster) if "idle" in options.only else None
        for kind in ("create", "cycle"):
            if kind in options.only:
                rows += [await _loaded(kind, cluster, n, options) for n in options.levels]
        if "batch" in options.only:
            rows += [await _loaded("batch", cluster, n, options) for n in (1, BATCH_LANES)]
        if "wake" in options.only:
            rows.append(await _wake(cluster))
        rss_after = _rss(cluster)
        repair = await _repair(cluster, options.kills) if "repair" in options.only else None
    return {
        "machine": machine,
        "settings": {
            "nodes": options.nodes,
            "shards": options.shards,
            "durability": options.durability,
            "seconds": options.seconds,
            "command": " ".join(["python", "-m", "bench.run", *sys.argv[1:]]),
        },
        "rows": [msgspec.to_builtins(row) for row in rows],
        "idle": idle,
        "rssMiB": {"start": rss_at_start, "afterLoad": rss_after},
        "repair": repair,
    }


def _floor(options: argparse.Namespace) -> list[Row]:
    with floors(FLOOR_SERVERS) as pids:
        return [
            _level("create", list(pids), lanes, options, list(pids.values()), name="floor")
            for lanes in options.levels
        ]


async def _loaded(kind: str, cluster: LocalCluster, lanes: int, options: argparse.Namespace) -> Row:
    urls, pids = list(cluster.urls.values()), [cluster.pid(node) for node in cluster.nodes]
    command = f"bench-{kind}-{time.time_ns()}"
    row = await asyncio.to_thread(
        _level, kind, urls, lanes, options, pids, name=kind, command=command
    )
    if kind == "create":
        await _drain(cluster, command)
    return row


def _level(
    kind: str,
    urls: list[str],
    lanes: int,
    options: argparse.Namespace,
    pids: list[int],
    *,
    name: str,
    command: str = "floor",
) -> Row:
    job = Job(
        kind=kind,
        urls=urls,
        producer_token=PRODUCER_TOKEN,
        worker_token=next(iter(WORKER_TOKENS.values())),
        command=command,
        lanes=lanes,
        seconds=options.seconds,
        watched={"nodes": pids},
    )
    return _told(Row.of(name, lanes, generate(job)))


async def _wake(cluster: LocalCluster) -> Row:
    async with RecordingClient(cluster.urls) as client:
        seen = await wakes(
            client,
            rounds=WAKE_ROUNDS,
            producer=PRODUCER_TOKEN,
            workers=list(WORKER_TOKENS.values()),
            command=f"bench-wake-{time.time_ns()}",
        )
    return _told(
        Row(
            kind="wake",
            lanes=1,
            per_s=round(WAKE_ROUNDS / seen.seconds, 1),
            latency_ms={name: Percentiles.of(took) for name, took in seen.latency_ms.items()},
            failed=seen.failed,
        )
    )


def _told(row: Row) -> Row:
    print(f"  {row.line()}", file=sys.stderr, flush=True)
    return row


async def _drain(cluster: LocalCluster, command: str) -> None:
    """Empty the queues after a create-only level, so that all levels start alike."""
    urls, token = cluster.urls, next(iter(WORKER_TOKENS.values()))
    claim = {"commands": [command], "count": 100, "leaseSeconds": 120}
    async with RecordingClient(urls) as client:

        async def lane(node: str) -> None:
            while True:
                got = await client.call("POST", node, "/tasks/claim/batch", token, claim)
                if not got.body or "tasks" not in got.body:
                    return
                results = [
                    {
                        "taskId": task["id"],
                        "status": "COMPLETED",
                        "result": {},
                        "leaseToken": task["leaseToken"],
                    }
                    for task in got.body["tasks"]
                ]
                await client.call("POST", node, "/tasks/batch/results", token, {"results": results})

        await asyncio.gather(*(lane(node) for node in urls))
        left = await client.depth(next(iter(urls)), ADMIN_TOKEN, command)
    if any(left.values()):
        raise RuntimeError(f"{command} could not be drained: {left}")


async def _idle(cluster: LocalCluster) -> dict[str, float]:
    """Return each node's share of one core without any requests, in percent."""
    before = {node: cpu_seconds(cluster.pid(node)) for node in cluster.nodes}
    await asyncio.sleep(IDLE_S)
    return {
        node: round(100 * (cpu_seconds(cluster.pid(node)) - was) / IDLE_S, 1)
        for node, was in before.items()
    }


def _rss(cluster: LocalCluster) -> dict[str, float]:
    return {node: round(rss_mib(cluster.pid(node)), 1) for node in cluster.nodes}


async def _repair(cluster: LocalCluster, kills: int) -> dict[str, Any]:
    """Kill leaders one after another under load; return the time to the next write for each."""
    seconds: list[float] = []
    async with Load(
        cluster.urls,
        producer_token=PRODUCER_TOKEN,
        worker_tokens=workers(WORKER_TOKENS, 12),
        command=f"bench-repair-{time.time_ns()}",
        cycles_per_s=200.0,
    ) as load:
        for kill in range(kills):
            shard = kill % cluster.shards
            seconds.append(await outlived(load, cluster, shard, within_s=20))
        await load.drain(within_s=30)
        verdict = audit(load.calls, await load.final_tasks())
    if not verdict.clean:
        print(verdict, file=sys.stderr)
    return {
        "kills": kills,
        "cyclesPerSecond": 200,
        "seconds": [round(value, 3) for value in seconds],
        "summary": msgspec.to_builtins(Percentiles.of(seconds)),
        "failed": len(verdict.failed),
        "lost": len(verdict.lost),
        "finishedTwice": len(verdict.finished_twice),
        "clean": verdict.clean,
    }


if __name__ == "__main__":
    sys.exit(main())
