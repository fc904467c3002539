"""Rolling restart: the effect on clients while every node is stopped and started in turn.

    python -m bench.rolling_restart [--cycles 200]

A client runs cycles (create, claim, result) at a fixed rate against three real nodes. It knows all
nodes and gets no notice of the restarts. Each node gets SIGTERM and is started again once it has
ended; the next one follows once it is ready. Prints the latency of requests, second by second,
beside the slowest sync of an unrelated file: a stalled disk shows in both.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from bench.machine import DiskProbe, describe, scratch
from bench.steady import Request, Seen, Steady, running
from tests.harness.accounting import Percentiles
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

_SPREAD_WITHIN_S = 120.0
_FAILURES_SHOWN = 10


class Event(msgspec.Struct, frozen=True):
    """An action on the cluster, in monotonic seconds."""

    at_s: float
    what: str


@dataclass(frozen=True, kw_only=True)
class Restarted:
    """One run.

    Attributes:
        begun_s: When the first node was told to stop.
        ended_s: When the last node was ready.
        spread: Shards by leader: before, once the last node was ready, and at the end.
        even_after_s: Time from the last node ready until every shard is led by its preferred node.
        busy_percent: Share of the cores' time used by any process over the whole run.
        stolen_percent: Share of the cores' time that the hypervisor gave to other machines.
        disk: The syncs of the probe file meanwhile.
    """

    events: list[Event]
    seen: Seen
    from_s: float
    begun_s: float
    ended_s: float
    spread: list[dict[str, int]]
    even_after_s: float
    busy_percent: int
    stolen_percent: float
    disk: DiskProbe


def main(arguments: Sequence[str] | None = None) -> int:
    """Restart every node and print the measurements; return 1 if a request failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.rolling_restart", description=__doc__)
    parser.add_argument("--cycles", type=float, default=200.0, help="offered a second")
    parser.add_argument("--before", type=float, default=10.0, help="seconds before the first stop")
    parser.add_argument("--between", type=float, default=3.0, help="seconds between two nodes")
    parser.add_argument("--after", type=float, default=5.0, help="seconds after the spread is even")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        done = asyncio.run(_measure(options, directory))
    print(_report(machine, done, " ".join(["python -m bench.rolling_restart", *sys.argv[1:]])))
    return int(any(request.failure for request in done.seen.requests))


async def _measure(options: argparse.Namespace, directory: Path) -> Restarted:
    events: list[Event] = []

    def note(what: str) -> float:
        now_s = time.monotonic()
        events.append(Event(now_s, what))
        print(f"  {what}", file=sys.stderr, flush=True)
        return now_s

    async with LocalCluster(directory, shards=options.shards) as cluster:
        await _even(cluster)
        before = await _spread(cluster)
        load = Steady(
            kind="cycle",
            urls=list(cluster.urls.values()),
            tokens=[(PRODUCER_TOKEN, WORKER_TOKENS["worker-0"])],
            command="rolling",
            per_s=options.cycles,
        )
        cores_before = _Cores.now()
        from_s = time.monotonic()
        with DiskProbe(directory) as disk:
            async with running(load) as generator:
                await asyncio.sleep(options.before)
                begun_s = time.monotonic()
                for node in cluster.nodes:
                    note(f"stop {node}")
                    status = await cluster.stop(node)
                    note(f"{node} ended with {status}")
                    cluster.start(node)
                    await cluster.wait_ready([node])
                    ended_s = note(f"{node} ready")
                    await asyncio.sleep(options.between)
                at_ready = await _spread(cluster)
                await _even(cluster)
                even_s = note("leaders even")
                await asyncio.sleep(options.after)
                cores = _Cores.now().since(cores_before)
                seen = await generator.stop()
        return Restarted(
            events=events,
            seen=seen,
            from_s=from_s,
            begun_s=begun_s,
            ended_s=ended_s,
            spread=[before, at_ready, await _spread(cluster)],
            even_after_s=even_s - ended_s,
            busy_percent=round(100 - 100 * cores.idle / cores.total),
            disk=disk,
            stolen_percent=round(100 * cores.stolen / cores.total, 1),
        )


async def _even(cluster: LocalCluster) -> None:
    """Wait until every shard is led by its preferred node: shard i by node i, round robin."""
    nodes = list(cluster.nodes)
    wanted = {shard: nodes[shard % len(nodes)] for shard in range(cluster.shards)}

    async def led() -> bool:
        return await _leaders(cluster) == wanted

    await until(led, within_s=_SPREAD_WITHIN_S, what="an even spread of leaders")


async def _leaders(cluster: LocalCluster) -> dict[int, str | None]:
    for node in cluster.nodes:
        status = await cluster.status(node)
        if status is not None:
            return {shard: group.leader for shard, group in sorted(status.items())}
    return {}


async def _spread(cluster: LocalCluster) -> dict[str, int]:
    led = Counter(leader or "none" for leader in (await _leaders(cluster)).values())
    return {node: led[node] for node in (*cluster.nodes, "none") if node != "none" or led[node]}


class _Cores(msgspec.Struct, frozen=True):
    """The time of all cores by kind of use, in ticks."""

    total: int
    idle: int
    stolen: int

    @classmethod
    def now(cls) -> Self:
        """Return the ticks since the machine was started."""
        ticks = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
        return cls(total=sum(ticks), idle=ticks[3] + ticks[4], stolen=ticks[7])

    def since(self, before: _Cores) -> _Cores:
        """Return the difference from an earlier reading."""
        return _Cores(
            self.total - before.total, self.idle - before.idle, self.stolen - before.stolen
        )


def _report(machine: Mapping[str, object], done: Restarted, command: str) -> str:
    requests = done.seen.requests
    failures = [request for request in requests if request.failure]
    changed = ", with uncommitted changes" if machine["changed"] else ""
    lines = [
        f"commit {str(machine['commit'])[:10]}{changed}",
        (
            f"{machine['cores']} cores ({machine['cpu']}), kernel {machine['kernel']},"
            f" Python {machine['python']}, fsync {machine['fsyncMs']} ms, load average before"
            f" {machine['loadBefore']:.2f}, cores busy over the run {done.busy_percent} %,"
            f" stolen {done.stolen_percent} %"
        ),
        command,
        "",
        (
            f"{'second':>6} {'cycles':>6} {'requests':>8} {'p50':>8} {'p99':>8} {'max':>8} ms"
            f"  failed {'sync':>8} ms"
        ),
        *_seconds(done),
        "",
        _summary("before", done, 0, done.begun_s),
        _summary("restart", done, done.begun_s, done.ended_s),
        _summary("after", done, done.ended_s, float("inf")),
        (
            f"the generator itself was late by at most {done.seen.late_ms_max:.0f} ms;"
            f" requests {len(requests)}, failed {len(failures)}; connections refused and the next"
            f" node asked {done.seen.refused}; cycles held back {done.seen.held_back}"
        ),
        *(f"  {each.operation}: {each.failure}" for each in failures[:_FAILURES_SHOWN]),
        "shards led: before {}, last node ready {}, end {}".format(*map(_shown, done.spread)),
        f"even again {done.even_after_s:.1f} s after the last node was ready",
    ]
    return "\n".join(lines)


def _seconds(done: Restarted) -> list[str]:
    by_second: dict[int, list[Request]] = {}
    for request in done.seen.requests:
        by_second.setdefault(int(request.ended_s - done.from_s), []).append(request)
    cycles = Counter(int(each.ended_s - done.from_s) for each in done.seen.cycles)
    events: dict[int, list[str]] = {}
    for event in done.events:
        events.setdefault(int(event.at_s - done.from_s), []).append(event.what)
    lines = []
    for second in range(max(by_second, default=0) + 1):
        found = by_second.get(second, [])
        took = Percentiles.of([request.took_ms for request in found])
        failed = sum(bool(request.failure) for request in found)
        from_s = done.from_s + second
        lines.append(
            f"{second:>6} {cycles[second]:>6} {len(found):>8}"
            f" {took.p50:>8.1f} {took.p99:>8.1f} {took.max:>8.1f}     {failed:>6}"
            f" {done.disk.slowest(from_s, from_s + 1):>8.1f}"
            f"  {', '.join(events.get(second, []))}".rstrip()
        )
    return lines


def _summary(name: str, done: Restarted, from_s: float, to_s: float) -> str:
    found = [each for each in done.seen.requests if from_s <= each.ended_s < to_s]
    took = Percentiles.of([each.took_ms for each in found])
    by_operation = ", ".join(
        f"{operation} {each.p50:.1f}/{each.p99:.1f}"
        for operation in ("create", "claim", "result")
        for each in [Percentiles.of([r.took_ms for r in found if r.operation == operation])]
    )
    return (
        f"{name:<8} {took.count} requests: p50 {took.p50:.1f}, p99 {took.p99:.1f},"
        f" max {took.max:.1f} ms; p50/p99 of {by_operation};"
        f" slowest sync {done.disk.slowest(from_s, to_s):.1f} ms"
    )


def _shown(spread: Mapping[str, int]) -> str:
    return ", ".join(f"{node} {count}" for node, count in spread.items())


if __name__ == "__main__":
    sys.exit(main())
