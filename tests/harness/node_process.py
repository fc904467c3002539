"""Harness: a cluster of real node processes, its faults, and the nodes' reports."""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec
import yaml

from codeq_cluster.auth.identity import WORKER_SCOPES
from codeq_cluster.config import without_settings
from codeq_cluster.settings import environment
from tests.harness.http import HttpAnswer, HttpClient
from tests.harness.servers import Server
from tests.harness.waiting import WITHIN_S, ClusterError, soon, until

CLUSTER_ID = "acceptance"
PRODUCER_TOKEN = "acceptance-producer"
ADMIN_TOKEN = "acceptance-admin"
OPERATOR_TOKEN = "acceptance-operator"
# A producer's and a worker's, as programs have that do both.
BOTH_TOKEN = "acceptance-both"
# Each worker has its own subject, so that its tasks can be told apart; more than any load here
# uses.
WORKERS = 32
WORKER_TOKENS: Mapping[str, str] = {f"worker-{n}": f"acceptance-worker-{n}" for n in range(WORKERS)}

START_WITHIN_S = WITHIN_S  # three interpreters importing at once on two busy cores
# As in the shipped systemd unit; the bounds on the parts of a stop add up to more than 15 s.
STOP_WITHIN_S = 30.0
FREEZE_WITHIN_S = 1.0
STATUS_TIMEOUT_S = 2.0

# Release 0.1.0 refuses a configuration with a scope that it does not know.
FIRST_SCOPES = sorted(WORKER_SCOPES - {"codeq:enqueue", "codeq:schedule"})


def providers(worker_scopes: Iterable[str] = WORKER_SCOPES) -> dict[str, object]:
    """Return the static tokens of a configuration."""
    return {
        "producer": [
            {
                "kind": "static",
                "tokens": [
                    {"token": PRODUCER_TOKEN, "subject": "producer"},
                    {"token": BOTH_TOKEN, "subject": "both"},
                    {"token": ADMIN_TOKEN, "subject": "admin", "scopes": ["codeq:admin"]},
                    {"token": OPERATOR_TOKEN, "subject": "operator", "scopes": ["codeq:operator"]},
                ],
            }
        ],
        "worker": [
            {
                "kind": "static",
                "tokens": [
                    {
                        "token": token,
                        "subject": name,
                        "scopes": sorted(worker_scopes),
                        "eventTypes": ["*"],
                    }
                    for name, token in [*WORKER_TOKENS.items(), ("both", BOTH_TOKEN)]
                ],
            }
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGroup:
    """One shard as one node sees it, from `GET /v1/codeq/raft/status`."""

    shard: int
    is_leader: bool
    leader: str | None
    term: int
    applied_index: int
    digest: str


class NodeProcess(Server):
    """A node: its ports, its files, and its process while it runs.

    Attributes:
        secure: It speaks TLS.
        release: The directory of the package it runs; None for this one.
    """

    def __init__(
        self,
        node_id: str,
        directory: Path,
        *,
        http_port: int,
        link_port: int,
        host: str = "127.0.0.1",
        secure: bool = False,
        release: Path | None = None,
    ) -> None:
        super().__init__(directory / "node.log")
        self.id = node_id
        self.directory = directory
        self.host = host
        self.http_port = http_port
        self.link_port = link_port
        self.secure = secure
        self.release = release

    @property
    def url(self) -> str:
        """Base URL of the HTTP front end."""
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.http_port}"

    @property
    def config_path(self) -> Path:
        """The node's configuration file."""
        return self.directory / "node.yaml"

    @property
    def data_path(self) -> Path:
        """The node's data directory."""
        return self.directory / "data"


N = TypeVar("N", bound=NodeProcess)


class Harness(ABC, Generic[N]):
    """A cluster of real node processes; an async context manager, completed by a subclass.

    Args:
        nodes: By id.
        shards: Raft groups.
        settings: Merged into every configuration file.
        token: Of an administrator or operator; only these may ask for a node's status.
        status_s: The longest wait for a node's report.
        trust: Verifies the nodes' certificates; None without TLS.
    """

    def __init__(
        self,
        nodes: Mapping[str, N],
        *,
        shards: int,
        settings: Mapping[str, object] | None,
        token: str,
        status_s: float = STATUS_TIMEOUT_S,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.nodes = dict(nodes)
        self.shards = shards
        self._settings = dict(settings or {})
        self._token = token
        # One connection per request: a kept one would hang after the network was cut and healed.
        self._http = HttpClient(timeout_s=status_s, trust=trust, keep=False)

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @abstractmethod
    async def _open(self) -> None:
        """Start the nodes and wait until they are ready."""

    async def close(self) -> None:
        """Kill all running processes; safe to call again. `stop` shuts a node down properly."""
        for node in self.nodes.values():
            await asyncio.to_thread(node.kill)
        await self._http.close()

    @property
    def urls(self) -> dict[str, str]:
        """Base URL of every node, running or not."""
        return {node.id: node.url for node in self.nodes.values()}

    @property
    def members(self) -> list[str]:
        """Every node that belongs to the cluster."""
        return list(self.nodes)

    @property
    def serving(self) -> list[str]:
        """Every node that `wait_ready` waits for."""
        return self.members

    def pid(self, node_id: str) -> int:
        """Return the process id of a running node."""
        return self.nodes[node_id].pid

    # Actions on nodes.

    def start(self, node_id: str) -> None:
        """Start a stopped node on its old ports and data, without waiting."""
        node = self.nodes[node_id]
        node.start(self._command(node), self._environment(node), cwd=node.release)

    async def kill(self, node_id: str) -> bool:
        """Kill a node with SIGKILL and reap it; return whether the signal ended it."""
        return await asyncio.to_thread(self._running(node_id).kill) == -signal.SIGKILL

    async def stop(self, node_id: str) -> int:
        """Stop a node with SIGTERM and return its exit status.

        Raises:
            ClusterError: It did not end in time, and was killed.
        """
        status = await asyncio.to_thread(self._running(node_id).stop, within_s=STOP_WITHIN_S)
        if status is None:
            raise ClusterError(f"{node_id} did not stop\n{self.logs()}")
        return status

    async def pause(self, *node_ids: str) -> int:
        """Freeze nodes at one instant; return how many are stopped by the kernel's account."""
        nodes = [self._running(node_id) for node_id in node_ids]
        for node in nodes:
            node.pause()

        async def all_stand() -> bool:
            return all(node.stands for node in nodes)

        # Each thread stops when it is next scheduled.
        await soon(all_stand, within_s=FREEZE_WITHIN_S)
        return sum(node.stands for node in nodes)

    def resume(self, node_id: str) -> None:
        """Resume a frozen node."""
        self._running(node_id).resume()

    # Reports of nodes.

    async def asked(self, node_id: str, path: str) -> HttpAnswer | None:
        """Return the body of a node's answer with status 200, otherwise None."""
        node = self.nodes[node_id]
        if not node.answering:
            return None
        try:
            answer = await self._http.send("GET", node.url, path, token=self._token)
        except ConnectionError:
            return None
        return answer if answer.status == 200 else None

    async def ready(self, node_id: str) -> bool:
        """Return whether the node reports that it is ready."""
        return await self.asked(node_id, "/readyz") is not None

    async def wait_ready(
        self, nodes: Sequence[str] | None = None, *, within_s: float = START_WITHIN_S
    ) -> None:
        """Wait until these nodes, or all that serve, are ready.

        Raises:
            ClusterError: A node was not ready in time, or its process ended.
        """
        waited = tuple(self.serving if nodes is None else nodes)

        async def are_ready() -> bool:
            for node_id in waited:
                if not self.nodes[node_id].running:
                    raise ClusterError(f"{node_id} ended before it was ready")
            return all([await self.ready(node_id) for node_id in waited])

        try:
            await until(are_ready, within_s=within_s, what=f"{', '.join(waited)} ready")
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.logs()}") from error

    async def status(self, node_id: str) -> dict[int, ObservedGroup] | None:
        """Return the node's shards, or None if it does not answer."""
        body = await self._document_of(node_id, "/v1/codeq/raft/status")
        if body is None:
            return None
        return {
            group["shardIdx"]: ObservedGroup(
                shard=group["shardIdx"],
                is_leader=group["isLeader"],
                leader=group.get("leaderId") or None,
                term=group["term"],
                applied_index=group["appliedIndex"],
                digest=str(group["digest"]),
            )
            for group in body["groups"]
        }

    async def leader(self, shard: int, *, among: Sequence[str] | None = None) -> str | None:
        """Return the node that claims to lead a shard in the highest term, or None.

        Args:
            shard: The shard.
            among: The nodes asked, all members by default.
        """
        claims: list[tuple[int, str]] = []
        for node_id in among or self.members:
            groups = await self.status(node_id)
            if groups is not None and groups[shard].is_leader:
                claims.append((groups[shard].term, node_id))
        return max(claims)[1] if claims else None

    async def converged(self) -> dict[int, ObservedGroup] | None:
        """Return the common status of all nodes; None if they differ or a shard has no leader."""
        told = [await self.status(node_id) for node_id in self.serving]
        answers = [groups for groups in told if groups is not None]
        if len(answers) < len(told):
            return None
        states = {
            tuple((g.shard, g.applied_index, g.digest) for g in groups.values())
            for groups in answers
        }
        led = {g.shard for groups in answers for g in groups.values() if g.is_leader}
        return answers[0] if len(states) == 1 and len(led) == self.shards else None

    async def metrics(self, node_id: str) -> dict[str, float]:
        """Return every sample of a node by its name and labels; empty if it does not answer."""
        answer = await self.asked(node_id, "/metrics")
        lines = answer.body.decode().splitlines() if answer else []
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def logs(self) -> str:
        """Return the last lines of every node's log."""
        return "\n".join(
            f"---- {node.id} ({node.url})\n{node.log_tail()}" for node in self.nodes.values()
        )

    # For subclasses.

    async def _document_of(self, node_id: str, path: str) -> Any:
        """Return the JSON that a node answers with, or None."""
        answer = await self.asked(node_id, path)
        try:
            return None if answer is None else answer.json
        except msgspec.DecodeError:
            return None

    def _running(self, node_id: str) -> N:
        node = self.nodes[node_id]
        if not node.running:
            raise ClusterError(f"{node_id} does not run\n{node.log_tail()}")
        return node

    def _command(self, node: N) -> list[str]:
        command = [sys.executable, "-m", "codeq_cluster.cli.main", "node", "--config"]
        return [*command, str(node.config_path)]

    def _environment(self, node: N) -> dict[str, str]:
        # A PORT or RAFT_PEERS meant for another program must not reconfigure one node.
        kept = without_settings(environment())
        return kept if node.release is None else kept | {"PYTHONPATH": str(node.release)}

    def write_config(self, node_id: str) -> None:
        """Write a node's configuration file."""
        node = self.nodes[node_id]
        config = self._config(node)
        for key, value in self._settings.items():
            section = config.get(key)
            both = isinstance(section, dict) and isinstance(value, dict)
            config[key] = section | value if both else value  # type: ignore[operator]
        node.directory.mkdir(parents=True, exist_ok=True)
        node.config_path.write_text(yaml.safe_dump(config, sort_keys=False))

    def _config(self, node: N) -> dict[str, object]:
        """Return a node's configuration without the settings of this cluster."""
        peers = {name: self._link(node, self.nodes[name]) for name in self._peers(node)}
        urls = {name: self.nodes[name].url for name in peers}
        return {
            "port": node.http_port,
            "clusterId": CLUSTER_ID,
            "clusterSecret": "acceptance-secret",
            "raft": {
                "selfId": node.id,
                "bindAddr": f"{node.host}:{node.link_port}",
                "peers": ",".join(f"{name}={address}" for name, address in peers.items()),
                "peerHTTPAddrs": ",".join(f"{name}={url}" for name, url in urls.items()),
            },
            "persistenceConfig": {"path": str(node.data_path), "numShards": self.shards},
            "auth": {"tenantFallback": "default", **providers()},
        }

    def _peers(self, _node: N) -> Sequence[str]:
        """Return the ids that a node's configuration lists."""
        return list(self.nodes)

    def _link(self, _source: N, target: N) -> str:
        """Return the address at which a node reaches another's link."""
        return f"{target.host}:{target.link_port}"
