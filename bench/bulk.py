"""Bulk: what others' creates wait for while a bulk job cancels many tasks of one tenant.

    python -m bench.bulk [--tasks 100000] [--creates 50] [--seconds 10]

Three nodes with four shards. A quiet tenant creates at a steady pace: alone, while the job of
another one goes on, and alone again. The aim is a p99 of at most twice that without the job.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.follow_ups import SHARDS
from bench.machine import describe, scratch
from bench.processes import cpu_s
from bench.steady import Request, Steady, running
from codeq_cluster.client import BulkAction, Client, NewTask, Operator, TaskSelection
from tests.harness.accounting import Percentiles
from tests.harness.cluster import LocalCluster

_QUIET, _BUSY = "quiet", "busy"
_SCOPES = ["codeq:claim", "codeq:result", "codeq:view", "codeq:enqueue"]
_TAG = {"user": "42"}
_WARM_UP_S = 2.0
_PAUSE_S = 0.1
_TASKS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Instants on the generator's clock, in seconds.

    Attributes:
        changed: How many tasks the job has changed.
        alone_s: CPU time of all nodes from `begun_s` to `started_s`, seconds.
        beside_s: From `started_s` to `ended_s`.
    """

    begun_s: float
    started_s: float
    ended_s: float
    over_s: float
    changed: int
    alone_s: float
    beside_s: float

    @property
    def cpu_ms_a_task(self) -> float:
        """Return the CPU of all nodes for a task of the job, beyond that of the creates."""
        creates_s = self.alone_s / (self.started_s - self.begun_s)
        job_s = self.beside_s - creates_s * (self.ended_s - self.started_s)
        return 1000 * job_s / self.changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.bulk", description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000, help="that the job cancels")
    parser.add_argument("--creates", type=float, default=50, help="of the quiet tenant, a second")
    parser.add_argument("--seconds", type=float, default=10, help="before the job, and after it")
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        spans, requests, held_back = asyncio.run(_measure(options, directory))
    print(" ".join(["python -m bench.bulk", *sys.argv[1:]]))
    print(machine)
    took_s = spans.ended_s - spans.started_s
    print(
        f"the job cancelled {spans.changed} tasks in {took_s:.1f} s, "
        f"{spans.changed / took_s:.0f}/s, for {spans.cpu_ms_a_task:.3f} ms of CPU each"
    )
    phases = {
        "alone": (spans.begun_s, spans.started_s),
        "beside the job": (spans.started_s, spans.ended_s),
        "alone again": (spans.ended_s, spans.over_s),
    }
    p99 = {name: _said(name, requests, *span) for name, span in phases.items()}
    print(f"p99 beside the job: {p99['beside the job'] / p99['alone']:.2f} x alone")
    failed = held_back + sum(bool(each.failure) for each in requests)
    print(f"{failed} creates failed")
    return int(failed > 0)


def _said(name: str, requests: Sequence[Request], from_s: float, to_s: float) -> float:
    """Print the creates that ended in a span; return their p99 in milliseconds."""
    took = [each.took_ms for each in requests if not each.failure and from_s <= each.ended_s < to_s]
    found = Percentiles.of(took)
    print(f"{name:<15} {len(took):>6} creates, p50 {found.p50:.1f} ms, p99 {found.p99:.1f} ms")
    return found.p99


async def _measure(
    options: argparse.Namespace, directory: Path
) -> tuple[Spans, list[Request], int]:
    async with LocalCluster(directory, shards=SHARDS, settings=_settings()) as cluster:
        urls = list(cluster.urls.values())
        async with (
            Client(urls, token=_BUSY, deadline_s=60) as client,
            Operator(urls, token=_BUSY, deadline_s=60) as operator,
        ):
            for begun in range(0, options.tasks, _TASKS_AT_ONCE):
                number = min(_TASKS_AT_ONCE, options.tasks - begun)
                await client.create_many([NewTask("swept", 1, tags=_TAG)] * number)
            offered = Steady(
                kind="create",
                urls=urls,
                tokens=[(_QUIET, _QUIET)],
                command="steady",
                per_s=options.creates,
                webhooks=[],
            )
            async with running(offered) as generator:
                await asyncio.sleep(_WARM_UP_S)
                begun_s, begun_cpu_s = time.monotonic(), cpu_s(cluster)
                await asyncio.sleep(options.seconds)
                started_s, started_cpu_s = time.monotonic(), cpu_s(cluster)
                job = await operator.start_bulk(
                    TaskSelection(tags=_TAG), BulkAction(action="cancel")
                )
                while job.status == "RUNNING":
                    await asyncio.sleep(_PAUSE_S)
                    job = await operator.bulk_job(job.id)
                ended_s, ended_cpu_s = time.monotonic(), cpu_s(cluster)
                await asyncio.sleep(options.seconds)
                over_s = time.monotonic()
                seen = await generator.stop()
    spans = Spans(
        begun_s=begun_s,
        started_s=started_s,
        ended_s=ended_s,
        over_s=over_s,
        changed=job.changed,
        alone_s=started_cpu_s - begun_cpu_s,
        beside_s=ended_cpu_s - started_cpu_s,
    )
    return spans, seen.requests, seen.held_back


def _settings() -> dict[str, object]:
    tokens = [
        {"token": each, "subject": each, "tenant": each, "scopes": scopes, "eventTypes": ["*"]}
        for each, scopes in ((_QUIET, _SCOPES), (_BUSY, [*_SCOPES, "codeq:admin"]))
    ]
    return {
        "auth": {kind: [{"kind": "static", "tokens": tokens}] for kind in ("producer", "worker")}
    }


if __name__ == "__main__":
    sys.exit(main())
