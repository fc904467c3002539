"""Many queues: the cost of a claim of any command with ten queues and with ten thousand.

    python -m bench.many_queues [--queues 10 1000 10000] [--tasks 100000] [--claims 2000]

One shard's engine on a real RocksDB, without network. The number of tasks is the same for every
number of queues, and the queues get them in turn. A claim looks for the shard's first task, then
makes the decision and its entry, as a request does. At the end everything is closed and reopened,
and one more claim is made. The CPU time is that of the event loop's thread for a claim and its
result. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from bench.machine import describe
from bench.queue_length import BATCH, PAYLOAD, Shard
from codeq_cluster.core.new_task import Create

TENANT = "bench"


async def _fill(shard: Shard, *, queues: int, tasks: int) -> None:
    for start in range(0, tasks, BATCH):
        await shard.engine.operate(
            [
                Create(
                    id=f"t{number:08}",
                    tenant=TENANT,
                    command=f"command-{number % queues:05}",
                    payload=PAYLOAD,
                )
                for number in range(start, min(start + BATCH, tasks))
            ]
        )


async def _claim(shard: Shard, request: str) -> float:
    """Look for work and claim a task of any queue; return the seconds it took."""
    started = time.perf_counter()
    head = shard.engine.head(TENANT, ())
    looked_s = time.perf_counter() - started
    assert head is not None
    return looked_s + await shard.cycle(request, commands=())


async def _measure(queues: int, *, tasks: int, claims: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="codeq-bench-") as directory:
        path = Path(directory) / "shard"
        shard = Shard(path)
        await _fill(shard, queues=queues, tasks=tasks)
        first_us = await _claim(shard, "first") * 1e6
        begun_s = time.thread_time()
        times_us = sorted([await _claim(shard, f"c{n}") * 1e6 for n in range(claims)])
        cpu_us = (time.thread_time() - begun_s) * 1e6 / claims
        shard.close()
        started = time.perf_counter()
        shard = Shard(path)
        opened_s = time.perf_counter() - started
        again_us = await _claim(shard, "again") * 1e6
        shard.close()
    return {
        "first_us": round(first_us),
        "p50_us": round(times_us[claims // 2], 1),
        "p99_us": round(times_us[-claims // 100], 1),
        "max_us": round(times_us[-1]),
        "cycle_cpu_us": round(cpu_us, 1),
        "reopened_s": round(opened_s, 3),
        "first_after_it_us": round(again_us),
    }


async def _measure_all(counts: list[int], *, tasks: int, claims: int) -> dict[str, object]:
    found = {count: await _measure(count, tasks=tasks, claims=claims) for count in counts}
    p50s = [float(str(figures["p50_us"])) for figures in found.values()]
    return {
        "ready_tasks": tasks,
        "claim_of_any_command_by_queues": found,
        "ratio_p50": round(p50s[-1] / p50s[0], 2),
        "machine": describe(Path(tempfile.gettempdir())),
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_queues", description=__doc__)
    parser.add_argument("--queues", type=int, nargs="+", default=[10, 1000, 10_000])
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--claims", type=int, default=2000)
    arguments = parser.parse_args()
    measuring = _measure_all(arguments.queues, tasks=arguments.tasks, claims=arguments.claims)
    print(json.dumps(asyncio.run(measuring), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
