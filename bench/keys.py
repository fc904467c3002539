"""Keys: what tasks cost more that go one after the other for each key, and how fast they go.

    python -m bench.keys [--only leader|cluster] [--rounds 5] [--tasks 2000] [--keys 1000]
        [--workers 128]

`leader` is one shard's engine on a node's storage, without network and log: the CPU of a task's
create, claim and result, whose key nothing else waits for.

`cluster` is three nodes with four shards. `life` is the CPU of all nodes for a task's create, claim
and result, one at a time. `cycles` are claims and results of many workers at once on tasks that
are there.

One queue has `flow.perKey.maxRunning` 1, and one has not: they take turns, and a figure is the
median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from bench.machine import describe, scratch
from bench.processes import cpu_s
from bench.queue_length import PAYLOAD, Shard
from codeq_cluster.core.lane import FlowRule, PerKey, SetFlow
from codeq_cluster.core.new_task import Create, CreateKeyed
from codeq_cluster.core.operations import Claim, Operation, Submit
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS

SHARDS = 4
QUEUES = ("plain", "keyed")
_WORKER = WORKER_TOKENS["worker-0"]
STEPS = "create", "claim", "result"
_LIVES = 150
_LEADER_LIVES = 500
_CREATES_AT_ONCE = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both figures of both queues."""
    parser = argparse.ArgumentParser(prog="python -m bench.keys", description=__doc__)
    parser.add_argument("--only", choices=("leader", "cluster"), default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=2000, help="of each queue and round of cycles")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=128)
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    print(" ".join(["python -m bench.keys", *sys.argv[1:]]))
    with scratch(options.directory) as directory:
        print(describe(directory))
        if options.only != "cluster":
            _print_leader(asyncio.run(_measure_leader(options.rounds, directory / "leader")))
        if options.only != "leader":
            _print_cluster(*asyncio.run(_measure(options, directory / "cluster")))
    return 0


def _print_leader(cpu_us: dict[str, list[list[float]]]) -> None:
    for queue in QUEUES:
        life = statistics.median(map(sum, cpu_us[queue]))
        steps = map(statistics.median, zip(*cpu_us[queue], strict=True))
        each = ", ".join(f"{step} {us:.0f}" for step, us in zip(STEPS, steps, strict=True))
        print(f"{queue:6} life {life:.0f} us of CPU at one leader: {each}")
    more = statistics.median(
        sum(keyed) - sum(plain)
        for keyed, plain in zip(cpu_us["keyed"], cpu_us["plain"], strict=True)
    )
    print(f"a key costs {more:+.0f} us at the node that leads")


def _print_cluster(cpu_us: dict[str, list[float]], rates: dict[str, list[float]]) -> None:
    for queue in QUEUES:
        life, rate = statistics.median(cpu_us[queue]), statistics.median(rates[queue])
        print(f"{queue:6} life {life:.0f} us of CPU, {rate:.0f} cycles/s")
    more = statistics.median(
        keyed - plain for keyed, plain in zip(cpu_us["keyed"], cpu_us["plain"], strict=True)
    )
    ratio = statistics.median(
        keyed / plain for keyed, plain in zip(rates["keyed"], rates["plain"], strict=True)
    )
    print(f"a key costs {more:+.0f} us over all nodes; cycles {ratio:.2f} x")


async def _measure_leader(rounds: int, path: Path) -> dict[str, list[list[float]]]:
    """Return the CPU of each step by queue and round, microseconds."""
    shard = Shard(path)
    rule = FlowRule(tenant="bench", queue="keyed", seq=1, per_key=PerKey(), shard=0)
    await shard.engine.operate([SetFlow(rule)])
    cpu_us: dict[str, list[list[float]]] = {queue: [] for queue in QUEUES}
    for number in range(rounds + 1):
        spent_us = {queue: [0.0] * len(STEPS) for queue in QUEUES}
        for n in range(_LEADER_LIVES):
            for queue in QUEUES:
                for step, operation in enumerate(_life_of(f"{queue}{number:03}{n:06}", queue, n)):
                    begun = time.process_time()
                    await shard.engine.operate([operation])
                    spent_us[queue][step] += 1e6 * (time.process_time() - begun) / _LEADER_LIVES
        for queue in QUEUES if number else ():  # The first round warms up.
            cpu_us[queue].append(spent_us[queue])
    shard.close()
    return cpu_us


def _life_of(task_id: str, queue: str, key: int) -> tuple[Operation, ...]:
    """Return what makes, claims and ends a task, in the order of `STEPS`."""
    new = Create(id=task_id, tenant="bench", command=queue, payload=PAYLOAD)
    return (
        CreateKeyed(replace(new, key=f"k{key}")) if queue == "keyed" else new,
        Claim(
            request=task_id,
            tenant="bench",
            worker="w",
            commands=(queue,),
            count=1,
            lease_ms=60_000,
        ),
        Submit(
            request=f"{task_id}s",
            id=task_id,
            tenant="bench",
            worker="w",
            status="COMPLETED",
            body="{}",
        ),
    )


async def _measure(
    options: argparse.Namespace, directory: Path
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    cpu_us: dict[str, list[float]] = {queue: [] for queue in QUEUES}
    rates: dict[str, list[float]] = {queue: [] for queue in QUEUES}
    async with (
        LocalCluster(directory, shards=SHARDS) as cluster,
        RecordingClient(cluster.urls) as client,
    ):
        nodes = list(cluster.urls)
        rule = {"flow": {"perKey": {"maxRunning": 1}}}
        answer = await client.call("PUT", nodes[0], "/admin/topics/keyed", ADMIN_TOKEN, rule)
        assert answer.status == 201, answer
        for number in range(options.rounds + 1):
            for queue in QUEUES:
                life = await _life(cluster, client, nodes, queue)
                rate = await _cycles(client, nodes, queue, options)
                if number:  # The first round warms up.
                    cpu_us[queue].append(life)
                    rates[queue].append(rate)
    return cpu_us, rates


async def _life(
    cluster: LocalCluster, client: RecordingClient, nodes: Sequence[str], queue: str
) -> float:
    """Return the CPU of a task's life over all nodes, microseconds, without that of idle nodes."""
    idle_before = cpu_s(cluster)
    await asyncio.sleep(1)
    idle_s = cpu_s(cluster) - idle_before
    before, begun = cpu_s(cluster), time.perf_counter()
    for n in range(_LIVES):
        node = nodes[n % len(nodes)]
        await _create(client, node, queue, n)
        await _claim_and_end(client, node, queue)
    took_s = time.perf_counter() - begun
    return 1e6 * (cpu_s(cluster) - before - idle_s * took_s) / _LIVES


async def _cycles(
    client: RecordingClient, nodes: Sequence[str], queue: str, options: argparse.Namespace
) -> float:
    """Return how many tasks workers claim and end in a second."""
    numbers = iter(range(options.tasks))

    async def create() -> None:
        for n in numbers:
            await _create(client, nodes[n % len(nodes)], queue, n % options.keys)

    await asyncio.gather(*(create() for _ in range(_CREATES_AT_ONCE)))
    left = options.tasks
    begun = time.perf_counter()

    async def work(number: int) -> None:
        nonlocal left
        while left > 0:
            if await _claim_and_end(client, nodes[number % len(nodes)], queue):
                left -= 1

    await asyncio.gather(*(work(number) for number in range(options.workers)))
    return options.tasks / (time.perf_counter() - begun)


async def _create(client: RecordingClient, node: str, queue: str, key: int) -> None:
    body: dict[str, object] = {"command": queue, "payload": {"n": key}}
    if queue == "keyed":
        body["key"] = f"k{key}"
    answer = await client.call("POST", node, "/tasks", PRODUCER_TOKEN, body)
    assert answer.status == 202, answer


async def _claim_and_end(client: RecordingClient, node: str, queue: str) -> bool:
    claimed = await client.claim(node, _WORKER, [queue], leaseSeconds=600, waitSeconds=1)
    if not claimed.body:
        return False
    body = {"status": "COMPLETED", "result": {"ok": True}}
    path = f"/tasks/{claimed.body['id']}/result"
    ended = await client.call("POST", node, path, _WORKER, body)
    assert ended.status == 200, ended
    return True


if __name__ == "__main__":
    sys.exit(main())
