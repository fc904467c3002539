"""NATS: three servers on loopback with one replicated JetStream work queue."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.machine import prefer
from bench.processes import stop, wait_until
from codeq_cluster.settings import environment
from codeq_cluster.testing.ports import free_ports
from tests.harness.http import fetch
from tests.harness.servers import Server

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
        self._nodes: dict[str, Server] = {}
        self._names: dict[str, str] = {}
        self._monitors: dict[str, str] = {}

    @property
    def urls(self) -> list[str]:
        """Addresses for clients."""
        return list(self._nodes)

    @property
    def addresses(self) -> list[str]:
        """Addresses of all servers, like `urls`: every server takes every request."""
        return self.urls

    @property
    def pids(self) -> list[int]:
        """Processes of the servers."""
        return [server.pid for server in self._nodes.values()]

    def start(self) -> None:
        """Start three servers with new data, and wait until they have elected a leader."""
        self._starts += 1
        place = self._directory / str(self._starts)
        ports = free_ports(3 * _NODES)
        clients, monitors, routes = ports[:_NODES], ports[_NODES:-_NODES], ports[-_NODES:]
        joined = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
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
            self._nodes[url] = Server(here / "log")
            self._nodes[url].start([PROGRAM, "-c", str(file)], environment(), cwd=here)
            self._names[name] = url
            self._monitors[url] = f"http://127.0.0.1:{monitors[n]}"
        prefer(self.pids, nice=self._nice)
        wait_until(self._formed, list(self._nodes.values()))

    def stop(self) -> None:
        """Stop every server; safe to call again."""
        stop(self._nodes.values())
        self._nodes, self._names, self._monitors = {}, {}, {}

    def leader(self, queue: str) -> str:
        """Return the server that leads the queue's stream."""
        monitor = next(iter(self._monitors.values()))
        told = fetch("GET", monitor, "/jsz?accounts=true&streams=true").json
        streams = {one["name"]: one for one in told["account_details"][0]["stream_detail"]}
        return self._names[streams[queue]["cluster"]["leader"]]

    def kill(self, address: str) -> None:
        """Kill a server with SIGKILL."""
        self._nodes.pop(address).kill()

    def _formed(self) -> bool:
        try:
            for monitor in self._monitors.values():
                meta = fetch("GET", monitor, "/jsz").json.get("meta_cluster", {})
                if not meta.get("leader") or meta.get("cluster_size") != _NODES:
                    return False
        except ConnectionError:
            return False
        return True
