"""Generator: closed-loop load from a process of its own, at a few hundredths of a ms a request.

`bench.driver` is the client with everything a client has; this one has only what measuring needs,
so that the nodes get the cores.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import msgspec
import uvloop

from bench.lanes import Lane, Tally, sweep
from bench.machine import busy_seconds, cpu_seconds_exact
from bench.work import BrokerWork
from codeq_cluster.testing.accounting import Percentiles


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The load to make.

    Attributes:
        kind: `create`, `cycle`, `batch` (cycles through the batch routes), `batch-create`, or
            `refused`: creates that the server refuses after it has decoded them.
        urls: Base URLs; each request goes to one of them at random.
        lanes: Requests in flight; a lane sends the next when the last is answered.
        seconds: The measured time, after `warm_up_s`.
        batch: Tasks a request, of the batch kinds.
        watched: By name: process ids whose CPU time is read at both ends of the measured time.
    """

    kind: str
    urls: list[str]
    producer_token: str
    worker_token: str
    command: str
    lanes: int = 1
    seconds: float = 4.0
    warm_up_s: float = 1.0
    batch: int = 100
    payload_bytes: int = 80
    watched: dict[str, list[int]] = {}


class Sample(msgspec.Struct, kw_only=True):
    """What one job measured.

    Attributes:
        tasks: Created or finished in the measured time.
        requests: Answered in it.
        latency_ms: By operation, of requests sent in the measured time.
        failed: Answers that were no success, by operation and status, with warm-up and end.
        empty: Claims that found nothing.
        cpu_s: CPU seconds of the watched processes in the measured time, by name.
        generator_s: The generator's own.
        foreign_s: CPU seconds of everything else on the machine.
        operations: Tasks created or finished from start to end, warm-up included.
    """

    tasks: int = 0
    requests: int = 0
    seconds: float = 0.0
    latency_ms: dict[str, Percentiles] = {}
    failed: dict[str, int] = {}
    empty: int = 0
    cpu_s: dict[str, float] = {}
    generator_s: float = 0.0
    foreign_s: float = 0.0
    operations: int = 0

    @property
    def per_s(self) -> float:
        """Tasks a second."""
        return self.tasks / self.seconds

    def cpu_ms(self, name: str = "nodes") -> float:
        """CPU of watched processes, ms a task."""
        return 1000 * self.cpu_s[name] / max(1, self.tasks)

    @property
    def generator_ms(self) -> float:
        """CPU of the generator, ms a request."""
        return 1000 * self.generator_s / max(1, self.requests)


async def run(job: Job) -> Sample:
    """Connect, warm up, measure, let the lanes end; return what was measured.

    Raises:
        ExceptionGroup: With the OSError of a node that does not listen.
    """
    tally = Tally()
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
        await asyncio.sleep(job.warm_up_s)
        before, begun_s = _used(job), time.perf_counter()
        tally.measuring = True
        await asyncio.sleep(job.seconds)
        tally.measuring = False
        after, ended_s = _used(job), time.perf_counter()
        tally.over = True
        for lane in lanes:
            await lane.ended.wait()
        sweeping.cancel()
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


def _used(job: Job) -> dict[str, float]:
    used = {name: sum(map(cpu_seconds_exact, pids)) for name, pids in job.watched.items()}
    return used | {"all": busy_seconds(), "generator": time.process_time()}


if __name__ == "__main__":
    # The lanes make no cycles of references; collecting would stop all of them at once.
    gc.disable()
    asked = msgspec.json.decode(sys.argv[1], type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(asked))))
