"""Generator: closed-loop load from its own process, for a few hundredths of a ms per request."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import uvloop

from bench.job import Job, Sample
from bench.lanes import Lane, Tally, sweep
from bench.machine import busy_seconds, cpu_seconds_exact
from bench.work import BrokerWork
from tests.harness.accounting import Percentiles

_ROOT = Path(__file__).parent.parent
# Allowed for connecting, and for requests still in flight when the time is over.
_SPARE_S = 120.0


def generate(job: Job) -> Sample:
    """Run one job in its own process.

    Raises:
        CalledProcessError: The generator failed; its standard error has the reason.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "bench.generator", msgspec.json.encode(job).decode()],
        stdout=subprocess.PIPE,
        cwd=_ROOT,
        check=True,
        timeout=job.warm_up_s + job.seconds + _SPARE_S,
    )
    return msgspec.json.decode(ended.stdout, type=Sample)


async def run(job: Job) -> Sample:
    """Connect, warm up, measure and let the lanes end; return the measurements."""
    tally = Tally()
    async with _lanes(job, tally):
        await asyncio.sleep(job.warm_up_s)
        before, begun_s = _used(job), time.perf_counter()
        tally.measuring = True
        await asyncio.sleep(job.seconds)
        tally.measuring = False
        after, ended_s = _used(job), time.perf_counter()
        tally.over = True
    used = {name: after[name] - before[name] for name in after}
    busy_s, generator_s = used.pop("all"), used.pop("generator")
    return Sample(
        tasks=tally.tasks,
        requests=tally.requests,
        seconds=ended_s - begun_s,
        latency_ms={
            name: Percentiles.of([1000 * took_s for took_s in took])
            for name, took in tally.latencies_s.items()
        },
        failed=tally.failed,
        empty=tally.empty,
        cpu_s=used,
        generator_s=generator_s,
        foreign_s=max(0.0, busy_s - generator_s - sum(used.values())),
        operations=tally.operations,
    )


def _lanes(job: Job, tally: Tally) -> AbstractAsyncContextManager[None]:
    if job.protocol == "codeq":
        return _http_lanes(job, tally)
    # Imported here, because only the `bench` extra installs the client libraries.
    from bench.peers.lanes import client_lanes  # noqa: PLC0415

    return client_lanes(job, tally)


@asynccontextmanager
async def _http_lanes(job: Job, tally: Tally) -> AsyncIterator[None]:
    """Run the lanes within the block; the tally must be over at its end.

    Raises:
        OSError: A node does not listen.
    """
    work = BrokerWork(
        job.urls,
        tally,
        producer_token=job.producer_token,
        worker_token=job.worker_token,
        command=job.command,
        batch=job.batch,
        payload_bytes=job.payload_bytes,
    ).of(job.kind)
    async with asyncio.TaskGroup() as group:
        lanes = [Lane(job.urls, work, tally, group) for _ in range(job.lanes)]
        for lane in lanes:
            await lane.connect()
        sweeping = group.create_task(sweep(lanes))
        for lane in lanes:
            lane.start()
        yield
        for lane in lanes:
            await lane.ended.wait()
        sweeping.cancel()


def _used(job: Job) -> dict[str, float]:
    used = {name: sum(map(cpu_seconds_exact, pids)) for name, pids in job.watched.items()}
    return used | {"all": busy_seconds(), "generator": time.process_time()}


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.argv[1], type=Job)
    if asked.protocol == "codeq":
        # A garbage collection would stop all lanes at once, and they create no reference cycles.
        gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(asked))))
