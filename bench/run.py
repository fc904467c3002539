"""Run: measure a cluster of real processes on this machine, beside servers that do nothing."""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.driver import Measured, Scenario
from bench.machine import cpu_seconds, describe, rss_mib
from bench.report import Row, render
from bench.wrk import wrk_rows
from codeq_cluster.testing.accounting import Percentiles, audit
from codeq_cluster.testing.client import RecordingClient
from codeq_cluster.testing.cluster import (
    ADMIN_TOKEN,
    PRODUCER_TOKEN,
    WORKER_TOKENS,
    LocalCluster,
    free_ports,
    until,
)
from codeq_cluster.testing.load import Load, outlived, workers

_ROOT = Path(__file__).parent.parent
RESULTS = _ROOT / "bench" / "results"
LEVELS = (1, 32, 128)
BATCH_LANES = 4
WAKE_ROUNDS = 200
KILLS = 20
IDLE_S = 10.0
FLOOR_SERVERS = 3
PARTS = ("floor", "create", "cycle", "batch", "wake", "wrk", "idle", "repair")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested parts, print a table, keep the figures in `bench/results`."""
    options = _options(arguments)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    try:
        report = asyncio.run(_measure(options, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
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
        rows += await _floor(options)
    settings = {"durability": options.durability}
    async with LocalCluster(
        directory, nodes=options.nodes, shards=options.shards, settings=settings
    ) as cluster:
        rss_at_start = _rss(cluster)
        # Before any load: afterwards compactions would count as idle work.
        idle = await _idle(cluster) if "idle" in options.only else None
        urls = list(cluster.urls.values())
        for kind in ("create", "cycle"):
            if kind in options.only:
                for lanes in options.levels:
                    rows += await _level(kind, urls, lanes, options, cluster)
        if "batch" in options.only:
            for lanes in sorted({1, BATCH_LANES}):
                rows += await _level("batch", urls, lanes, options, cluster)
        if "wake" in options.only:
            rows += await _wake(urls)
        if "wrk" in options.only:
            rows += await asyncio.to_thread(
                wrk_rows,
                urls,
                seconds=options.seconds,
                producer_token=PRODUCER_TOKEN,
                worker_token=next(iter(WORKER_TOKENS.values())),
            )
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


async def _floor(options: argparse.Namespace) -> list[Row]:
    ports = free_ports(FLOOR_SERVERS)
    servers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.floor", str(port), cwd=_ROOT
        )
        for port in ports
    ]
    try:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        async with RecordingClient({url: url for url in urls}) as client:
            for url in urls:

                async def answers(url: str = url) -> bool:
                    return (await client.call("GET", url, "/", "")).status == 200

                await until(answers, within_s=10, what=f"the do-nothing server {url}")
        rows: list[Row] = []
        for lanes in options.levels:
            rows += await _level("floor", urls, lanes, options, None)
        return rows
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            await server.wait()


async def _level(
    kind: str,
    urls: list[str],
    lanes: int,
    options: argparse.Namespace,
    cluster: LocalCluster | None,
) -> list[Row]:
    scenario = _scenario(kind, urls, lanes=lanes, seconds=options.seconds)
    pids = [cluster.pid(node) for node in cluster.nodes] if cluster else []
    before = [cpu_seconds(pid) for pid in pids]
    begun_s = time.monotonic()
    measured, driver_cpu = await drive(scenario)
    elapsed_s = time.monotonic() - begun_s
    nodes_cpu = sum(cpu_seconds(pid) - was for pid, was in zip(pids, before, strict=True))
    if kind == "create" and cluster is not None:
        await _drain(cluster, scenario.command)
    row = Row.of(kind, lanes, measured)
    row.nodes_cpu_percent = round(100 * nodes_cpu / elapsed_s)
    row.driver_cpu_percent = round(100 * driver_cpu / elapsed_s)
    print(f"  {row.line()}", file=sys.stderr, flush=True)
    return [row]


async def _wake(urls: list[str]) -> list[Row]:
    scenario = _scenario("wake", urls, rounds=WAKE_ROUNDS)
    measured, _ = await drive(scenario)
    row = Row.of("wake", 1, measured)
    print(f"  {row.line()}", file=sys.stderr, flush=True)
    return [row]


def _scenario(kind: str, urls: list[str], **fields: Any) -> Scenario:
    return Scenario(
        kind=kind,
        urls=urls,
        producer_token=PRODUCER_TOKEN,
        worker_tokens=list(WORKER_TOKENS.values()),
        command=f"bench-{kind}-{time.time_ns()}",
        **fields,
    )


async def drive(scenario: Scenario) -> tuple[Measured, float]:
    """Run one scenario in its own process; return its measurements and its CPU seconds."""
    driver = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.driver",
        msgspec.json.encode(scenario).decode(),
        stdout=asyncio.subprocess.PIPE,
        cwd=_ROOT,
    )
    used = _children_cpu()
    out, _ = await driver.communicate()
    if driver.returncode:
        raise RuntimeError(f"the driver of {scenario.kind} ended with {driver.returncode}")
    return msgspec.json.decode(out, type=Measured), _children_cpu() - used


def _children_cpu() -> float:
    """Return the CPU seconds of ended children; nodes are not among them, since they end last."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def _drain(cluster: LocalCluster, command: str) -> None:
    """Take the tasks of a create-only level out of the queues, so that all levels start alike."""
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
    """Kill leaders one after the other under load; return the time to the next write for each."""
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
