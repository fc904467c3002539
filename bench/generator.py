"""Generator: closed-loop load from a process of its own, at a few hundredths of a ms a request.

`bench.driver` is the client with everything a client has; this one has only what measuring needs,
so that the nodes get the cores.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections.abc import Awaitable, Callable

import msgspec
import uvloop

from bench.bare_http import Connection, request_head, with_body
from bench.machine import busy_seconds, cpu_seconds_exact
from codeq_cluster.testing.accounting import Percentiles

_LEASE_S = 60
_WAIT_S = 5
_ANSWER_WITHIN_S = 30.0
_SWEEP_EVERY_S = 1.0
# After a failed connection, so that a dead node does not turn a lane into a busy loop.
_PAUSE_S = 0.05
_TASKS = "/v1/codeq/tasks"
_RESULT = b'{"status":"COMPLETED","result":{"ok":true}}'


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


class _Claimed(msgspec.Struct):
    id: str


class _ClaimedBatch(msgspec.Struct):
    tasks: list[_Claimed]


class _Item(msgspec.Struct):
    error: msgspec.Raw | None = None


class _Finished(msgspec.Struct):
    results: list[_Item]


_claimed = msgspec.json.Decoder(_Claimed)
_claimed_batch = msgspec.json.Decoder(_ClaimedBatch)
_finished = msgspec.json.Decoder(_Finished)


class Generator:
    """The lanes of one job."""

    def __init__(self, job: Job) -> None:
        self.sample = Sample()
        self._job = job
        self._measuring = False
        self._over = False
        self._latencies_s: dict[str, list[float]] = {}
        self._connections: set[Connection] = set()
        task = {"command": job.command, "payload": {"n": 1, "text": "x" * job.payload_bytes}}
        self._bodies = {
            "create": _json(task),
            "claim": _json(
                {"commands": [job.command], "leaseSeconds": _LEASE_S, "waitSeconds": _WAIT_S}
            ),
            "create-batch": _json({"tasks": [task] * job.batch}),
            "claim-batch": _json(
                {
                    "commands": [job.command],
                    "count": job.batch,
                    "leaseSeconds": _LEASE_S,
                    "waitSeconds": _WAIT_S,
                }
            ),
            # Decoded whole, then refused: a task has a command.
            "refused": _json({**task, "command": ""}),
        }

    async def run(self) -> Sample:
        """Warm up, measure, let the lanes end; return what was measured."""
        sample, job = self.sample, self._job
        step = self._step()
        async with asyncio.TaskGroup() as group:
            lanes = [group.create_task(Lane(self, job).repeat(step)) for _ in range(job.lanes)]
            sweep = group.create_task(self._sweep())
            await asyncio.sleep(job.warm_up_s)
            before, begun_s = self._used(), time.perf_counter()
            self._measuring = True
            await asyncio.sleep(job.seconds)
            self._measuring = False
            after, ended_s = self._used(), time.perf_counter()
            self._over = True
            await asyncio.wait(lanes)
            sweep.cancel()
        sample.seconds = ended_s - begun_s
        used = {name: after[name] - before[name] for name in after}
        busy_s, sample.generator_s = used.pop("all"), used.pop("generator")
        sample.cpu_s = used
        sample.foreign_s = max(0.0, busy_s - sample.generator_s - sum(used.values()))
        sample.latency_ms = {
            name: Percentiles.of([1000 * took_s for took_s in took])
            for name, took in self._latencies_s.items()
        }
        for connection in self._connections:
            connection.close()
        return sample

    @property
    def over(self) -> bool:
        """Whether the lanes shall end."""
        return self._over

    def body(self, operation: str) -> bytes:
        """Return the body of an operation whose body is always the same."""
        return self._bodies[operation]

    async def connect(self, url: str) -> Connection:
        """Open a connection that the sweep watches."""
        connection = await Connection.open(url)
        self._connections.add(connection)
        return connection

    def done(self, tasks: int) -> None:
        """Count tasks created or finished."""
        self.sample.operations += tasks
        if self._measuring:
            self.sample.tasks += tasks

    def answered(self, operation: str, sent_s: float) -> None:
        """Count a request and its latency."""
        if self._measuring:
            self.sample.requests += 1
            self._latencies_s.setdefault(operation, []).append(time.perf_counter() - sent_s)

    def failed(self, what: str, count: int = 1) -> None:
        """Count what was no success."""
        self.sample.failed[what] = self.sample.failed.get(what, 0) + count

    def empty(self) -> None:
        """Count a claim that found nothing."""
        self.sample.empty += 1

    def _used(self) -> dict[str, float]:
        used = {name: sum(map(cpu_seconds_exact, pids)) for name, pids in self._job.watched.items()}
        return used | {"all": busy_seconds(), "generator": time.process_time()}

    async def _sweep(self) -> None:
        """Bound every wait for an answer, at no cost a request."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            for connection in self._connections:
                connection.give_up(loop.time() - _ANSWER_WITHIN_S)

    def _step(self) -> Callable[[Lane], Awaitable[None]]:
        match self._job.kind:
            case "create":
                return Lane.create
            case "refused":
                return Lane.refused
            case "cycle":
                return Lane.cycle
            case "batch":
                return Lane.batch
            case "batch-create":
                return Lane.batch_create
            case kind:
                raise ValueError(f"no kind of load {kind}")


class Lane:
    """One request after the other, over a connection to each node."""

    def __init__(self, generator: Generator, job: Job) -> None:
        self._generator = generator
        self._job = job
        self._connections: dict[str, Connection] = {}
        self._heads: dict[tuple[str, str], bytes] = {}
        self._constant: dict[tuple[str, str], bytes] = {}

    async def repeat(self, step: Callable[[Lane], Awaitable[None]]) -> None:
        """Take one step after the other until the time is over."""
        while not self._generator.over:
            try:
                await step(self)
            except OSError as error:
                self._generator.failed(type(error).__name__)
                await asyncio.sleep(_PAUSE_S)

    async def create(self) -> None:
        """Create a task."""
        if await self._ask("create", _TASKS) is not None:
            self._generator.done(1)

    async def refused(self) -> None:
        """Send a create that is refused."""
        if await self._ask("refused", _TASKS, wanted=range(400, 401)) is not None:
            self._generator.done(1)

    async def cycle(self) -> None:
        """Create a task, claim one, finish it."""
        if await self._ask("create", _TASKS) is None:
            return
        raw = await self._ask("claim", f"{_TASKS}/claim")
        if raw is None:
            return
        if not raw:
            self._generator.empty()
            return
        path = f"{_TASKS}/{_claimed.decode(raw).id}/result"
        if await self._ask("result", path, body=_RESULT) is not None:
            self._generator.done(1)

    async def batch_create(self) -> None:
        """Create a batch."""
        if await self._ask("create-batch", f"{_TASKS}/batch") is not None:
            self._generator.done(self._job.batch)

    async def batch(self) -> None:
        """Create a batch, claim one, finish it."""
        if await self._ask("create-batch", f"{_TASKS}/batch") is None:
            return
        raw = await self._ask("claim-batch", f"{_TASKS}/claim/batch")
        if raw is None:
            return
        held = _claimed_batch.decode(raw).tasks if raw else []
        if not held:
            self._generator.empty()
            return
        results = [
            {"taskId": task.id, "status": "COMPLETED", "result": {"ok": True}} for task in held
        ]
        body = _json({"results": results})
        raw = await self._ask("result-batch", f"{_TASKS}/batch/results", body=body)
        if raw is None:
            return
        refused = sum(item.error is not None for item in _finished.decode(raw).results)
        if refused:
            self._generator.failed("result-batch item", refused)
        self._generator.done(len(held) - refused)

    async def _ask(
        self,
        operation: str,
        path: str,
        *,
        body: bytes | None = None,
        wanted: range = range(200, 300),
    ) -> bytes | None:
        """Return the answer's body, empty for none, or None for a failure."""
        url = random.choice(self._job.urls)
        connection = self._connections.get(url)
        if connection is None or connection.closed:
            connection = self._connections[url] = await self._generator.connect(url)
        request = self._request(operation, url, path, body)
        sent_s = time.perf_counter()
        status, raw = await connection.ask(request)
        self._generator.answered(operation, sent_s)
        if status not in wanted:
            self._generator.failed(f"{operation} {status} {raw[:120].decode(errors='replace')}")
            return None
        return raw

    def _request(self, operation: str, url: str, path: str, body: bytes | None) -> bytes:
        if body is not None:
            return with_body(request_head(url, path, self._token(operation)), body)
        found = self._constant.get((operation, url))
        if found is None:
            head = request_head(url, path, self._token(operation))
            found = self._constant[operation, url] = with_body(
                head, self._generator.body(operation)
            )
        return found

    def _token(self, operation: str) -> str:
        job = self._job
        producer = operation in {"create", "create-batch", "refused"}
        return job.producer_token if producer else job.worker_token


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


async def _main(job: Job) -> Sample:
    gc.freeze()
    return await Generator(job).run()


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.argv[1], type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_main(asked))))
