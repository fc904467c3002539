"""Noisy neighbour: the effect on other tenants when one floods the cluster.

Three real nodes. Quiet tenants run cycles at a steady pace. In each phase a neighbour offers
creates at a much higher pace: nobody, a client of servers that do nothing (the cost of the
generator alone), a tenant with a rate limit, a tenant without one, nobody again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec

from bench.driver import Measured
from bench.machine import cpu_seconds, describe
from bench.paced import Pace
from codeq_cluster.testing.accounting import Percentiles
from codeq_cluster.testing.client import RecordingClient
from codeq_cluster.testing.cluster import ADMIN_TOKEN, LocalCluster, free_ports, until

_ROOT = Path(__file__).parent.parent
_QUIET = ["quiet-1", "quiet-2", "quiet-3"]
_NOISY, _LIMITED = "noisy", "limited"
_SCOPES = ["codeq:claim", "codeq:heartbeat", "codeq:abandon", "codeq:nack", "codeq:result"]
# Between phases, so that one phase's requests in flight are not measured in the next.
_SETTLE_S = 2.0
_FLOOR_SERVERS = 3


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    quiet: Measured
    flood: Measured | None
    nodes_cpu_percent: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the phases and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.noisy_neighbour", description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="measured, each phase")
    parser.add_argument("--cycles", type=float, default=12.0, help="of the quiet tenants, a second")
    parser.add_argument("--flood", type=float, default=300.0, help="creates offered a second")
    parser.add_argument("--limit", type=int, default=600, help="creates a minute of the limited")
    parser.add_argument("--burst", type=int, default=20, help="of that limit")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--directory", type=Path, default=None, help="must be on a real disk")
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    try:
        machine = describe(directory)
        phases = asyncio.run(_measure(options, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(_table(machine, phases, " ".join(["python -m bench.noisy_neighbour", *sys.argv[1:]])))
    return 0


async def _measure(options: argparse.Namespace, directory: Path) -> list[Phase]:
    settings = _settings(per_minute=options.limit, burst=options.burst)
    async with (
        LocalCluster(directory, shards=options.shards, settings=settings) as cluster,
        _floor() as nowhere,
    ):
        nodes = list(cluster.urls.values())
        return [
            await _phase(options, cluster, "alone"),
            await _phase(options, cluster, "flood elsewhere", urls=nowhere, tenant=_NOISY),
            await _phase(options, cluster, "flood, limited", urls=nodes, tenant=_LIMITED),
            await _phase(options, cluster, "flood, no limit", urls=nodes, tenant=_NOISY),
            await _phase(options, cluster, "alone again"),
        ]


async def _phase(
    options: argparse.Namespace,
    cluster: LocalCluster,
    name: str,
    *,
    urls: list[str] | None = None,
    tenant: str = "",
) -> Phase:
    print(f"  {name}", file=sys.stderr, flush=True)
    quiet = Pace(
        kind="cycle",
        urls=list(cluster.urls.values()),
        tokens=_QUIET,
        command="steady",
        per_s=options.cycles,
        seconds=options.seconds,
    )
    generators = [_drive(quiet)]
    if urls is not None:
        flood = Pace(
            kind="create",
            urls=urls,
            tokens=[tenant],
            command="flood",
            per_s=options.flood,
            seconds=options.seconds,
        )
        generators.append(_drive(flood))
    before = _cpu_seconds(cluster)
    seen = await asyncio.gather(*generators)
    used = _cpu_seconds(cluster) - before
    await asyncio.sleep(_SETTLE_S)
    return Phase(
        name=name,
        quiet=seen[0],
        flood=seen[1] if urls is not None else None,
        nodes_cpu_percent=round(100 * used / (quiet.seconds + quiet.warm_up_s)),
    )


async def _drive(pace: Pace) -> Measured:
    driver = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.paced",
        msgspec.json.encode(pace).decode(),
        stdout=asyncio.subprocess.PIPE,
        cwd=_ROOT,
    )
    out, _ = await driver.communicate()
    if driver.returncode:
        raise RuntimeError(f"the generator of {pace.command} ended with {driver.returncode}")
    return msgspec.json.decode(out, type=Measured)


@contextlib.asynccontextmanager
async def _floor() -> AsyncIterator[list[str]]:
    """Run servers that do nothing; yield their base URLs."""
    ports = free_ports(_FLOOR_SERVERS)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    servers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.floor", str(port), cwd=_ROOT
        )
        for port in ports
    ]
    try:
        async with RecordingClient({url: url for url in urls}) as client:
            for url in urls:

                async def answers(url: str = url) -> bool:
                    return (await client.call("GET", url, "/", "")).status == 200

                await until(answers, within_s=10, what=f"the do-nothing server {url}")
        yield urls
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            await server.wait()


def _cpu_seconds(cluster: LocalCluster) -> float:
    return sum(cpu_seconds(cluster.pid(node)) for node in cluster.nodes)


def _settings(*, per_minute: int, burst: int) -> dict[str, object]:
    tenants = [
        {"token": each, "subject": each, "tenant": each, "scopes": _SCOPES, "eventTypes": ["*"]}
        for each in (*_QUIET, _NOISY, _LIMITED)
    ]
    admin = {"token": ADMIN_TOKEN, "subject": "admin", "tenant": "admin", "scopes": ["codeq:admin"]}
    provider = {"kind": "static", "tokens": [admin, *tenants]}
    limit = {"producer": {"requestsPerMinute": per_minute, "burstSize": burst}}
    return {
        "auth": {"producer": [provider], "worker": [provider]},
        "rateLimit": {"tenants": {_LIMITED: limit}},
    }


def _table(machine: Mapping[str, object], phases: Sequence[Phase], command: str) -> str:
    changed = ", with uncommitted changes" if machine["changed"] else ""
    place = (
        f"{machine['cores']} cores ({machine['cpu']}), kernel {machine['kernel']},"
        f" Python {machine['python']}, fsync {machine['fsyncMs']} ms,"
        f" load average before {machine['loadBefore']:.2f}"
    )
    columns = (
        f"{'phase':<16} {'cycles/s':>8}  {'create p50/p99':>16} {'claim p50/p99':>16}"
        f" {'result p50/p99':>16} {'cycle p50/p99':>16} ms  failed"
        f"  {'flood: made/s':>13} {'429/s':>6} {'other/s':>7}  nodes CPU %"
    )
    lines = [f"commit {str(machine['commit'])[:10]}{changed}", place, command, "", columns]
    return "\n".join([*lines, *map(_line, phases)])


def _line(phase: Phase) -> str:
    quiet = phase.quiet
    took = " ".join(
        f"{_took(quiet.latencies_us.get(name, [])):>16}"
        for name in ("create", "claim", "result", "cycle")
    )
    head = f"{phase.name:<16} {quiet.cycles / quiet.seconds:>8.1f}  {took}    "
    head += f" {sum(quiet.failed.values()):>6}"
    if phase.flood is None:
        return f"{head}  {'':>13} {'':>6} {'':>7}  {phase.nodes_cpu_percent:>11}"
    flood = phase.flood
    refused = flood.failed.pop("create: 429", 0) / flood.seconds
    other = sum(flood.failed.values()) / flood.seconds
    return (
        f"{head}  {flood.cycles / flood.seconds:>13.0f} {refused:>6.0f} {other:>7.0f}"
        f"  {phase.nodes_cpu_percent:>11}"
    )


def _took(latencies_us: Sequence[int]) -> str:
    if not latencies_us:
        return "-"
    took = Percentiles.of([each / 1000 for each in latencies_us])
    return f"{took.p50:.1f}/{took.p99:.1f}"


if __name__ == "__main__":
    sys.exit(main())
