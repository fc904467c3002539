"""Follow-ups: what a result costs more when it makes a task, and how soon a worker has that task.

    python -m bench.follow_ups [--rounds 5] [--results 200]

One client at a time ends tasks on three nodes with four shards, without follow-ups, with one on the
ended task's shard, and with one whose key belongs on another shard. The kinds take turns within
each round. CPU is that of all nodes, for a result alone; the wait is from the result's answer until
a worker, which waits on another node, has the follow-up.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import describe, scratch
from bench.processes import cpu_s
from codeq_cluster.core.sharding import shard_of_key
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS

SHARDS = 4
KINDS = ("none", "here", "elsewhere")
_WORKER = WORKER_TOKENS["worker-0"]
_WAITS_S = 20
_SETTLE_S = 0.02


@dataclass(slots=True)
class Seen:
    """One kind's measurements: CPU of a result by round, and waits and answers of every one, ms."""

    cpu_ms: list[float] = field(default_factory=list)
    answer_ms: list[float] = field(default_factory=list)
    wait_ms: list[float] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.follow_ups", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=int, default=200, help="of each kind and round")
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        seen = asyncio.run(_measure(options, directory))
    print(" ".join(["python -m bench.follow_ups", *sys.argv[1:]]))
    print(machine)
    base = statistics.median(seen["none"].cpu_ms)
    for kind in KINDS:
        each = seen[kind]
        cpu_ms = statistics.median(each.cpu_ms)
        cost = f"CPU {cpu_ms:.2f} ms ({cpu_ms / base:.2f} x)"
        line = f"{kind:10} {cost}, answer {spread(each.answer_ms)}"
        print(f"{line}, follow-up {spread(each.wait_ms)}" if each.wait_ms else line)
    return 0


async def _measure(options: argparse.Namespace, directory: Path) -> dict[str, Seen]:
    seen = {kind: Seen() for kind in KINDS}
    async with (
        LocalCluster(directory, shards=SHARDS) as cluster,
        RecordingClient(cluster.urls) as client,
    ):
        nodes = list(cluster.urls)
        for number in range(options.rounds + 1):
            for kind in KINDS:
                tasks = await _leased(client, nodes, options.results)
                idle_ms = await _idle_ms(cluster)
                before, begun = _cpu_ms(cluster), time.perf_counter()
                answers = [
                    await _end(client, nodes[n % len(nodes)], task, kind, f"{number}-{n}")
                    for n, task in enumerate(tasks)
                ]
                took_ms = 1000 * (time.perf_counter() - begun)
                spent = _cpu_ms(cluster) - before - idle_ms * took_ms
                waits = await _waits(client, nodes, kind, f"w{number}")
                if number:  # The first round warms up.
                    seen[kind].cpu_ms.append(spent / len(tasks))
                    seen[kind].answer_ms += answers
                    seen[kind].wait_ms += waits
    return seen


async def _leased(
    client: RecordingClient, nodes: Sequence[str], count: int
) -> list[dict[str, object]]:
    for n in range(count):
        await client.create(nodes[n % len(nodes)], PRODUCER_TOKEN, "ended")
    return [
        (await client.claim(nodes[n % len(nodes)], _WORKER, ["ended"], leaseSeconds=600)).body
        for n in range(count)
    ]


async def _end(
    client: RecordingClient, node: str, task: dict[str, object], kind: str, name: str
) -> float:
    """End a task; return the milliseconds until the answer."""
    body: dict[str, object] = {"status": "COMPLETED", "result": {"ok": True}}
    if kind != "none":
        body["next"] = [_follow_up(task, kind, name)]
    sent = time.perf_counter()
    answer = await client.call("POST", node, f"/tasks/{task['id']}/result", _WORKER, body)
    assert answer.status == 200, answer
    return 1000 * (time.perf_counter() - sent)


def _follow_up(task: dict[str, object], kind: str, name: str) -> dict[str, object]:
    new: dict[str, object] = {"command": f"after-{kind}", "payload": {"n": name}}
    if kind == "elsewhere":
        keys = (f"{name}/{n}" for n in range(1000))
        new["idempotencyKey"] = next(
            key for key in keys if shard_of_key("", key, SHARDS) != task["shard"]
        )
    return new


async def _waits(
    client: RecordingClient, nodes: Sequence[str], kind: str, name: str, *, count: int = 50
) -> list[float]:
    """Return how long waiting workers wait for follow-ups after their parents' ends."""
    if kind == "none":
        return []
    command = f"after-{kind}"
    while (await client.claim(nodes[0], _WORKER, [command], leaseSeconds=600)).body:
        pass  # Those of the measurement above.
    waits = []
    for n, task in enumerate(await _leased(client, nodes, count)):
        at, elsewhere = nodes[n % len(nodes)], nodes[(n + 1) % len(nodes)]
        claiming = asyncio.create_task(
            client.claim(elsewhere, _WORKER, [command], leaseSeconds=600, waitSeconds=_WAITS_S)
        )
        await asyncio.sleep(_SETTLE_S)
        await _end(client, at, task, kind, f"{name}-{n}")
        ended = time.perf_counter()
        assert (await claiming).body
        waits.append(1000 * (time.perf_counter() - ended))
    return waits


async def _idle_ms(cluster: LocalCluster) -> float:
    """Return the CPU of the idle nodes, ms a ms."""
    before = _cpu_ms(cluster)
    await asyncio.sleep(1)
    return (_cpu_ms(cluster) - before) / 1000


def _cpu_ms(cluster: LocalCluster) -> float:
    return 1000 * cpu_s(cluster)


def spread(values: Sequence[float]) -> str:
    """Return the median and the 99th percentile of milliseconds as text."""
    cuts = statistics.quantiles(values, n=100)
    return f"p50 {cuts[49]:.1f} p99 {cuts[98]:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
