"""Idle: what waits for a far instant costs a node: schedules, and parked tasks.

    python -m bench.idle [--schedules 100000] [--parked 100000]

Three nodes with four shards. The CPU of a node without anything, with the schedules, and with the
parked tasks beside them; and the bytes of a node's disk that each parked task takes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from bench.filled import data_bytes
from bench.machine import describe, scratch
from bench.processes import cpu_s
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS

SHARDS = 4
_WORKER = WORKER_TOKENS["worker-0"]
_AT_ONCE = 64
_BATCH = 100
_IDLE_S = 10.0
_FAR_S = 300 * 86_400


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.idle", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--parked", type=int, default=100_000)
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    print(" ".join(["python -m bench.idle", *sys.argv[1:]]))
    with scratch(options.directory) as directory:
        print(describe(directory))
        asyncio.run(_measure(options, directory))
    return 0


async def _measure(options: argparse.Namespace, directory: Path) -> None:
    async with (
        LocalCluster(directory, shards=SHARDS) as cluster,
        RecordingClient(cluster.urls) as client,
    ):
        nodes = list(cluster.urls)
        print(f"a node's CPU, idle: {await _percent(cluster):.2f} % of a core", flush=True)

        async def schedule(n: int) -> None:
            body = {"cron": "0 0 1 1 *", "task": {"command": "idle", "payload": {"n": n}}}
            path = f"/admin/schedules/s{n}"
            await client.done("PUT", nodes[n % len(nodes)], path, ADMIN_TOKEN, body)

        await many(schedule, options.schedules)
        among = await _percent(cluster)
        print(f"with {options.schedules:,} schedules: {among:.2f} %", flush=True)

        async def park(n: int) -> None:
            await _parked(client, nodes[n % len(nodes)], f"parked-{n % _AT_ONCE}")

        before = _bytes(cluster)
        begun = time.perf_counter()
        await many(park, options.parked // _BATCH)
        took_s = time.perf_counter() - begun
        beside = await _percent(cluster)
        each = (_bytes(cluster) - before) / len(nodes) / options.parked
        print(
            f"with {options.parked:,} parked tasks too: {beside:.2f} %, {each:.0f} bytes each "
            f"on a node's disk; made and parked in {took_s:.0f} s"
        )


async def many(work: Callable[[int], Awaitable[None]], number: int) -> None:
    """Do so many pieces of work, some at once."""
    numbers = iter(range(number))

    async def some() -> None:
        for n in numbers:
            await work(n)

    await asyncio.gather(*(some() for _ in range(_AT_ONCE)))


async def _parked(client: RecordingClient, node: str, command: str) -> None:
    """Park a batch of new tasks; others may take them from the queue meanwhile."""
    tasks = [{"command": command, "payload": {"n": n}} for n in range(_BATCH)]
    await client.done("POST", node, "/tasks/batch", PRODUCER_TOKEN, {"tasks": tasks})
    left = _BATCH
    while left:
        asked = {"commands": [command], "count": left, "leaseSeconds": 600, "waitSeconds": 1}
        answer = await client.done("POST", node, "/tasks/claim/batch", _WORKER, asked)
        for task in answer["tasks"] if answer else ():
            wait = {"step": "rest", "forSeconds": _FAR_S, "leaseToken": task["leaseToken"]}
            await client.done("POST", node, f"/tasks/{task['id']}/park", _WORKER, wait)
            left -= 1


async def _percent(cluster: LocalCluster) -> float:
    """Return the CPU of a node in percent of a core, the mean of the idle nodes."""
    await asyncio.sleep(_IDLE_S)
    before, begun = cpu_s(cluster), time.perf_counter()
    await asyncio.sleep(_IDLE_S)
    spent_s = cpu_s(cluster) - before
    return 100 * spent_s / (time.perf_counter() - begun) / len(cluster.urls)


def _bytes(cluster: LocalCluster) -> int:
    return sum(data_bytes(node) for node in cluster.nodes.values())


if __name__ == "__main__":
    sys.exit(main())
