"""Job: a load and its measurements, exchanged between a bench and its generator's process."""

from __future__ import annotations

import msgspec

from tests.harness.accounting import Percentiles

# The loads for comparing clusters, by name: kind and lanes of a `Job`.
LOADS = {
    "create@1": ("create", 1),
    "create@32": ("create", 32),
    "cycle@1": ("cycle", 1),
    "cycle@4": ("cycle", 4),
    "cycle@8": ("cycle", 8),
    "cycle@16": ("cycle", 16),
    "cycle@32": ("cycle", 32),
    "cycle@128": ("cycle", 128),
    "batch": ("batch", 4),
}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A load to apply.

    Attributes:
        kind: `create`, `cycle`, `batch` (cycles through the batch routes), `batch-create`, or
            `refused`: creates that the server refuses after it has decoded them.
        protocol: `codeq`, or one that `bench.peers.clients` speaks.
        urls: Base URLs of the nodes; each request goes to one of them.
        command: The queue.
        lanes: Requests in flight; a lane sends the next when the last is answered.
        seconds: The measured time, after `warm_up_s`.
        batch: Tasks per request, of the batch kinds.
        watched: Processes by name; their CPU time is read at both ends of the measured time.
    """

    kind: str
    urls: list[str]
    command: str
    protocol: str = "codeq"
    producer_token: str = ""
    worker_token: str = ""
    lanes: int = 1
    seconds: float = 4.0
    warm_up_s: float = 1.0
    batch: int = 100
    payload_bytes: int = 80
    watched: dict[str, list[int]] = {}


class Sample(msgspec.Struct, kw_only=True):
    """The measurements of one job.

    Attributes:
        tasks: Tasks created or finished in the measured time.
        requests: Requests answered in the measured time.
        latency_ms: By operation, of requests answered in the measured time.
        failed: Unsuccessful answers, by operation and status, including warm-up and end.
        empty: Claims that found nothing.
        cpu_s: CPU seconds of the watched processes in the measured time, by name.
        generator_s: CPU seconds of the generator itself.
        foreign_s: CPU seconds of everything else on the machine.
        operations: Tasks created or finished from start to end, including the warm-up.
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
        """Tasks per second."""
        return self.tasks / self.seconds

    @property
    def slowest(self) -> Percentiles:
        """Latencies in ms of the operation with the highest median."""
        return max(self.latency_ms.values(), key=lambda took: took.p50)

    def cpu_ms(self, name: str = "nodes") -> float:
        """CPU of watched processes, ms per task."""
        return 1000 * self.cpu_s[name] / max(1, self.tasks)

    @property
    def generator_ms(self) -> float:
        """CPU of the generator, ms per request."""
        return 1000 * self.generator_s / max(1, self.requests)

    @property
    def foreign_cores(self) -> float:
        """Cores used by other work."""
        return self.foreign_s / self.seconds
