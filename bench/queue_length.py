"""Queue length: the cost of a claim with a thousand ready tasks and with a million.

    python -m bench.queue_length [--tasks 1000000] [--keyed]

With `--keyed` the tasks wait in a queue whose keys go one at a time: first over 1,000 keys, then
over 100,000.

Measures one shard's engine on a node's storage, without network and log: entries stay in memory
until they are spilled into RocksDB. Creates the tasks in batches of 100,
claims and finishes some, closes everything, reopens it and claims once more. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from bench.machine import describe
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.engine.state import EngineLimits, EngineSetup
from codeq_cluster.broker.ports import StateStore
from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.lane import FlowRule, PerKey, SetFlow
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.new_task import Create, CreateKeyed
from codeq_cluster.core.operations import Claim, Submit
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.raft.io_adapters import DiskThread, LoopTimers
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.directory import open_directory
from codeq_cluster.storage.node_storage import NodeStorage
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from tests.fakes.one_node_log import OneNodeLog

PAYLOAD = json.dumps({"text": "x" * 288})  # 300 bytes.
BATCH = 100
CLAIMS = 2000
KEYS = 1_000, 100_000


class _SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class _Deaf:
    def changed(self, change: TaskChange) -> None:
        del change

    def committed(self, *, shard: int, mutations: int, commit_s: float) -> None:
        del shard, mutations, commit_s

    def item_failed(self, loop: Loop) -> None:
        del loop


def engine_on(store: StateStore, *, shard: int = 0, shards: int = 1) -> tuple[Engine, OneNodeLog]:
    """Return an engine of a shard that has no leader yet, and its log."""
    logs: list[OneNodeLog] = []

    def open_log(engine: Engine) -> OneNodeLog:
        logs.append(OneNodeLog(engine, engine))
        return logs[-1]

    setup = EngineSetup(
        node_id="n1",
        shards=shards,
        rules=LifetimeRules(),
        limits=EngineLimits(
            operations_max=20_000,
            bytes_max=64 * 2**20,
            lease_grace_ms=0,
            entry_bytes_max=3 * 2**20,
        ),
        clock=_SystemClock(),
        observer=_Deaf(),
        catalogue=Catalogue([store]),
    )
    engine = Engine(setup, shard=shard, store=store, fraction=random.random, open_log=open_log)
    return engine, logs[-1]


class Shard:
    """An engine that leads its shard on a directory; made on a running loop."""

    def __init__(self, path: Path) -> None:
        settings = StoreSettings(block_cache_bytes=64 * 2**20)
        self._directory = open_directory(path, cluster_id="bench", node_id="n1", shards=1)
        self._database = RocksShard(
            self._directory.shard_path(0), settings=settings, cache=new_cache(settings)
        )
        self._directory.note_made()
        loop = asyncio.get_running_loop()
        self._storage = NodeStorage(
            [self._database],
            self._directory,
            executor=DiskThread(loop),
            syncer=None,
            timers=LoopTimers(loop),
            on_synced=lambda _seconds, _shard: None,
            on_failed=self._failed,
        )
        self._storage.start()
        self.engine, log = engine_on(self._storage.shards[0].state)
        log.lead()

    async def fill(self, first: int, count: int) -> None:
        """Create tasks, with ids counting from `first`."""
        for start in range(first, first + count, BATCH):
            await self.engine.operate(
                [
                    Create(id=f"t{number:08}", tenant="bench", command="work", payload=PAYLOAD)
                    for number in range(start, min(start + BATCH, first + count))
                ]
            )

    async def fill_keys(self, queue: str, count: int, *, keys: int) -> None:
        """Create tasks in turn of so many keys, of which one task each may run."""
        rule = FlowRule(tenant="bench", queue=queue, seq=1, per_key=PerKey(), shard=0)
        await self.engine.operate([SetFlow(rule)])
        for start in range(0, count, BATCH):
            await self.engine.operate(
                [
                    CreateKeyed(
                        Create(
                            id=f"{queue}{number:08}",
                            tenant="bench",
                            command=queue,
                            payload=PAYLOAD,
                            key=f"k{number % keys}",
                        )
                    )
                    for number in range(start, min(start + BATCH, count))
                ]
            )

    async def cycle(self, request: str, *, commands: tuple[str, ...] = ("work",)) -> float:
        """Claim one task and finish it; return the seconds of the claim."""
        started = time.perf_counter()
        [claimed] = await self.engine.operate(
            [
                Claim(
                    request=request,
                    tenant="bench",
                    worker="w",
                    commands=commands,
                    count=1,
                    lease_ms=60_000,
                )
            ]
        )
        took_s = time.perf_counter() - started
        assert isinstance(claimed, Claimed)
        [task] = claimed.tasks
        await self.engine.operate(
            [
                Submit(
                    request=f"{request}s",
                    id=task.id,
                    tenant="bench",
                    worker="w",
                    status="COMPLETED",
                    body="{}",
                )
            ]
        )
        return took_s

    def close(self) -> None:
        """Close the engine and the store."""
        self.engine.stop()
        self._storage.stop()
        self._database.close()
        self._directory.close()

    def _failed(self, _shard: int, error: BaseException) -> None:
        raise RuntimeError("the database failed") from error


async def _claims(shard: Shard, name: str, *, queue: str = "work") -> dict[str, float]:
    times_us = sorted(
        [await shard.cycle(f"{name}{n}", commands=(queue,)) * 1e6 for n in range(CLAIMS)]
    )
    return {"p50_us": round(times_us[CLAIMS // 2], 1), "p99_us": round(times_us[-CLAIMS // 100], 1)}


async def _measure(tasks: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="codeq-bench-") as directory:
        machine = describe(Path(directory))
        path = Path(directory) / "shard"
        shard = Shard(path)
        await shard.fill(0, 1000 + CLAIMS)
        short = await _claims(shard, "short")
        started = time.perf_counter()
        await shard.fill(1000 + CLAIMS, tasks)
        fill_s = time.perf_counter() - started
        long = await _claims(shard, "long")
        rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        shard.close()
        started = time.perf_counter()
        shard = Shard(path)
        first_us = await shard.cycle("again") * 1e6
        reopen_s = time.perf_counter() - started
        shard.close()
    return {
        "ready_tasks": tasks,
        "claim_with_1k_ready": short,
        "claim_with_all_ready": long,
        "ratio_p50": round(long["p50_us"] / short["p50_us"], 2),
        "creates_per_s": round(tasks / fill_s),
        "rss_max_mib": rss_mib,
        "reopen_to_first_claim_s": round(reopen_s, 2),
        "first_claim_us": round(first_us),
        "machine": machine,
    }


async def _measure_keyed(tasks: int) -> dict[str, object]:
    found: dict[str, object] = {"waiting_tasks": tasks}
    p50_us: list[float] = []
    for keys in KEYS:
        with tempfile.TemporaryDirectory(prefix="codeq-bench-") as directory:
            found["machine"] = describe(Path(directory))
            shard = Shard(Path(directory) / "shard")
            await shard.fill_keys("keyed", tasks, keys=keys)
            claims = found[f"claim_over_{keys}_keys"] = await _claims(shard, "c", queue="keyed")
            p50_us.append(claims["p50_us"])
            shard.close()
    found["ratio_p50"] = round(p50_us[1] / p50_us[0], 2)
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.queue_length", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--keyed", action="store_true")
    arguments = parser.parse_args()
    measure = _measure_keyed if arguments.keyed else _measure
    print(json.dumps(asyncio.run(measure(arguments.tasks)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
