"""Leases: how soon a worker hears of a cancelled task, and what it costs to keep many leases.

    python -m bench.leases [--only cancel keep] [--rounds 100] [--leases 1000] [--lease 60]

Three nodes with four shards. `cancel` is from sending a cancel to one node until a batch of
heartbeats that waits at another one is answered. `keep` is the CPU of all nodes while a worker
keeps many leases, one request each third of a lease, beyond that of the same nodes without it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.machine import describe, scratch
from bench.processes import cpu_s
from tests.harness.client import ClientAnswer, RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS

SHARDS = 4
_WORKER = WORKER_TOKENS["worker-0"]
_SETTLE_S = 0.03  # Long enough that the heartbeats wait.
_EARLY_S = 1  # A beat's wait ends before the next beat.


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was measured."""
    kinds = {"cancel": _cancel, "keep": _keep}
    parser = argparse.ArgumentParser(prog="python -m bench.leases", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=kinds, default=list(kinds))
    parser.add_argument("--rounds", type=int, default=100, help="of cancel")
    parser.add_argument("--leases", type=int, default=1000, help="of keep")
    parser.add_argument("--lease", type=int, default=60, help="how long each is, seconds")
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    print(" ".join(["python -m bench.leases", *sys.argv[1:]]))
    for kind in options.only:
        with scratch(options.directory) as directory:
            if kind == options.only[0]:
                print(describe(directory))
            print(f"{kind:6}", asyncio.run(kinds[kind](options, directory)), flush=True)
    return 0


async def _cancel(options: argparse.Namespace, directory: Path) -> str:
    async with _running(directory) as (_, client):
        nodes = list(client.urls)
        held = await _leased(client, nodes, options.rounds)
        heard: list[float] = []
        for n in range(options.rounds):
            at, by = nodes[n % len(nodes)], nodes[(n + 1) % len(nodes)]
            body = {"leases": [{**each, "watchOnly": True} for each in held], "waitSeconds": 20}
            waiting = asyncio.create_task(_beats(client, at, body))
            await asyncio.sleep(_SETTLE_S)
            sent = time.perf_counter()
            path = f"/tasks/{held.pop()['id']}/cancel"
            assert (await client.call("POST", by, path, PRODUCER_TOKEN, {})).status == 200
            heard_at, answer = await waiting
            assert answer.body["leases"][-1]["code"] == "lease-lost", answer
            heard.append(1000 * (heard_at - sent))
        heard.sort()
        p50, p99 = statistics.median(heard), heard[int(0.99 * len(heard))]
        return f"until the worker knows, {len(heard)} cancels: {p50:.1f} / {p99:.1f} ms"


async def _keep(options: argparse.Namespace, directory: Path) -> str:
    async with _running(directory) as (cluster, client):
        nodes = list(client.urls)
        held = await _leased(client, nodes, options.leases)
        beat_s = options.lease / 3
        await asyncio.sleep(5)
        before, begun = cpu_s(cluster), time.perf_counter()
        await asyncio.sleep(beat_s)
        idle = (cpu_s(cluster) - before) / (time.perf_counter() - begun)
        body = {
            "leases": [{**each, "extendSeconds": options.lease} for each in held],
            "waitSeconds": min(20, int(beat_s) - _EARLY_S),
        }
        before, begun = cpu_s(cluster), time.perf_counter()
        for n in range(3):
            _, answer = await _beats(client, nodes[n], body)
            assert not any("code" in each for each in answer.body["leases"]), answer
            await asyncio.sleep(begun + (n + 1) * beat_s - time.perf_counter())
        busy = (cpu_s(cluster) - before) / (time.perf_counter() - begun)
        return (
            f"{options.leases} leases of {options.lease} s: {1000 * (busy - idle):.2f} ms of CPU a "
            f"second over all nodes, which use {1000 * idle:.2f} without them"
        )


async def _beats(
    client: RecordingClient, node: str, body: dict[str, object]
) -> tuple[float, ClientAnswer]:
    answer = await client.call("POST", node, "/tasks/batch/heartbeats", _WORKER, body)
    assert answer.status == 200, answer
    return time.perf_counter(), answer


async def _leased(
    client: RecordingClient, nodes: Sequence[str], count: int
) -> list[dict[str, Any]]:
    """Create and claim so many tasks, on all shards; return the leases as a batch has them."""
    held: list[dict[str, Any]] = []
    made = 0
    while len(held) < count:
        node = nodes[made // 100 % len(nodes)]
        if made < count:
            tasks = [
                {"command": "held", "payload": {}, "idempotencyKey": str(made + n)}
                for n in range(min(100, count - made))
            ]
            made += len(tasks)
            await client.call("POST", node, "/tasks/batch", PRODUCER_TOKEN, {"tasks": tasks})
        wanted = {"commands": ["held"], "count": 100, "leaseSeconds": 600, "waitSeconds": 5}
        claimed = await client.call("POST", node, "/tasks/claim/batch", _WORKER, wanted)
        tasks = claimed.body["tasks"] if claimed.body else []
        held += [{"id": task["id"], "leaseToken": task["leaseToken"]} for task in tasks]
    return held


@asynccontextmanager
async def _running(directory: Path) -> AsyncIterator[tuple[LocalCluster, RecordingClient]]:
    async with (
        LocalCluster(directory, shards=SHARDS) as cluster,
        RecordingClient(cluster.urls) as client,
    ):
        yield cluster, client


if __name__ == "__main__":
    sys.exit(main())
