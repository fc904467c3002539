"""Samples as a generator would return them, with the figures a test is about."""

from __future__ import annotations

from bench.job import Sample
from tests.harness.accounting import Percentiles


def sample(
    *, per_s: float = 100.0, cpu_ms: float = 1.0, p50: float = 2.0, generator_ms: float = 0.02
) -> Sample:
    """Return a second of creates, one request each, without failures."""
    tasks = round(per_s)
    return Sample(
        tasks=tasks,
        requests=tasks,
        seconds=tasks / per_s,
        latency_ms={"create": Percentiles(count=tasks, p50=p50, p90=p50, p99=2 * p50, max=9.0)},
        cpu_s={"nodes": tasks * cpu_ms / 1000},
        generator_s=tasks * generator_ms / 1000,
        operations=tasks,
    )
