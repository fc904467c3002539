"""Steps: what a record costs beside a heartbeat, and how soon a signal wakes a parked task.

    python -m bench.steps [--rounds 5] [--count 200]

One client at a time, on three nodes with four shards. Heartbeats and records of leased tasks take
turns, each on another node than the one before. Then tasks are parked for a signal, and the wait is
from the signal's answer until a worker, which waits on another node, has the task.
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

from bench.follow_ups import SHARDS, spread
from bench.machine import describe, scratch
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS

_WORKER = WORKER_TOKENS["worker-0"]
_SETTLE_S = 0.02


@dataclass(slots=True)
class Seen:
    """Milliseconds of each answer, and from a signal to the claim."""

    heartbeat: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    signal: list[float] = field(default_factory=list)
    woken: list[float] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.steps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200, help="of each kind and round")
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        seen = asyncio.run(_measure(options, directory))
    print(" ".join(["python -m bench.steps", *sys.argv[1:]]))
    print(machine)
    for name in ("heartbeat", "step", "signal", "woken"):
        print(f"{name:10} {spread(getattr(seen, name))}")
    ratio = statistics.median(seen.step) / statistics.median(seen.heartbeat)
    print(f"a step's record takes {ratio:.2f} x a heartbeat's, p50")
    return 0


async def _measure(options: argparse.Namespace, directory: Path) -> Seen:
    async with (
        LocalCluster(directory, shards=SHARDS) as cluster,
        RecordingClient(cluster.urls) as client,
    ):
        nodes = list(cluster.urls)
        for number in range(options.rounds + 1):
            if number < 2:  # The first round warms up.
                seen = Seen()
            for n in range(options.count):
                task = await _leased(client, nodes[n % 3])
                asked = {"extendSeconds": 600, "leaseToken": task["leaseToken"]}
                step = {"name": "charge", "value": {"n": n}, **asked}
                path = f"/tasks/{task['id']}"
                for kind, body in (("heartbeat", asked), ("steps", step)):
                    took = await _timed(client, nodes[(n + 1) % 3], f"{path}/{kind}", _WORKER, body)
                    getattr(seen, kind.removesuffix("s")).append(took)
                wait = {"step": "w", "signal": "go", "forSeconds": 600, **asked}
                await client.done("POST", nodes[n % 3], f"{path}/park", _WORKER, wait)
                claiming = asyncio.create_task(
                    client.claim(nodes[(n + 2) % 3], _WORKER, ["stepped"], waitSeconds=20)
                )
                await asyncio.sleep(_SETTLE_S)
                seen.signal.append(
                    await _timed(client, nodes[n % 3], f"{path}/signals/go", PRODUCER_TOKEN, {})
                )
                begun = time.perf_counter()
                woken = (await claiming).body
                seen.woken.append(1000 * max(0.0, time.perf_counter() - begun))
                done = {"status": "COMPLETED", "result": {}, "leaseToken": woken["leaseToken"]}
                await client.done("POST", nodes[n % 3], f"{path}/result", _WORKER, done)
    return seen


async def _leased(client: RecordingClient, node: str) -> dict[str, object]:
    await client.create(node, PRODUCER_TOKEN, "stepped")
    return (await client.claim(node, _WORKER, ["stepped"], leaseSeconds=600)).body


async def _timed(
    client: RecordingClient, node: str, path: str, token: str, body: dict[str, object]
) -> float:
    """Send a request; return the milliseconds until the answer."""
    sent = time.perf_counter()
    await client.done("POST", node, path, token, body)
    return 1000 * (time.perf_counter() - sent)


if __name__ == "__main__":
    sys.exit(main())
