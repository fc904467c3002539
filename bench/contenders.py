"""Contenders: clusters of three processes that answer the same API, started each in its own way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Protocol
from urllib.error import URLError
from urllib.request import Request, urlopen

from bench.machine import prefer
from codeq_cluster.config import without_settings
from codeq_cluster.settings import environment
from codeq_cluster.testing.cluster import free_ports

_TOKEN = "dev-token"
_READY_WITHIN_S = 60.0
_STOP_WITHIN_S = 30.0
_POLL_S = 0.05
_NODES = 3


class Contender(Protocol):
    """A cluster that can be started, loaded and stopped.

    Attributes:
        name: For tables.
        batch_max: Tasks a batch request may carry.
        producer_token: Of a producer who is an administrator too.
    """

    name: str
    batch_max: int
    producer_token: str
    worker_token: str

    @property
    def urls(self) -> list[str]:
        """Base URLs of the nodes."""

    @property
    def pids(self) -> list[int]:
        """Processes of the nodes."""

    def start(self) -> None:
        """Start, and return when it serves.

        Raises:
            RuntimeError: It does not; the text has the end of a log.
        """

    def stop(self) -> None:
        """End every process; harmless when none runs."""


def contender(spec: str, directory: Path, *, nice: int) -> Contender:
    """Return the contender that a word names: PATH or PATH:SHARDS.

    Args:
        spec: A checkout with its own `.venv`, or the server binary of the original; 4 shards
            where none are named.
        directory: For its data and logs; may not exist yet.
        nice: Priority of its processes.

    Raises:
        ValueError: There is no such thing.
    """
    path, _, shards_named = spec.partition(":")
    place, shards = Path(path).resolve(), int(shards_named or 4)
    if place.is_dir():
        return Checkout(place, directory, shards=shards, nice=nice)
    if place.is_file():
        return Original(place, directory, shards=shards, nice=nice)
    raise ValueError(f"{spec}: neither a checkout nor the original's server binary")


class Checkout:
    """A checkout of this project: `codeq-cluster dev` out of its own environment."""

    batch_max = 100
    producer_token = _TOKEN
    worker_token = _TOKEN

    def __init__(
        self, checkout: Path, directory: Path, *, shards: int, nodes: int = _NODES, nice: int = 0
    ) -> None:
        self.name = f"{commit_of(checkout)}/{nodes}x{shards}"
        self._program = checkout / ".venv" / "bin" / "codeq-cluster"
        if not self._program.exists():
            raise ValueError(f"{self._program} is not there: `make dev-tools` in {checkout}")
        self._directory = directory
        self._nodes, self._shards, self._nice = nodes, shards, nice
        self._process: subprocess.Popen[bytes] | None = None
        self._rows: list[dict[str, str | int]] = []

    @property
    def urls(self) -> list[str]:
        """Base URLs of the nodes."""
        return [str(row["url"]) for row in self._rows]

    @property
    def pids(self) -> list[int]:
        """Processes of the nodes."""
        return [int(row["pid"]) for row in self._rows]

    def start(self) -> None:
        """Start a supervisor with its nodes, and wait until all are ready."""
        self._directory.mkdir(parents=True, exist_ok=True)
        data, log = self._directory / "data", self._directory / "dev.log"
        command = [str(self._program), "dev", "--data", str(data)]
        command += ["--nodes", str(self._nodes), "--shards", str(self._shards)]
        command += ["--port-base", str(_port_base(self._nodes))]
        with log.open("ab") as output:
            self._process = _spawn(command, output, without_settings(environment()))
        _until(
            lambda: b"READY:" in log.read_bytes(),
            running=lambda: _runs(self._process),
            logs=lambda: [log, *sorted(data.glob("*/node.log"))],
        )
        self._rows = json.loads((data / "cluster.json").read_bytes())["nodes"]
        prefer(self.pids, nice=self._nice)

    def stop(self) -> None:
        """Stop the supervisor, which stops its nodes."""
        _stop([self._process] if self._process else [])
        self._process, self._rows = None, []

    def metrics(self) -> list[str]:
        """Return the metrics of every node, in the Prometheus text format."""
        return [_get(f"{url}/metrics").decode() for url in self.urls]

    def leaders(self) -> dict[int, str]:
        """Return the URL of the node that leads each shard."""
        found: dict[int, tuple[int, str]] = {}
        for url in self.urls:
            for group in json.loads(_get(f"{url}/v1/codeq/raft/status"))["groups"]:
                shard, term = group["shardIdx"], group["term"]
                if group["isLeader"] and term > found.get(shard, (-1, ""))[0]:
                    found[shard] = (term, url)
        return {shard: url for shard, (_, url) in found.items()}


class Original:
    """The original, codeQ in Go: three processes with its own Raft; it does not sync its log.

    A node that does not lead answers 307, so the load goes to the one that leads every shard, as
    from clients that remember where they were sent.
    """

    # Its batch routes take no more.
    batch_max = 10
    producer_token = _TOKEN
    worker_token = _TOKEN

    def __init__(self, binary: Path, directory: Path, *, shards: int, nice: int = 0) -> None:
        self.name = f"original/{_NODES}x{shards}"
        self._binary, self._directory = binary, directory
        self._shards, self._nice = shards, nice
        self._processes: list[subprocess.Popen[bytes]] = []
        self._urls: list[str] = []

    @property
    def urls(self) -> list[str]:
        """Base URL of the node that leads."""
        return self._urls

    @property
    def pids(self) -> list[int]:
        """Processes of the nodes."""
        return [process.pid for process in self._processes]

    def start(self) -> None:
        """Start three nodes, and wait until one leads every shard."""
        ports = free_ports(4 * _NODES)
        http, raft = ports[:_NODES], ports[_NODES : 2 * _NODES]
        streams = ports[2 * _NODES :]
        ids = [f"node-{n}" for n in range(_NODES)]
        urls = [f"http://127.0.0.1:{port}" for port in http]
        logs = []
        for n, node in enumerate(ids):
            place = self._directory / node
            place.mkdir(parents=True)
            logs.append(place / "log")
            settings = {
                **_ORIGINAL,
                "PORT": str(http[n]),
                "PERSISTENCE_CONFIG": json.dumps(
                    {"path": str(place / "data"), "numShards": self._shards}
                ),
                "RAFT_SELF_ID": node,
                "RAFT_BIND_ADDR": f"127.0.0.1:{raft[n]}",
                "RAFT_BOOTSTRAP": "true" if n == 0 else "false",
                "RAFT_PEERS": _pairs(ids, [f"127.0.0.1:{port}" for port in raft]),
                "RAFT_PEER_HTTP_ADDRS": _pairs(ids, urls),
                "WORKER_STREAM_ADDR": f"127.0.0.1:{streams[2 * n]}",
                "PRODUCER_STREAM_ADDR": f"127.0.0.1:{streams[2 * n + 1]}",
            }
            with logs[-1].open("ab") as output:
                self._processes.append(
                    _spawn([str(self._binary)], output, {**environment(), **settings})
                )
        prefer(self.pids, nice=self._nice)
        _until(
            lambda: bool(self._led_by(urls)),
            running=lambda: all(map(_runs, self._processes)),
            logs=lambda: logs,
        )
        self._urls = self._led_by(urls)

    def _led_by(self, urls: Sequence[str]) -> list[str]:
        # Ids are drawn, and a shard from each id: so many creates come to all of a few shards.
        tries = 10 * self._shards
        return [url for url in urls if all(_creates(url) for _ in range(tries))]

    def stop(self) -> None:
        """End every node."""
        _stop(self._processes)
        self._processes, self._urls = [], []


_ORIGINAL = {
    "ENV": "dev",
    "LOG_LEVEL": "error",
    "GIN_MODE": "release",
    "PERSISTENCE_PROVIDER": "pebble",
    "RAFT_ENABLED": "true",
    "RAFT_MUX_ENABLED": "true",
    "PRODUCER_AUTH_PROVIDER": "static",
    "PRODUCER_AUTH_CONFIG": json.dumps(
        {"token": _TOKEN, "subject": "p", "raw": {"role": "ADMIN", "tenantId": "bench"}}
    ),
    "WORKER_AUTH_PROVIDER": "static",
    "WORKER_AUTH_CONFIG": json.dumps(
        {
            "token": _TOKEN,
            "subject": "w",
            "scopes": [
                *("codeq:claim", "codeq:heartbeat", "codeq:abandon", "codeq:nack"),
                *("codeq:result", "codeq:subscribe"),
            ],
            "eventTypes": ["*"],
            "raw": {"tenantId": "bench"},
        }
    ),
    "ALLOW_PRODUCER_AS_WORKER": "true",
}


def commit_of(checkout: Path) -> str:
    """Return a checkout's commit, short, with `+` when files differ from it."""
    asked = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.strip() or checkout.name


def until_serving(url: str) -> None:
    """Wait until somebody answers there at all.

    Raises:
        RuntimeError: Nobody does.
    """

    def answers() -> bool:
        try:
            _get(url)
        except OSError:
            return False
        return True

    _until(answers, running=lambda: True, logs=list)


def _pairs(ids: Sequence[str], values: Sequence[str]) -> str:
    return ",".join(f"{name}={value}" for name, value in zip(ids, values, strict=True))


def _port_base(nodes: int) -> int:
    """Return the first of `nodes` free ports in a row, whose link ports are free as well."""
    # `dev` puts the link ports ten thousand above; 40,000 and up is the kernel's to hand out, so
    # a collision there is found when the nodes start, and is rare.
    while True:
        base = free_ports(1)[0]
        if all(_free(base + n) and _free(base + 10_000 + n) for n in range(nodes)):
            return base


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _spawn(
    command: Sequence[str], output: IO[bytes], settings: dict[str, str]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=settings,
        # A Ctrl-C at the terminal is for the bench, which then stops what it started.
        start_new_session=True,
    )


def _runs(process: subprocess.Popen[bytes] | None) -> bool:
    return process is not None and process.poll() is None


def _until(
    holds: Callable[[], bool], *, running: Callable[[], bool], logs: Callable[[], Sequence[Path]]
) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while not holds():
        if not running() or time.monotonic() > deadline:
            ends = [f"{log}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs()]
            raise RuntimeError("the cluster did not start\n" + "\n".join(ends))
        time.sleep(_POLL_S)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _get(url: str) -> bytes:
    asked = Request(url, headers={"Authorization": f"Bearer {_TOKEN}"})
    with urlopen(asked, timeout=5) as answer:
        return answer.read()


def _creates(url: str) -> bool:
    body = b'{"command":"ready","payload":{}}'
    headers = {"Authorization": f"Bearer {_TOKEN}", "Content-Type": "application/json"}
    try:
        with urlopen(Request(f"{url}/v1/codeq/tasks", body, headers), timeout=5) as answer:
            return answer.status < 300
    except (URLError, OSError):
        return False
