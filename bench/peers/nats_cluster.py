"""NATS: three servers on loopback with one replicated JetStream work queue."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.error import URLError

from bench.machine import prefer
from bench.processes import get, runs, spawn, stop, wait_until
from codeq_cluster.settings import environment
from codeq_cluster.testing.cluster import free_ports

_NODES = 3
# The Debian package installs it outside of most users' PATH.
PROGRAM = shutil.which("nats-server") or "/usr/sbin/nats-server"

_CONFIGURATION = """\
server_name: {name}
listen: 127.0.0.1:{client}
http: 127.0.0.1:{monitor}
jetstream {{ store_dir: {store}, max_mem: 512MB, max_file: 8GB }}
cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{routes}] }}
"""


class NatsCluster:
    """NATS JetStream with its defaults; streams have three replicas in files."""

    protocol = "nats"
    batch_max = 100
    producer_token = ""
    worker_token = ""
    name = "NATS JetStream R3"
    syncs = "nothing; files every two minutes"

    def __init__(self, directory: Path, *, nice: int = 0) -> None:
        self._directory, self._nice = directory, nice
        self._starts = 0
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._names: dict[str, str] = {}
        self._monitors: dict[str, str] = {}

    @property
    def urls(self) -> list[str]:
        """Addresses for clients."""
        return list(self._nodes)

    @property
    def addresses(self) -> list[str]:
        """The same: every server takes every request."""
        return self.urls

    @property
    def pids(self) -> list[int]:
        """Processes of the servers."""
        return [process.pid for process in self._nodes.values()]

    def start(self) -> None:
        """Start three servers with new data, and wait until they have elected a leader."""
        self._starts += 1
        place = self._directory / str(self._starts)
        ports = free_ports(3 * _NODES)
        clients, monitors, routes = ports[:_NODES], ports[_NODES:-_NODES], ports[-_NODES:]
        joined = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        logs = []
        for n in range(_NODES):
            name = f"n{n}"
            here = place / name
            here.mkdir(parents=True)
            file = here / "nats.conf"
            file.write_text(
                _CONFIGURATION.format(
                    name=name,
                    client=clients[n],
                    monitor=monitors[n],
                    route=routes[n],
                    routes=joined,
                    store=here / "store",
                )
            )
            url = f"nats://127.0.0.1:{clients[n]}"
            logs.append(here / "log")
            self._nodes[url] = spawn([PROGRAM, "-c", str(file)], logs[-1], environment())
            self._names[name] = url
            self._monitors[url] = f"http://127.0.0.1:{monitors[n]}"
        prefer(self.pids, nice=self._nice)
        wait_until(
            self._formed,
            running=lambda: all(map(runs, self._nodes.values())),
            logs=lambda: logs,
        )

    def stop(self) -> None:
        """Stop every server; safe to call again."""
        stop(list(self._nodes.values()))
        self._nodes, self._names, self._monitors = {}, {}, {}

    def leader(self, queue: str) -> str:
        """Return the server that leads the queue's stream."""
        monitor = next(iter(self._monitors.values()))
        told = json.loads(get(f"{monitor}/jsz?accounts=true&streams=true"))
        streams = {one["name"]: one for one in told["account_details"][0]["stream_detail"]}
        return self._names[streams[queue]["cluster"]["leader"]]

    def kill(self, address: str) -> None:
        """Kill a server with SIGKILL."""
        process = self._nodes.pop(address)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def _formed(self) -> bool:
        try:
            for monitor in self._monitors.values():
                meta = json.loads(get(f"{monitor}/jsz")).get("meta_cluster", {})
                if not meta.get("leader") or meta.get("cluster_size") != _NODES:
                    return False
        except (URLError, OSError):
            return False
        return True
