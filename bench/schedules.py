"""Schedules: how soon a run starts, and how a crowd of them fires.

    python -m bench.schedules [--only start crowd] [--crowd 10000]

Three nodes with four shards. `start` is from an instant until a worker, which waits on some node,
has the run's task. `crowd` are schedules that fire at one instant, each with a task: until the last
of these is created, and how long the creates of another tenant take meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from bench.idle import many
from bench.machine import describe, scratch
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS

SHARDS = 4
_WORKER = WORKER_TOKENS["worker-0"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was measured."""
    kinds = {"start": _start, "crowd": _crowd}
    parser = argparse.ArgumentParser(prog="python -m bench.schedules", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=kinds, default=list(kinds))
    parser.add_argument("--runs", type=int, default=30, help="of start")
    parser.add_argument("--crowd", type=int, default=10_000)
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    print(" ".join(["python -m bench.schedules", *sys.argv[1:]]))
    for kind in options.only:
        with scratch(options.directory) as directory:
            if kind == options.only[0]:
                print(describe(directory))
            print(f"{kind:6}", asyncio.run(kinds[kind](options, directory)), flush=True)
    return 0


async def _start(options: argparse.Namespace, directory: Path) -> str:
    async with _running(directory) as (cluster, client):
        nodes = list(cluster.urls)
        await _put(client, nodes[0], "tick", {"every": "1s", "overlap": "allow"}, "tick")
        waits: list[float] = []
        for n in range(options.runs + 1):
            node = nodes[n % len(nodes)]
            got = await client.claim(node, _WORKER, ["tick"], leaseSeconds=60, waitSeconds=20)
            instant = datetime.fromisoformat(str(got.body["scheduledFor"]))
            if n:  # Another run may be there when the first claim comes.
                waits.append(1000 * (time.time() - instant.timestamp()))
        waits.sort()
        p50, p99 = statistics.median(waits), waits[int(0.99 * len(waits))]
        return f"until a waiting worker has the run, {len(waits)} runs: {p50:.1f} / {p99:.1f} ms"


async def _crowd(options: argparse.Namespace, directory: Path) -> str:
    async with _running(directory) as (cluster, client):
        nodes = list(cluster.urls)
        begun = time.time()
        # Enough time to make them all; what is left of it shows how creates are without them.
        instant = datetime.now(UTC).replace(microsecond=0) + timedelta(
            seconds=30 + options.crowd / 250
        )
        timing = {"cron": f"{instant.second} {instant.minute} {instant.hour} * * *"}
        await many(
            lambda n: _put(client, nodes[n % len(nodes)], f"s{n}", timing, f"crowd-{n % 8}"),
            options.crowd,
        )
        made_s = time.time() - begun
        before = await _creates(client, nodes, until_s=instant.timestamp() - 1)
        during = await _creates(client, nodes, until_s=instant.timestamp() + 10)
        last_s = 0.0
        runs = 0
        for n in range(8):
            async for task in _tasks(client, nodes[0], f"crowd-{n}"):
                runs += 1
                created = datetime.fromisoformat(str(task["createdAt"])).timestamp()
                last_s = max(last_s, created - instant.timestamp())
        return (
            f"{options.crowd} made in {made_s:.0f} s; {runs} runs, the last {last_s:.2f} s after "
            f"the instant; creates' p99 {_p99(during):.1f} ms, before {_p99(before):.1f} ms"
        )


@asynccontextmanager
async def _running(directory: Path) -> AsyncIterator[tuple[LocalCluster, RecordingClient]]:
    async with (
        LocalCluster(directory, shards=SHARDS) as cluster,
        RecordingClient(cluster.urls) as client,
    ):
        yield cluster, client


async def _put(
    client: RecordingClient, node: str, name: str, plan: dict[str, object], command: str
) -> None:
    body = {**plan, "task": {"command": command, "payload": {"n": name}}}
    answer = await client.call("PUT", node, f"/admin/schedules/{name}", ADMIN_TOKEN, body)
    assert answer.status in (200, 201), answer


async def _creates(client: RecordingClient, nodes: Sequence[str], *, until_s: float) -> list[float]:
    """Create tasks of another queue one by one; return what each took, ms."""
    took: list[float] = []
    for n in count():
        if time.time() > until_s:
            break
        sent = time.perf_counter()
        await client.create(nodes[n % len(nodes)], PRODUCER_TOKEN, "others")
        took.append(1000 * (time.perf_counter() - sent))
    return took


async def _tasks(
    client: RecordingClient, node: str, command: str
) -> AsyncIterator[dict[str, object]]:
    cursor = ""
    while True:
        path = f"/admin/tasks?command={command}&limit=500&cursor={cursor}"
        page = await client.call("GET", node, path, ADMIN_TOKEN, None)
        for task in page.body["tasks"]:
            yield task
        cursor = page.body.get("cursor", "")
        if not cursor:
            return


def _p99(took: list[float]) -> float:
    return sorted(took)[int(0.99 * len(took))]


if __name__ == "__main__":
    sys.exit(main())
