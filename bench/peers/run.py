"""Run: the same loads on every system, the systems in turn, several rounds."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from bench.checkout import Checkout
from bench.contenders import Contender
from bench.generator import generate
from bench.job import LOADS, Job
from bench.machine import describe, prefer, rss_mib, scratch
from bench.original import Original
from bench.peers.clients import fresh_queue
from bench.peers.failover import failover
from bench.peers.lanes import first_created
from bench.peers.nats_cluster import PROGRAM as NATS
from bench.peers.nats_cluster import NatsCluster
from bench.peers.plot import plot
from bench.peers.rabbitmq_cluster import PROGRAMS as RABBITMQ
from bench.peers.rabbitmq_cluster import RabbitCluster
from bench.peers.report import Report, Round, System
from bench.peers.syncs import syncs_per_task
from bench.peers.table import placed, table
from bench.run import RESULTS
from codeq_cluster.settings import environment
from docs.tools.comparison import compared

_ROOT = Path(__file__).parent.parent.parent
DOCUMENT = _ROOT / "docs" / "performance.md"
README = _ROOT / "README.md"
DRAWING = _ROOT / "docs" / "peers.svg"
# The server binary of the original, built from its public source.
REFERENCE = "CODEQ_REFERENCE"
_SETTLED_S = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every available system, print the table, keep the figures."""
    options = _options(arguments)
    if options.stored is not None:
        report = msgspec.json.decode(options.stored.read_bytes(), type=Report)
    else:
        # SIGTERM then unwinds like Ctrl-C, so that every started process is stopped.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        report = _measured(options)
        RESULTS.mkdir(exist_ok=True)
        target = RESULTS / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-peers.json"
        target.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
        print(target, file=sys.stderr)
    print(table(report))
    if options.write:
        DOCUMENT.write_text(placed(DOCUMENT.read_text(), table(report)))
        README.write_text(compared(README.read_text(), DOCUMENT.read_text()))
        DRAWING.write_text(plot(report))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--systems", nargs="+", choices=_SYSTEMS, metavar="SYSTEM")
    parser.add_argument("--only", nargs="+", choices=LOADS, default=list(LOADS), metavar="LOAD")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, each load")
    parser.add_argument("--no-failover", action="store_true", help="kill nobody")
    parser.add_argument("--nice", type=int, default=0, help="priority of all that is measured")
    parser.add_argument("--directory", type=Path, help="where the data goes; a real disk")
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"put table and plot into {DOCUMENT.relative_to(_ROOT)}",
    )
    parser.add_argument("--stored", type=Path, help="measure nothing: a report of an earlier run")
    options = parser.parse_args(arguments)
    missing = _missing()
    asked = options.systems or [name for name in _SYSTEMS if name not in missing]
    if options.stored is None:
        for name in options.systems or ():
            if name in missing:
                parser.error(f"{name}: {missing[name]}")
        for name, reason in missing.items():
            if name not in asked:
                print(f"without {name}: {reason}", file=sys.stderr)
    options.systems = asked
    return options


def _missing() -> Mapping[str, str]:
    """Return why a system cannot be measured here, by its name."""
    found = {}
    if not environment().get(REFERENCE):
        reason = f"{REFERENCE} does not name the original's server binary"
        found |= {"original-4": reason, "original-1": reason}
    servers = {"nats": (Path(NATS), "nats-server"), "rabbitmq": (RABBITMQ, "rabbitmq-server")}
    for name, (program, package) in servers.items():
        if not program.exists():
            found[name] = f"apt-get install {package}"
    for name, library in (("nats", "nats"), ("rabbitmq", "aio_pika")):
        if find_spec(library) is None:
            found.setdefault(name, "pip install -e '.[bench]', as `make bench-peers` does")
    return found


def _ours(shards: int) -> Callable[[Path, int], Contender]:
    return lambda directory, nice: Checkout(_ROOT, directory, shards=shards, nice=nice)


def _original(shards: int) -> Callable[[Path, int], Contender]:
    def made(directory: Path, nice: int) -> Contender:
        binary = Path(environment()[REFERENCE]).resolve()
        return Original(binary, directory, shards=shards, nice=nice)

    return made


_SYSTEMS: Mapping[str, tuple[str, Callable[[Path, int], Contender]]] = {
    "ours-4": ("codeq-cluster, 4 shards", _ours(4)),
    "ours-1": ("codeq-cluster, 1 shard", _ours(1)),
    "original-4": ("codeQ (Go), 4 groups", _original(4)),
    "original-1": ("codeQ (Go), 1 group", _original(1)),
    "nats": ("NATS JetStream, R3", lambda directory, nice: NatsCluster(directory, nice=nice)),
    "rabbitmq": (
        "RabbitMQ, quorum queue",
        lambda directory, nice: RabbitCluster(directory, nice=nice),
    ),
}


def _measured(options: argparse.Namespace) -> Report:
    prefer([os.getpid()], nice=options.nice)
    with scratch(options.directory) as directory:
        machine = describe(directory)
        contenders = []
        systems = []
        for name in options.systems:
            title, made = _SYSTEMS[name]
            contender = made(directory / name, options.nice)
            contenders.append(contender)
            systems.append(System(name=title, syncs=contender.syncs, batch=contender.batch_max))
        for turn in range(options.rounds):
            for system, contender in zip(systems, contenders, strict=True):
                print(f"round {turn + 1}: {system.name}", file=sys.stderr, flush=True)
                try:
                    _round(system, contender, options, last=turn + 1 == options.rounds)
                finally:
                    contender.stop()
    return Report(
        machine=machine,
        command=" ".join(["python", "-m", "bench.peers", *sys.argv[1:]]),
        when=time.strftime("%Y-%m-%d", time.gmtime()),
        systems=systems,
    )


def _round(
    system: System, contender: Contender, options: argparse.Namespace, *, last: bool
) -> None:
    begun_s = time.monotonic()
    contender.start()
    asyncio.run(first_created(contender.protocol, contender.addresses, fresh_queue()))
    took_s = time.monotonic() - begun_s
    time.sleep(_SETTLED_S)
    measured = Round(first_create_s=took_s, rss_idle_mib=_rss(contender))
    for load in options.only:
        sample = generate(_job(contender, *LOADS[load], seconds=options.seconds))
        measured.samples[load] = sample
        print(
            f"  {load:<10} {sample.per_s:>7,.0f}/s {sample.cpu_ms():.2f} ms CPU,"
            f" foreign {sample.foreign_cores:.2f} cores {sample.failed or ''}",
            file=sys.stderr,
            flush=True,
        )
    measured.rss_loaded_mib = _rss(contender)
    if last:
        system.syncs_a_cycle = syncs_per_task(
            contender.pids, _job(contender, "cycle", 1, seconds=options.seconds)
        )
    if not options.no_failover:
        measured.failover = asyncio.run(failover(contender))
        print(f"  {measured.failover}", file=sys.stderr, flush=True)
    system.rounds.append(measured)


def _job(contender: Contender, kind: str, lanes: int, *, seconds: float) -> Job:
    return Job(
        kind=kind,
        protocol=contender.protocol,
        urls=contender.urls,
        producer_token=contender.producer_token,
        worker_token=contender.worker_token,
        command=fresh_queue(),
        lanes=lanes,
        seconds=seconds,
        batch=contender.batch_max,
        watched={"nodes": contender.pids},
    )


def _rss(contender: Contender) -> float:
    return statistics.mean(map(rss_mib, contender.pids))
