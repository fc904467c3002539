"""Checkout: a cluster of this project from any checkout, by its own `codeq-cluster dev`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from bench.machine import prefer
from bench.processes import stop, wait_until
from codeq_cluster.config import without_settings
from codeq_cluster.settings import environment
from tests.harness.http import fetch
from tests.harness.ports import free_port_base
from tests.harness.servers import Server


class Checkout:
    """Nodes that run the code of a checkout, with its environment and its own defaults."""

    protocol = "codeq"
    batch_max = 100
    producer_token = "dev-token"
    worker_token = "dev-token"
    syncs = "the log of a majority"

    def __init__(
        self, checkout: Path, directory: Path, *, shards: int, nodes: int = 3, nice: int = 0
    ) -> None:
        self.name = f"{commit_of(checkout)}/{nodes}x{shards}"
        self._program = checkout / ".venv" / "bin" / "codeq-cluster"
        if not self._program.exists():
            raise ValueError(f"{self._program} is not there: `make dev-tools` in {checkout}")
        self._directory = directory
        self._nodes, self._shards, self._nice = nodes, shards, nice
        self._starts = 0
        self._server: Server | None = None
        self._rows: list[dict[str, str | int]] = []

    @property
    def urls(self) -> list[str]:
        """Base URLs of the nodes."""
        return [str(row["url"]) for row in self._rows]

    @property
    def addresses(self) -> list[str]:
        """Base URLs of the nodes, like `urls`: every node takes every request."""
        return self.urls

    @property
    def pids(self) -> list[int]:
        """Processes of the nodes."""
        return [int(row["pid"]) for row in self._rows]

    def start(self) -> None:
        """Start a supervisor with its nodes and new data, and wait until all are ready."""
        self._starts += 1
        place = self._directory / str(self._starts)
        data, log = place / "data", place / "dev.log"
        command = [str(self._program), "dev", "--data", str(data)]
        command += ["--nodes", str(self._nodes), "--shards", str(self._shards)]
        command += ["--port-base", str(free_port_base(self._nodes))]
        self._server = Server(log)
        self._server.start(command, without_settings(environment()), cwd=place)
        wait_until(
            lambda: b"READY:" in log.read_bytes(),
            [self._server],
            logs=lambda: sorted(data.glob("*/node.log")),
        )
        self._rows = json.loads((data / "cluster.json").read_bytes())["nodes"]
        prefer(self.pids, nice=self._nice)

    def stop(self) -> None:
        """Stop the supervisor, which stops its nodes; safe to call again."""
        stop([self._server] if self._server else [])
        self._server, self._rows = None, []

    def leader(self, queue: str) -> str:
        """Return the node that leads the first shard; every queue has tasks on it."""
        del queue
        return self.leaders()[0]

    def kill(self, address: str) -> None:
        """Kill a node with SIGKILL."""
        os.kill(self.pids[self.urls.index(address)], signal.SIGKILL)
        self._rows = [row for row in self._rows if row["url"] != address]

    def metrics(self) -> list[str]:
        """Return the metrics of every node, in the Prometheus text format."""
        return [self._asked(url, "/metrics").decode() for url in self.urls]

    def leaders(self) -> dict[int, str]:
        """Return the URL of the node that leads each shard."""
        found: dict[int, tuple[int, str]] = {}
        for url in self.urls:
            status = json.loads(self._asked(url, "/v1/codeq/raft/status"))
            for group in status["groups"]:
                shard, term = group["shardIdx"], group["term"]
                if group["isLeader"] and term > found.get(shard, (-1, ""))[0]:
                    found[shard] = (term, url)
        return {shard: url for shard, (_, url) in found.items()}

    def _asked(self, url: str, path: str) -> bytes:
        return fetch("GET", url, path, token=self.producer_token).body


def commit_of(checkout: Path) -> str:
    """Return a checkout's short commit, with `+` if files differ from it."""
    asked = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.strip() or checkout.name
