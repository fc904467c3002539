"""Frameworks: one application of each on this broker, on Redis, RabbitMQ and PostgreSQL.

    python -m bench.frameworks [--frameworks celery django dramatiq taskiq]
        [--systems ours redis rabbitmq postgresql] [--tasks 5000] [--rounds 3]

One process sends all tasks, and then a worker of two processes runs them. Ours and RabbitMQ are
three nodes, RabbitMQ with a quorum queue and confirmed publishes; Redis is one server that syncs
its log once a second, PostgreSQL one that syncs each commit. A system is left out, with what
installs it, if it is not there, and for a framework that has nothing for it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.checkout import Checkout
from bench.machine import cpu_seconds_of_family, describe, scratch
from bench.peers.one_server import OneServer
from bench.peers.postgresql import PROGRAMS as POSTGRESQL
from bench.peers.postgresql import PostgreSQL
from bench.peers.rabbitmq_cluster import PROGRAMS as RABBITMQ
from bench.peers.rabbitmq_cluster import RabbitCluster
from bench.processes import listens, stop, wait_until
from codeq_cluster.settings import environment
from tests.harness.servers import Server

_ROOT = Path(__file__).parent.parent


class _Worker(NamedTuple):
    """What starts a worker of two processes for an application, itself or in copies."""

    words: Sequence[str]
    copies: int = 1


_FRAMEWORKS: Mapping[str, _Worker] = {
    "celery": _Worker(("celery", "-A", "{}", "worker", "-c", "2", "-l", "WARNING")),
    "django": _Worker(("{}", "worker"), copies=2),
    "dramatiq": _Worker(("dramatiq", "{}", "-p", "2")),
    "taskiq": _Worker(("taskiq", "worker", "{}:broker", "-w", "2", "--log-level", "WARNING")),
}
_MODULES = (
    "django_tasks_db",
    "django_tasks_rq",
    "pika",
    "redis",
    "taskiq_aio_pika",
    "taskiq_redis",
)
# Rows that the table does not have, with the reason.
_WITHOUT: Mapping[tuple[str, str], str] = {
    ("django", "rabbitmq"): "Django's Tasks have no backend for it",
    **{
        (framework, "postgresql"): "a database is compared for Django's Tasks alone"
        for framework in ("celery", "dramatiq", "taskiq")
    },
}
_WORK_WITHIN_S = 600.0
_POLL_S = 0.01
_WARM = 10  # Work is measured after a tenth: the worker's start is none.


class System(Protocol):
    """A broker that can be started and stopped."""

    @property
    def pids(self) -> Sequence[int]:
        """Processes of the broker."""

    @property
    def url(self) -> str:
        """The URL for applications."""

    def start(self) -> None:
        """Start it, and return once it serves."""

    def stop(self) -> None:
        """Stop it."""


class _Ours(Checkout):
    @property
    def url(self) -> str:
        hosts = ",".join(url.removeprefix("http://") for url in self.urls)
        return f"codeq://{self.producer_token}@{hosts}"


class _Rabbit(RabbitCluster):
    @property
    def url(self) -> str:
        """All nodes, between which a client chooses that can."""
        return ";".join(f"{url}%2F" for url in self.urls)


class _Redis(OneServer):
    """One Redis server, with an append-only file."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        directory = self._emptied()
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self._port)]
        command += ["--appendonly", "yes", "--save", "", "--dir", str(directory)]
        self._server.start(command, environment(), cwd=directory)
        wait_until(lambda: listens(self._port), [self._server])


_SYSTEMS: Mapping[str, Callable[[Path], System]] = {
    "ours": lambda directory: _Ours(_ROOT, directory, shards=4),
    "redis": _Redis,
    "rabbitmq": _Rabbit,
    "postgresql": PostgreSQL,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was measured: medians of the rounds."""
    missing = _missing()
    parser = argparse.ArgumentParser(prog="python -m bench.frameworks", description=__doc__)
    parser.add_argument("--frameworks", nargs="+", choices=_FRAMEWORKS, default=[*_FRAMEWORKS])
    parser.add_argument("--systems", nargs="+", choices=_SYSTEMS)
    parser.add_argument("--tasks", type=int, default=5000, help="of each round, 10 or more")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    for name in options.systems or ():
        if name in missing:
            parser.error(f"{name}: {missing[name]}")
    names = options.systems or [name for name in _SYSTEMS if name not in missing]
    for name, reason in missing.items():
        print(f"without {name}: {reason}", file=sys.stderr)
    rows = [(framework, name) for framework in options.frameworks for name in names]
    for framework, name in filter(_WITHOUT.__contains__, rows):
        print(f"without {framework} on {name}: {_WITHOUT[framework, name]}", file=sys.stderr)
    rows = [row for row in rows if row not in _WITHOUT]
    if not rows:
        parser.error("nothing is left to measure: name other --systems, or none")
    measured: dict[tuple[str, str], list[tuple[float, ...]]] = {row: [] for row in rows}
    with scratch(None) as directory:
        print(describe(directory))
        systems = {name: _SYSTEMS[name](directory / name) for name in names}
        for turn in range(options.rounds):
            for framework, name in rows:
                journal, system = directory / f"{framework}-{name}-{turn}", systems[name]
                try:
                    system.start()
                    found = _round(framework, system, journal, options.tasks)
                    measured[framework, name].append(found)
                finally:
                    system.stop()
    print(f"{'':20}{'sent/s':>9}{'CPU ms':>9}{'run/s':>9}{'CPU ms':>9}")
    for (framework, name), rounds in measured.items():
        sent, sent_ms, ran, ran_ms = map(statistics.median, zip(*rounds, strict=True))
        row = f"{sent:>9,.0f}{sent_ms:>9.2f}{ran:>9,.0f}{ran_ms:>9.2f}"
        print(f"{framework:10}{name:10}{row}", flush=True)
    return 0


def _missing() -> Mapping[str, str]:
    """Return why a system cannot be measured here, by its name."""
    found = {}
    if shutil.which("redis-server") is None:
        found["redis"] = "apt-get install redis-server"
    if not RABBITMQ.exists():
        found["rabbitmq"] = "apt-get install rabbitmq-server"
    if not POSTGRESQL.exists():
        found["postgresql"] = "apt-get install postgresql-15"
    if any(find_spec(module) is None for module in _MODULES):
        found |= dict.fromkeys(_SYSTEMS.keys() - {"ours"}, "pip install -e '.[bench]'")
    return found


def _round(
    framework: str, system: System, journal: Path, tasks: int
) -> tuple[float, float, float, float]:
    """Send and run tasks; return the rate and the broker's CPU in ms a task, of each."""
    journal.touch()
    variables = {**environment(), "BROKER_URL": system.url}
    application = f"bench.{framework}_application"

    def cpu_s() -> float:
        return sum(map(cpu_seconds_of_family, system.pids))

    def program(*words: str) -> list[str]:
        return [sys.executable, "-m", *words]

    def send(count: int) -> float:
        """Return the seconds that it took, without the start of the process."""
        command = program(application, str(journal), str(count))
        done = subprocess.run(
            command, env=variables, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True
        )
        return float(done.stdout)

    send(1)  # Its queue exists from then on.
    used_s = cpu_s()
    took_s = send(tasks)
    sent = _rates(tasks, took_s, cpu_s() - used_s)
    worker = _FRAMEWORKS[framework]
    words = [word.format(application) for word in worker.words]
    servers = [Server(journal.with_suffix(f".{copy}.log")) for copy in range(worker.copies)]
    try:
        for server in servers:
            server.start(program(*words), variables, cwd=_ROOT)
        warm = tasks // _WARM
        _until_ran(journal, warm, servers)
        began_s, used_s, ran = time.monotonic(), cpu_s(), journal.stat().st_size
        _until_ran(journal, tasks, servers)
        return *sent, *_rates(tasks - ran, time.monotonic() - began_s, cpu_s() - used_s)
    finally:
        stop(servers)


def _rates(tasks: int, seconds: float, cpu_s: float) -> tuple[float, float]:
    return tasks / seconds, 1000 * cpu_s / tasks


def _until_ran(journal: Path, tasks: int, worker: Sequence[Server]) -> None:
    until_s = time.monotonic() + _WORK_WITHIN_S
    while journal.stat().st_size < tasks:
        if not all(each.running for each in worker) or time.monotonic() > until_s:
            ends = "\n".join(each.log_tail() for each in worker)
            raise RuntimeError(f"the worker did not run {tasks} tasks:\n{ends}")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main())
