"""Tags: what a task with tags costs more, and how long a page of a list by tag takes.

    python -m bench.tags [--tasks 20000] [--rounds 5] [--looks 40]

Three nodes, each round on a cluster of its own: creates of tasks without tags and with two, in
turn, and then lists of the tasks that are there. `common` is a page of 50 of a tag that all of them
have, `rare` of one that 20 of them have, `both` of the two with the rare one first, and `turned`
with the common one first.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.machine import describe, scratch
from bench.processes import cpu_s
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN

SHARDS = 4
_BATCH = 100
_LIVES = 150
_RARE = 20
_LISTS = {
    "common": "tag=run:all",
    "rare": "tag=user:7",
    "both": "tag=user:7&tag=run:all",
    "turned": "tag=run:all&tag=user:7",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the cost of a create, and the times of each list."""
    parser = argparse.ArgumentParser(prog="python -m bench.tags", description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000, help="that the lists are among")
    parser.add_argument("--rounds", type=int, default=5, help="of creates")
    parser.add_argument("--looks", type=int, default=40, help="at each list")
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        cpu_us, times_ms = asyncio.run(_measure(options, directory))
    print(" ".join(["python -m bench.tags", *sys.argv[1:]]))
    print(machine)
    more = statistics.median(b - a for a, b in zip(cpu_us["plain"], cpu_us["tagged"], strict=True))
    plain = statistics.median(cpu_us["plain"])
    print(f"a create costs {plain:.0f} us of CPU over all nodes, two tags {more:+.0f} us")
    for name, looks in times_ms.items():
        most = statistics.quantiles(looks, n=20)[-1]
        print(f"{name:8} {statistics.median(looks):6.1f} ms, 95 % within {most:.1f} ms")
    return 0


async def _measure(
    options: argparse.Namespace, directory: Path
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    cpu_us: dict[str, list[float]] = {"plain": [], "tagged": []}
    async with (
        LocalCluster(directory, shards=SHARDS) as cluster,
        RecordingClient(cluster.urls) as client,
    ):
        nodes = list(cluster.urls)
        for number in range(options.rounds + 1):
            for kind, tags in (("plain", {}), ("tagged", {"env": "prod", "round": str(number)})):
                cost = await _creates(cluster, client, nodes, tags)
                if number:  # The first round warms up.
                    cpu_us[kind].append(cost)
        await _fill(client, nodes, options.tasks)
        times_ms = {
            name: await _looks(client, nodes, query, options.looks)
            for name, query in _LISTS.items()
        }
    return cpu_us, times_ms


async def _creates(
    cluster: LocalCluster, client: RecordingClient, nodes: Sequence[str], tags: dict[str, str]
) -> float:
    """Return the CPU of a create over all nodes, microseconds, without that of idle nodes."""
    idle_before = cpu_s(cluster)
    await asyncio.sleep(1)
    idle_s = cpu_s(cluster) - idle_before
    before, begun = cpu_s(cluster), time.perf_counter()
    for n in range(_LIVES):
        body: dict[str, object] = {"command": "created", "payload": {"n": n}}
        if tags:
            body["tags"] = tags
        node = nodes[n % len(nodes)]
        answer = await client.call("POST", node, "/tasks", PRODUCER_TOKEN, body)
        assert answer.status == 202, answer
    took_s = time.perf_counter() - begun
    return 1e6 * (cpu_s(cluster) - before - idle_s * took_s) / _LIVES


async def _fill(client: RecordingClient, nodes: Sequence[str], count: int) -> None:
    """Create the tasks that lists are made of; the rare ones are spread among them."""
    every = max(1, count // _RARE)
    for start in range(0, count, _BATCH):
        tasks = [
            {
                "command": f"listed.{n % 10}",
                "payload": {"n": n},
                "tags": {"run": "all", **({"user": "7"} if n % every == 0 else {})},
            }
            for n in range(start, min(start + _BATCH, count))
        ]
        node = nodes[start // _BATCH % len(nodes)]
        answer = await client.call("POST", node, "/tasks/batch", PRODUCER_TOKEN, {"tasks": tasks})
        assert answer.status == 200, answer


async def _looks(
    client: RecordingClient, nodes: Sequence[str], query: str, count: int
) -> list[float]:
    """Return how long each of the first pages took, milliseconds."""
    times_ms = []
    for n in range(count):
        begun = time.perf_counter()
        path = f"/admin/tasks?{query}&limit=50"
        answer = await client.call("GET", nodes[n % len(nodes)], path, ADMIN_TOKEN)
        times_ms.append(1000 * (time.perf_counter() - begun))
        assert answer.status == 200, answer
    return times_ms


if __name__ == "__main__":
    sys.exit(main())
