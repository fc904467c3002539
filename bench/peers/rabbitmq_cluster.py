"""RabbitMQ: three nodes on loopback, with their own home, ports and epmd."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from pathlib import Path

from bench.machine import prefer
from bench.processes import listens, stop, wait_until
from codeq_cluster.settings import environment
from codeq_cluster.testing.ports import free_ports
from tests.harness.servers import Server

_NODES = 3
# The Debian package's inner scripts: those in PATH would switch to the package's user.
PROGRAMS = Path("/usr/lib/rabbitmq/bin")
_FORMED_WITHIN_S = 120.0

_CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
cluster_formation.peer_discovery_backend = classic_config
{peers}
log.console = false
log.file.level = warning
"""
_ON_LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"


class RabbitCluster:
    """RabbitMQ with its defaults; queues are quorum queues of three members."""

    protocol = "rabbitmq"
    batch_max = 100
    producer_token = ""
    worker_token = ""
    name = "RabbitMQ quorum queue"
    syncs = "the log of a majority; a worker's ack is not confirmed"

    def __init__(self, directory: Path, *, nice: int = 0) -> None:
        self._directory, self._nice = directory, nice
        self._starts = 0
        self._place = directory
        self._epmd: Server | None = None
        self._epmd_port = 0
        self._nodes: dict[str, Server] = {}
        self._ports: dict[str, int] = {}
        self._environments: dict[str, dict[str, str]] = {}

    @property
    def urls(self) -> list[str]:
        """Addresses for clients."""
        return [self._address(node) for node in self._nodes]

    @property
    def addresses(self) -> list[str]:
        """Addresses of all nodes, like `urls`: every node takes every request."""
        return self.urls

    @property
    def pids(self) -> list[int]:
        """Process ids of the Erlang virtual machines, not of the scripts that started them."""
        return [_virtual_machine(server.pid) for server in self._nodes.values()]

    def start(self) -> None:
        """Start three nodes with new data, and wait until they form one cluster."""
        self._starts += 1
        self._place = self._directory / str(self._starts)
        (self._place / "home").mkdir(parents=True)
        cookie = self._place / "home" / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        self._epmd_port, *ports = free_ports(1 + 2 * _NODES)
        epmd = ["epmd", "-address", "127.0.0.1", "-port", str(self._epmd_port)]
        self._epmd = Server(self._place / "epmd.log")
        self._epmd.start(epmd, environment(), cwd=self._place)
        names = [f"r{n}@localhost" for n in range(_NODES)]
        for n, name in enumerate(names):
            self._ports[name] = ports[2 * n]
            self._environments[name] = self._environment(name, *ports[2 * n : 2 * n + 2])
            here = self._home(name)
            here.mkdir()
            peers = [
                f"cluster_formation.classic_config.nodes.{k} = {peer}"
                for k, peer in enumerate(names, 1)
            ]
            text = _CONFIGURATION.format(port=self._ports[name], peers="\n".join(peers))
            (here / "rabbitmq.conf").write_text(text)
            program = [str(PROGRAMS / "rabbitmq-server")]
            self._nodes[name] = Server(here / "console")
            self._nodes[name].start(program, self._environments[name], cwd=here)
        wait_until(
            lambda: all(map(listens, self._ports.values())),
            list(self._nodes.values()),
            within_s=_FORMED_WITHIN_S,
        )
        # A queue created before all have joined would have fewer members.
        self._control("await_online_nodes", str(_NODES), "--timeout", f"{_FORMED_WITHIN_S:.0f}")
        prefer(self.pids, nice=self._nice)

    def stop(self) -> None:
        """Stop every node; safe to call again."""
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)
        stop([*self._nodes.values(), *([self._epmd] if self._epmd else [])])
        self._nodes, self._ports, self._environments, self._epmd = {}, {}, {}, None

    def leader(self, queue: str) -> str:
        """Return the node that leads the queue."""
        queues = json.loads(self._control("list_queues", "name", "leader"))
        (leader,) = (one["leader"] for one in queues if one["name"] == queue)
        return self._address(leader)

    def kill(self, address: str) -> None:
        """Kill a node with SIGKILL."""
        (name,) = (node for node in self._nodes if self._address(node) == address)
        server = self._nodes.pop(name)
        os.kill(_virtual_machine(server.pid), signal.SIGKILL)
        server.kill()

    def _address(self, name: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self._ports[name]}/"

    def _control(self, *arguments: str) -> str:
        node = next(iter(self._nodes))
        return subprocess.run(
            [
                *(str(PROGRAMS / "rabbitmqctl"), "--quiet", "--node", node),
                *(*arguments, "--formatter", "json"),
            ],
            env=self._environments[node],
            capture_output=True,
            text=True,
            timeout=2 * _FORMED_WITHIN_S,
            check=True,
        ).stdout

    def _home(self, name: str) -> Path:
        return self._place / name.partition("@")[0]

    def _environment(self, name: str, port: int, distribution_port: int) -> dict[str, str]:
        here = self._home(name)
        outside = {
            key: value for key, value in environment().items() if not key.startswith("RABBITMQ")
        }
        return {
            **outside,
            "HOME": str(self._place / "home"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": name,
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(here / "none"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(here / "none.config"),
            "RABBITMQ_MNESIA_BASE": str(here / "data"),
            "RABBITMQ_LOG_BASE": str(here / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "plugins"),
            "RABBITMQ_PID_FILE": str(here / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(here / "config"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ON_LOOPBACK,
            "RABBITMQ_CTL_ERL_ARGS": _ON_LOOPBACK,
        }


def _virtual_machine(root: int) -> int:
    """Return the process id of the Erlang machine: the script itself, or a descendant."""
    pids = [root]
    for pid in pids:
        process = Path(f"/proc/{pid}")
        if process.joinpath("comm").read_text().startswith("beam"):
            return pid
        for task in process.glob("task/*/children"):
            pids += [int(child) for child in task.read_text().split()]
    return root
