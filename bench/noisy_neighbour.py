"""Noisy neighbour: the effect on quiet tenants of another that floods the cluster.

On three real nodes, quiet tenants run cycles at a steady pace. Each phase has another neighbour
that offers creates at a much higher pace: none; a client of servers that do nothing, which shows
the cost of the generator alone; a tenant with a rate limit; a tenant without one; none again.
In two more phases the quiet tenants' tasks have webhooks: alone, and beside a tenant whose tasks
name forty hosts that answer after twelve seconds. In the last phases one address attacks the nodes,
in each way of `tests.harness.arsenal`, and a hundred addresses ask for what needs no token.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from operator import attrgetter
from pathlib import Path

import msgspec

from bench.floor import floors
from bench.machine import cpu_seconds, describe, rss_mib, scratch
from bench.receivers import Receivers, receiving
from bench.steady import Request, Seen, Steady, running
from tests.harness.accounting import Percentiles
from tests.harness.arsenal import TO_LINK, arsenal, loot
from tests.harness.attacks import Attack, attacking
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN

_ROOT = Path(__file__).parent.parent
_QUIET = ["quiet-1", "quiet-2", "quiet-3"]
_NOISY, _LIMITED = "noisy", "limited"
_SCOPES = [
    "codeq:claim",
    "codeq:heartbeat",
    "codeq:abandon",
    "codeq:nack",
    "codeq:result",
    "codeq:view",
    "codeq:admin",  # Its own tenant alone; the quiet ones do not use it.
]
_WARM_UP_S = 2.0
# The pause between phases, so that requests in flight do not count for the next phase.
_SETTLE_S = 2.0
_FLOOR_SERVERS = 3
_NEW_QUEUES = 600
_ATTACKER = "127.0.0.2"  # Another address than that of the quiet tenants.
_STRANGERS = Attack(
    name="strangers",
    first=b"".join(
        b"GET %b HTTP/1.1\r\nHost: node\r\n\r\n" % each for each in [b"/healthz", b"/metrics"] * 5
    ),
    connections=100,
    answers=10,
    addresses=100,
)


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    Attributes:
        node_rss_mib: Resident memory of the largest node at the end of the measured time.
    """

    name: str
    quiet: Seen
    flood: Seen | None
    nodes_cpu_percent: int
    node_rss_mib: float
    seconds: float
    callbacks: list[Request] = []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the phases and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.noisy_neighbour", description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="measured, each phase")
    parser.add_argument("--attacked", type=float, default=6.0, help="seconds of each attack")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="ATTACK", help="and no other phases"
    )
    parser.add_argument("--cycles", type=float, default=12.0, help="of the quiet tenants, a second")
    parser.add_argument("--flood", type=float, default=300.0, help="creates offered a second")
    parser.add_argument("--hooked", type=float, default=60.0, help="cycles with slow receivers")
    parser.add_argument("--limit", type=int, default=600, help="creates a minute of the limited")
    parser.add_argument("--burst", type=int, default=20, help="of that limit")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        with floors(_FLOOR_SERVERS) as nowhere:
            phases = asyncio.run(_measure(options, directory, list(nowhere)))
    print(_table(machine, phases, " ".join(["python -m bench.noisy_neighbour", *sys.argv[1:]])))
    return 0


async def _measure(options: argparse.Namespace, directory: Path, nowhere: list[str]) -> list[Phase]:
    settings = _settings(directory, per_minute=options.limit, burst=options.burst)
    async with LocalCluster(directory, shards=options.shards, settings=settings) as cluster:
        nodes = list(cluster.urls.values())
        alone = await _phase(options, cluster, "alone")
        if options.only:
            attacks = await _attacks(options, cluster)
            return [alone, *attacks, await _phase(options, cluster, "alone again")]
        return [
            alone,
            await _phase(options, cluster, "flood elsewhere", urls=nowhere, tenant=_NOISY),
            await _phase(options, cluster, "flood, limited", urls=nodes, tenant=_LIMITED),
            await _phase(options, cluster, "flood, no limit", urls=nodes, tenant=_NOISY),
            await _phase(options, cluster, "alone again"),
            *await _slow_receivers(options, cluster),
            *await _attacks(options, cluster),
        ]


async def _attacks(options: argparse.Namespace, cluster: LocalCluster) -> list[Phase]:
    looted = await loot(next(iter(cluster.urls.values())), _NOISY)
    every = arsenal(random.Random(0), _NOISY, looted, queues=_NEW_QUEUES, receivers=())
    wanted = [
        each for each in (*every, _STRANGERS) if not options.only or each.name in options.only
    ]
    return [await _phase(options, cluster, each.name, attack=each) for each in wanted]


async def _slow_receivers(options: argparse.Namespace, cluster: LocalCluster) -> list[Phase]:
    nodes = list(cluster.urls.values())
    async with receiving() as receivers:
        alone = await _phase(options, cluster, "callbacks", receivers=receivers)
        beside = await _phase(
            options, cluster, "slow receivers", receivers=receivers, urls=nodes, tenant=_NOISY
        )
    return [alone, beside]


async def _phase(
    options: argparse.Namespace,
    cluster: LocalCluster,
    name: str,
    *,
    urls: list[str] | None = None,
    tenant: str = "",
    receivers: Receivers | None = None,
    attack: Attack | None = None,
) -> Phase:
    print(f"  {name}", file=sys.stderr, flush=True)
    quiet = Steady(
        kind="cycle",
        urls=list(cluster.urls.values()),
        tokens=[(each, each) for each in _QUIET],
        command="steady",
        per_s=options.cycles,
        webhooks=[] if receivers is None else receivers.swift,
    )
    offered = [quiet]
    if urls is not None:
        offered.append(
            Steady(
                kind="create" if receivers is None else "cycle",
                urls=urls,
                tokens=[(tenant, tenant)],
                command="flood" if receivers is None else "hooked",
                per_s=options.flood if receivers is None else options.hooked,
                webhooks=[] if receivers is None else receivers.slow,
            )
        )
    async with AsyncExitStack() as stack:
        generators = [await stack.enter_async_context(running(each)) for each in offered]
        if attack is not None:
            port = attrgetter("link_port" if attack.name == TO_LINK else "http_port")
            targets = [(each.host, port(each)) for each in cluster.nodes.values()]
            await stack.enter_async_context(attacking(attack, targets, source=_ATTACKER))
        await asyncio.sleep(_WARM_UP_S)
        before, from_s = _cpu_seconds(cluster), time.monotonic()
        await asyncio.sleep(options.seconds if attack is None else options.attacked)
        used, to_s = _cpu_seconds(cluster) - before, time.monotonic()
        largest_mib = max(rss_mib(cluster.pid(node)) for node in cluster.nodes)
        seen = [_between(await each.stop(), from_s, to_s) for each in generators]
    await asyncio.sleep(_SETTLE_S)
    callbacks: list[Request] = []
    if receivers is not None:
        # A cycle at the very end may have ended before its answer came.
        callbacks = await receivers.of_tasks_ended(from_s, to_s, count=len(seen[0].cycles))
    return Phase(
        callbacks=callbacks,
        name=name,
        quiet=seen[0],
        flood=seen[1] if urls is not None else None,
        nodes_cpu_percent=round(100 * used / (to_s - from_s)),
        node_rss_mib=largest_mib,
        seconds=to_s - from_s,
    )


def _between(seen: Seen, from_s: float, to_s: float) -> Seen:
    """Return the requests that ended in the measured time."""
    kept = msgspec.structs.replace(seen)
    kept.requests = [each for each in seen.requests if from_s <= each.ended_s < to_s]
    kept.cycles = [each for each in seen.cycles if from_s <= each.ended_s < to_s]
    return kept


def _cpu_seconds(cluster: LocalCluster) -> float:
    return sum(cpu_seconds(cluster.pid(node)) for node in cluster.nodes)


def _settings(directory: Path, *, per_minute: int, burst: int) -> dict[str, object]:
    tenants = [
        {"token": each, "subject": each, "tenant": each, "scopes": _SCOPES, "eventTypes": ["*"]}
        for each in (*_QUIET, _NOISY, _LIMITED)
    ]
    admin = {"token": ADMIN_TOKEN, "subject": "admin", "tenant": "admin", "scopes": ["codeq:admin"]}
    provider = {"kind": "static", "tokens": [admin, *tenants]}
    limit = {"producer": {"requestsPerMinute": per_minute, "burstSize": burst}}
    return {
        "auth": {"producer": [provider], "worker": [provider]},
        "artifacts": {"provider": "local", "directory": str(directory / "artifacts")},
        "rateLimit": {"tenants": {_LIMITED: limit}},
        "webhookHmacSecret": "of the callbacks of a benchmark",
        "webhooks": {"allowPrivate": True},
    }


def _table(machine: Mapping[str, object], phases: Sequence[Phase], command: str) -> str:
    changed = ", with uncommitted changes" if machine["changed"] else ""
    place = (
        f"{machine['cores']} cores ({machine['cpu']}), kernel {machine['kernel']},"
        f" Python {machine['python']}, fsync {machine['fsyncMs']} ms,"
        f" load average before {machine['loadBefore']:.2f}"
    )
    columns = (
        f"{'phase':<24} {'cycles/s':>8}  {'create p50/p99':>16} {'claim p50/p99':>16}"
        f" {'result p50/p99':>16} {'cycle p50/p99':>16} ms  failed"
        f"  {'flood: made/s':>13} {'429/s':>6} {'other/s':>7}  nodes CPU %"
        f" {'node MiB':>9}  {'callback p50/p99':>16} ms"
    )
    lines = [f"commit {str(machine['commit'])[:10]}{changed}", place, command, "", columns]
    return "\n".join([*lines, *map(_line, phases)])


def _line(phase: Phase) -> str:
    quiet = phase.quiet
    took = " ".join(
        f"{_took([each for each in quiet.requests if each.operation == name]):>16}"
        for name in ("create", "claim", "result")
    )
    head = f"{phase.name:<24} {len(quiet.cycles) / phase.seconds:>8.1f}  {took}"
    head += f" {_took(quiet.cycles):>16}     {_failed(quiet):>6}"
    tail = (
        f"  {phase.nodes_cpu_percent:>11} {phase.node_rss_mib:>9.0f}  {_took(phase.callbacks):>16}"
    )
    if phase.flood is None:
        return f"{head}  {'':>13} {'':>6} {'':>7}{tail}"
    flood = phase.flood
    refused = sum(each.failure.startswith("429") for each in flood.requests)
    other = _failed(flood) - refused
    return (
        f"{head}  {len(flood.cycles) / phase.seconds:>13.0f} {refused / phase.seconds:>6.0f}"
        f" {other / phase.seconds:>7.0f}{tail}"
    )


def _failed(seen: Seen) -> int:
    return seen.held_back + sum(bool(each.failure) for each in seen.requests)


def _took(requests: Sequence[Request]) -> str:
    answered = [each.took_ms for each in requests if not each.failure]
    if not answered:
        return "-"
    took = Percentiles.of(answered)
    return f"{took.p50:.1f}/{took.p99:.1f}"


if __name__ == "__main__":
    sys.exit(main())
