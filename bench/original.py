"""Original: a cluster of three processes of the original codeQ, in Go with its own Raft."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bench.machine import prefer
from bench.processes import stop, wait_until
from codeq_cluster.settings import environment
from codeq_cluster.testing.ports import free_ports
from tests.harness.http import fetch
from tests.harness.servers import Server

_TOKEN = "dev-token"
_NODES = 3
_SETTINGS = {
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


class Original:
    """The original's nodes.

    A node that does not lead answers 307. So the load goes straight to the node that leads every
    shard, as from clients that remember the redirect.
    """

    protocol = "codeq"
    # Its batch routes take at most this many tasks.
    batch_max = 10
    producer_token = _TOKEN
    worker_token = _TOKEN
    syncs = "nothing"

    def __init__(self, binary: Path, directory: Path, *, shards: int, nice: int = 0) -> None:
        self.name = f"original/{_NODES}x{shards}"
        self._binary, self._directory = binary, directory
        self._shards, self._nice = shards, nice
        self._nodes: dict[str, Server] = {}
        self._leader = ""

    @property
    def urls(self) -> list[str]:
        """Base URL of the node that leads."""
        return [self._leader]

    @property
    def addresses(self) -> list[str]:
        """Base URLs of all nodes."""
        return list(self._nodes)

    @property
    def pids(self) -> list[int]:
        """Processes of the nodes."""
        return [server.pid for server in self._nodes.values()]

    def start(self) -> None:
        """Start three nodes with new data, and wait until one leads every shard."""
        ports = free_ports(4 * _NODES)
        http, raft, streams = ports[:_NODES], ports[_NODES : 2 * _NODES], ports[2 * _NODES :]
        ids = [f"node-{n}" for n in range(_NODES)]
        urls = [f"http://127.0.0.1:{port}" for port in http]
        peers = [f"127.0.0.1:{port}" for port in raft]
        logs = [self._directory / str(http[0]) / node / "log" for node in ids]
        for n, node in enumerate(ids):
            data = {"path": str(logs[n].parent / "data"), "numShards": self._shards}
            settings = {
                **environment(),
                **_SETTINGS,
                "PORT": str(http[n]),
                "PERSISTENCE_CONFIG": json.dumps(data),
                "RAFT_SELF_ID": node,
                "RAFT_BIND_ADDR": peers[n],
                "RAFT_BOOTSTRAP": "true" if n == 0 else "false",
                "RAFT_PEERS": _pairs(ids, peers),
                "RAFT_PEER_HTTP_ADDRS": _pairs(ids, urls),
                "WORKER_STREAM_ADDR": f"127.0.0.1:{streams[2 * n]}",
                "PRODUCER_STREAM_ADDR": f"127.0.0.1:{streams[2 * n + 1]}",
            }
            self._nodes[urls[n]] = Server(logs[n])
            self._nodes[urls[n]].start([str(self._binary)], settings, cwd=logs[n].parent)
        prefer(self.pids, nice=self._nice)
        wait_until(self._find_leader, list(self._nodes.values()))

    def stop(self) -> None:
        """Stop every node; safe to call again."""
        stop(self._nodes.values())
        self._nodes, self._leader = {}, ""

    def leader(self, queue: str) -> str:
        """Return the node that leads every shard."""
        del queue
        return self._leader

    def kill(self, address: str) -> None:
        """Kill a node with SIGKILL."""
        self._nodes.pop(address).kill()

    def _find_leader(self) -> bool:
        # A task's random id decides its shard, so this many creates almost surely reach every
        # shard.
        tries = 10 * self._shards
        for url in self._nodes:
            if all(_creates(url) for _ in range(tries)):
                self._leader = url
                return True
        return False


def _pairs(ids: Sequence[str], values: Sequence[str]) -> str:
    return ",".join(f"{name}={value}" for name, value in zip(ids, values, strict=True))


def _creates(url: str) -> bool:
    body = b'{"command":"ready","payload":{}}'
    try:
        return fetch("POST", url, "/v1/codeq/tasks", token=_TOKEN, body=body).status < 300
    except ConnectionError:
        return False
