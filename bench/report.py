"""Report: measurements as rows, and the rows as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bench.job import Sample
from tests.harness.accounting import Percentiles


class Row(msgspec.Struct, kw_only=True):
    """One scenario at one level of load.

    Attributes:
        per_s: Tasks created per second, or finished if the scenario finishes them.
        latency_ms: By operation: count, p50, p90, p99, max.
        nodes_cpu_percent: CPU of all nodes together, in percent of one core.
        driver_cpu_percent: CPU of the load generator, in percent of one core.
    """

    kind: str
    lanes: int
    per_s: float
    latency_ms: dict[str, Percentiles]
    failed: dict[str, int]
    nodes_cpu_percent: int = 0
    driver_cpu_percent: int = 0

    @classmethod
    def of(cls, kind: str, lanes: int, sample: Sample) -> Row:
        """Summarize a generator's sample."""
        return cls(
            kind=kind,
            lanes=lanes,
            per_s=round(sample.per_s, 1),
            latency_ms=sample.latency_ms,
            failed=sample.failed,
            nodes_cpu_percent=round(100 * sample.cpu_s["nodes"] / sample.seconds),
            driver_cpu_percent=round(100 * sample.generator_s / sample.seconds),
        )

    def line(self) -> str:
        """Return the row as one line, to show progress."""
        return f"{self.kind} {self.lanes}: {self.per_s:,.0f}/s {self.failed or ''}"


def render(report: Mapping[str, Any]) -> str:
    """Return the report as text: the machine, a line per operation of each row, then the rest."""
    machine, settings = report["machine"], report["settings"]
    changed = ", with uncommitted changes" if machine["changed"] else ""
    place = (
        f"{machine['cores']} cores ({machine['cpu']}), kernel {machine['kernel']},"
        f" Python {machine['python']}, fsync {machine['fsyncMs']} ms,"
        f" load average before {machine['loadBefore']:.2f}"
    )
    cluster = (
        f"{settings['nodes']} nodes, {settings['shards']} shards,"
        f" durability {settings['durability']}: {settings['command']}"
    )
    columns = (
        f"{'scenario':<9} {'lanes':>5} {'tasks/s':>9}  {'operation':<13}"
        f" {'p50':>8} {'p90':>8} {'p99':>8} {'max':>8} ms"
        f"  {'nodes':>5} {'driver':>6} CPU %  failed"
    )
    lines = [f"commit {machine['commit'][:10]}{changed}", place, cluster, "", columns]
    for row in report["rows"]:
        head = f"{row['kind']:<9} {row['lanes']:>5} {row['per_s']:>9,.0f}"
        tail = (
            f"     {row['nodes_cpu_percent']:>5} {row['driver_cpu_percent']:>6}"
            f"        {sum(row['failed'].values())}"
        )
        for name, took in row["latency_ms"].items():
            lines.append(
                f"{head}  {name:<13} {took['p50']:>8.2f} {took['p90']:>8.2f}"
                f" {took['p99']:>8.2f} {took['max']:>8.2f}{tail}"
            )
            head, tail = " " * len(head), ""
        if not row["latency_ms"]:
            lines.append(f"{head}{tail}")
    if report["idle"]:
        lines += ["", f"idle, percent of a core: {_by_node(report['idle'])}"]
    rss = report["rssMiB"]
    lines.append(
        f"resident MiB: at start {_by_node(rss['start'])}; after load {_by_node(rss['afterLoad'])}"
    )
    if report["repair"]:
        lines.append(_repair(report["repair"]))
    return "\n".join(lines)


def _by_node(values: Mapping[str, float]) -> str:
    return ", ".join(f"{node} {value:g}" for node, value in values.items())


def _repair(repair: Mapping[str, Any]) -> str:
    took = repair["summary"]
    return (
        f"{repair['kills']} x kill -9 of a leader at {repair['cyclesPerSecond']} cycles/s:"
        f" next write p50 {took['p50']:.2f} s, p90 {took['p90']:.2f} s, max {took['max']:.2f} s;"
        f" failed {repair['failed']}, lost {repair['lost']},"
        f" finished twice {repair['finishedTwice']}"
    )
