"""Ledger: the cost of each layer of a create, as a difference of loads, beside its budget.

Every row is one load on one cluster. A layer's cost is the row's cost minus that of the rows below
it. A machine's speed drifts. So all clusters run for the whole time and the rows take turns, which
keeps the drift out of the differences.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from bench import counters
from bench.checkout import Checkout, commit_of
from bench.floor import floors
from bench.generator import generate
from bench.job import Job, Sample
from bench.machine import describe, prefer, scratch
from bench.run import RESULTS

_ROOT = Path(__file__).parent.parent
_LANES = 32


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the ledger.

    Attributes:
        name: Its name for `--only`.
        says: What it measures.
        cluster: The cluster it runs on: `floor`, or nodes x shards.
        asks: `all` nodes, the `leader` of the only shard, or its `followers`.
        less: Rows whose cost is subtracted, with their shares: the layers below.
        budget_ms: CPU the layer may cost, per task.
        budget_p50_ms: Latency of the whole request.
    """

    name: str
    says: str
    cluster: str
    kind: str = "create"
    lanes: int = _LANES
    asks: str = "all"
    less: dict[str, float] = {}
    budget_ms: float | None = None
    budget_p50_ms: float | None = None


_SPREAD = {"leader": 1 / 3, "followers": 2 / 3}

ROWS = (
    Row(name="nothing", says="a POST to aiohttp that does nothing", cluster="floor"),
    Row(
        name="refused",
        says="HTTP: authentication, decoding, a refusal",
        cluster="1x1",
        kind="refused",
        budget_ms=0.10,
    ),
    Row(
        name="one-node",
        says="behind HTTP: one node, one shard",
        cluster="1x1",
        less={"refused": 1},
        budget_ms=0.10,
    ),
    Row(
        name="leader",
        says="two replicas more, asked at the leader",
        cluster="3x1",
        asks="leader",
        less={"one-node": 1},
        budget_ms=0.08,
    ),
    Row(
        name="followers",
        says="forwarding, asked at followers",
        cluster="3x1",
        asks="followers",
        less={"leader": 1},
        budget_ms=0.06,
    ),
    Row(
        name="shards",
        says="four shards instead of one, all nodes asked",
        cluster="3x4",
        less=_SPREAD,
        budget_ms=0.03,
    ),
    Row(name="create", says="a create at 32 lanes, four shards", cluster="3x4", budget_ms=0.35),
    Row(
        name="lone-1",
        says="a lone create, one node, one shard",
        cluster="1x1",
        lanes=1,
        budget_ms=0.4,
        budget_p50_ms=0.7,
    ),
    Row(
        name="lone-3",
        says="a lone create, three nodes, four shards",
        cluster="3x4",
        lanes=1,
        budget_ms=0.9,
        budget_p50_ms=1.3,
    ),
    Row(
        name="batch-1",
        says="a create in batches of 100, one node, one shard",
        cluster="1x1",
        kind="batch-create",
        lanes=4,
    ),
    Row(
        name="batch-3",
        says="a create in batches of 100, three nodes, four shards",
        cluster="3x4",
        kind="batch-create",
        lanes=4,
    ),
    Row(
        name="batch-cycle",
        says="a cycle in batches of 100, three nodes, four shards",
        cluster="3x4",
        kind="batch",
        lanes=4,
    ),
    Row(
        name="cycle-1x",
        says="a cycle at 32 lanes, three nodes, one shard",
        cluster="3x1",
        kind="cycle",
    ),
    Row(name="cycle", says="a cycle at 32 lanes, four shards", cluster="3x4", kind="cycle"),
    Row(
        name="cycle-128",
        says="a cycle at 128 lanes, four shards",
        cluster="3x4",
        kind="cycle",
        lanes=128,
    ),
)
_BY_NAME = {row.name: row for row in ROWS}


class Figures(msgspec.Struct, kw_only=True):
    """The measurements of a row: medians of its rounds.

    Attributes:
        cpu_ms: CPU time of all nodes, per task.
        layer_ms: `cpu_ms` minus that of the rows below; None if one of them was not measured.
        p50_ms, p99_ms: Latencies of the slowest operation.
        counts: Events per task.
    """

    per_s: float
    cpu_ms: float
    layer_ms: float | None
    p50_ms: float
    p99_ms: float
    generator_ms: float
    foreign_cores: float
    failed: dict[str, int] = {}
    counts: dict[str, float] = {}


class Ledger(msgspec.Struct, kw_only=True):
    """A stored run."""

    machine: dict[str, Any]
    commit: str
    command: str
    rows: dict[str, Figures]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows, print them, and keep them in `bench/results`."""
    options = _options(arguments)
    # SIGTERM then unwinds like Ctrl-C, so that every started process is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    earlier = (
        msgspec.json.decode(options.against.read_bytes(), type=Ledger) if options.against else None
    )
    prefer([os.getpid()], nice=options.nice)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        rows = _measure([_BY_NAME[name] for name in options.only], directory, options)
    ledger = Ledger(
        machine=machine,
        commit=commit_of(options.checkout),
        command=" ".join(["python", "-m", "bench.ledger", *sys.argv[1:]]),
        rows=rows,
    )
    print(render(ledger, earlier))
    RESULTS.mkdir(exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    target = RESULTS / f"{stamp}-{ledger.commit}-ledger.json"
    target.write_bytes(msgspec.json.format(msgspec.json.encode(ledger), indent=2))
    print(f"\n{target}")
    return 1 if any(row.failed for row in rows.values()) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.ledger", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=_BY_NAME, default=list(_BY_NAME), metavar="ROW"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, each row and round")
    parser.add_argument("--against", type=Path, help="a stored run of this machine")
    parser.add_argument("--checkout", type=Path, default=_ROOT, help="whose nodes are measured")
    parser.add_argument("--nice", type=int, default=0, help="priority of all that is measured")
    parser.add_argument("--directory", type=Path, help="where the data goes; a real disk")
    return parser.parse_args(arguments)


def _measure(
    rows: Sequence[Row], directory: Path, options: argparse.Namespace
) -> dict[str, Figures]:
    samples: dict[str, list[Sample]] = {row.name: [] for row in rows}
    counted: dict[str, list[dict[str, float]]] = {row.name: [] for row in rows}
    with ExitStack() as stack:
        clusters: dict[str, Checkout] = {}
        for shape in sorted({row.cluster for row in rows} - {"floor"}):
            nodes, shards = (int(number) for number in shape.split("x"))
            cluster = clusters[shape] = Checkout(
                options.checkout,
                directory / shape,
                nodes=nodes,
                shards=shards,
                nice=options.nice,
            )
            stack.callback(cluster.stop)
            cluster.start()
        for turn in range(options.rounds):
            for row in rows:
                if row.cluster == "floor":
                    with floors() as pids:
                        prefer(pids.values(), nice=options.nice)
                        sample = generate(_job(row, list(pids), list(pids.values()), "", options))
                        counts: dict[str, float] = {}
                else:
                    sample, counts = _one(row, clusters[row.cluster], options)
                samples[row.name].append(sample)
                counted[row.name].append(counts)
                print(f"  {_line(row, sample)}", file=sys.stderr, flush=True)
            print(f"  round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    return figures(rows, samples, counted)


def _one(
    row: Row, cluster: Checkout, options: argparse.Namespace
) -> tuple[Sample, dict[str, float]]:
    urls = cluster.urls
    if row.asks != "all":
        leader = cluster.leaders()[0]
        urls = [url for url in urls if (url == leader) == (row.asks == "leader")]
    before = counters.of_metrics(cluster.metrics()) + counters.of_kernel(cluster.pids)
    sample = generate(_job(row, urls, cluster.pids, cluster.producer_token, options))
    after = counters.of_metrics(cluster.metrics()) + counters.of_kernel(cluster.pids)
    return sample, counters.per_operation(before, after, sample.operations)


def _job(
    row: Row, urls: list[str], pids: list[int], token: str, options: argparse.Namespace
) -> Job:
    return Job(
        kind=row.kind,
        urls=urls,
        producer_token=token,
        worker_token=token,
        command=f"ledger-{time.time_ns()}",
        lanes=row.lanes,
        seconds=options.seconds,
        watched={"nodes": pids},
    )


def figures(
    rows: Sequence[Row],
    samples: Mapping[str, Sequence[Sample]],
    counted: Mapping[str, Sequence[Mapping[str, float]]],
) -> dict[str, Figures]:
    """Return the medians of each row and its layer's cost: its excess over the rows below."""
    cpu_ms = {name: statistics.median(s.cpu_ms() for s in of) for name, of in samples.items()}
    found = {}
    for row in rows:
        mine = samples[row.name]
        layer_ms = None
        if row.less.keys() <= cpu_ms.keys():
            below = sum(share * cpu_ms[name] for name, share in row.less.items())
            layer_ms = cpu_ms[row.name] - below
        names = dict.fromkeys(name for counts in counted[row.name] for name in counts)
        found[row.name] = Figures(
            per_s=statistics.median(s.per_s for s in mine),
            cpu_ms=cpu_ms[row.name],
            layer_ms=layer_ms,
            p50_ms=statistics.median(s.slowest.p50 for s in mine),
            p99_ms=statistics.median(s.slowest.p99 for s in mine),
            generator_ms=statistics.median(s.generator_ms for s in mine),
            foreign_cores=statistics.median(s.foreign_cores for s in mine),
            failed={name: n for s in mine for name, n in s.failed.items()},
            counts={
                name: statistics.median(counts.get(name, 0.0) for counts in counted[row.name])
                for name in names
            },
        )
    return found


def render(ledger: Ledger, earlier: Ledger | None) -> str:
    """Return the table: each row beside its budget and beside the earlier run."""
    lines = [f"commit {ledger.commit}, {_place(ledger.machine)}"]
    if earlier is not None:
        lines.append(f"against {earlier.commit}, {_place(earlier.machine)}")
        if _hardware(ledger.machine) != _hardware(earlier.machine):
            lines.append("ANOTHER MACHINE: the columns do not compare")
    lines += ["", _HEAD]
    for name, row in ledger.rows.items():
        lines.append(_entry(_BY_NAME[name], row, earlier.rows.get(name) if earlier else None))
    lines += ["", "how often, a task"]
    for name, row in ledger.rows.items():
        counts = ", ".join(f"{count} {rate:.2f}" for count, rate in row.counts.items())
        if counts:
            lines.append(f"{name:<12} {counts}")
    return "\n".join(lines)


_HEAD = (
    f"{'row':<12} {'':<52} {'layer':>6} {'budget':>6} {'before':>6}   {'all':>6} {'before':>6}"
    f" CPU ms  {'p50':>6} {'budget':>6} {'before':>6} {'p99':>6} ms  {'tasks/s':>7}"
    f"  {'gen.':>5} foreign"
)


def _entry(row: Row, now: Figures, before: Figures | None) -> str:
    return (
        f"{row.name:<12} {row.says:<52}"
        f" {_ms(now.layer_ms)} {_ms(row.budget_ms)} {_ms(before and before.layer_ms)}  "
        f" {_ms(now.cpu_ms)} {_ms(before and before.cpu_ms)}       "
        f"  {_ms(now.p50_ms)} {_ms(row.budget_p50_ms)} {_ms(before and before.p50_ms)}"
        f" {_ms(now.p99_ms)}     {now.per_s:>7,.0f}  {now.generator_ms:.3f}"
        f" {now.foreign_cores:>7.2f}{f'  FAILED {now.failed}' if now.failed else ''}"
    )


def _ms(value: float | None) -> str:
    if value is None:
        return f"{'-':>6}"
    return f"{value:>6.3f}" if value < 10 else f"{value:>6.1f}"


def _place(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cores']} cores ({machine['cpu']}), fsync {machine['fsyncMs']} ms,"
        f" load average before {machine['loadBefore']:.2f}"
    )


def _hardware(machine: Mapping[str, Any]) -> tuple[object, ...]:
    return machine["cores"], machine["cpu"], machine["kernel"]


def _line(row: Row, sample: Sample) -> str:
    return (
        f"{row.name:<12} {sample.per_s:>7,.0f}/s {sample.cpu_ms():.3f} ms CPU,"
        f" generator {sample.generator_ms:.3f}, foreign {sample.foreign_cores:.2f}"
        f" cores {sample.failed or ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
