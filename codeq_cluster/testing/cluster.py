"""Local cluster: real node processes on loopback, and faults one can do to them without root."""

from __future__ import annotations

import asyncio
import atexit
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import aiohttp
import yaml

from codeq_cluster.config import without_settings
from codeq_cluster.settings import environment
from codeq_cluster.testing.certificates import Authority
from codeq_cluster.testing.partition import LinkProxies

T = TypeVar("T")

PRODUCER_TOKEN = "acceptance-producer"  # noqa: S105 - a credential of throwaway clusters only
ADMIN_TOKEN = "acceptance-admin"  # noqa: S105 - the same
OPERATOR_TOKEN = "acceptance-operator"  # noqa: S105 - the same
# Each worker has its own subject, so that its tasks can be told apart; more than any load here
# uses.
WORKERS = 32
WORKER_TOKENS: Mapping[str, str] = {f"worker-{n}": f"acceptance-worker-{n}" for n in range(WORKERS)}

START_WITHIN_S = 30.0  # three interpreters importing at once on two busy cores
# As in the shipped systemd unit; the bounds on the parts of a stop add up to more than 15 s.
STOP_WITHIN_S = 30.0
POLL_S = 0.02
STATUS_TIMEOUT_S = 2.0
LOG_TAIL_LINES = 60
# Below the kernel's ephemeral ports: otherwise an outgoing connection may take the port of a killed
# node before the node comes back.
PORTS = range(20_000, 32_000)
# `codeq-cluster dev` has its links 10,000 above its HTTP ports; both must be in `PORTS`.
DEV_LINK_OFFSET = 10_000
PORTS_CLAIMED_MAX = 200
_claims: deque[socket.socket] = deque()

_SCOPES = (
    "codeq:claim",
    "codeq:heartbeat",
    "codeq:abandon",
    "codeq:nack",
    "codeq:result",
    "codeq:subscribe",
)

_PROVIDERS: Mapping[str, object] = {
    "producer": [
        {
            "kind": "static",
            "tokens": [
                {"token": PRODUCER_TOKEN, "subject": "producer"},
                {"token": ADMIN_TOKEN, "subject": "admin", "scopes": ["codeq:admin"]},
                {"token": OPERATOR_TOKEN, "subject": "operator", "scopes": ["codeq:operator"]},
            ],
        }
    ],
    "worker": [
        {
            "kind": "static",
            "tokens": [
                {"token": token, "subject": name, "scopes": list(_SCOPES), "eventTypes": ["*"]}
                for name, token in WORKER_TOKENS.items()
            ],
        }
    ],
}


_NOBODY = 1  # The discard port, on which nobody listens.


class ClusterError(AssertionError):
    """The cluster did not reach a state in time; the text names it and shows the nodes' logs."""


async def until(condition: Callable[[], Awaitable[T | None]], *, within_s: float, what: str) -> T:
    """Poll `condition` until it returns something else than None or False.

    Args:
        condition: Called every 20 ms.
        within_s: Seconds before the wait is given up.
        what: The awaited state, for the error.

    Raises:
        ClusterError: The condition did not hold in time.
    """
    deadline = time.monotonic() + within_s
    while True:
        answer = await condition()
        if answer is not None and answer is not False:
            return answer
        if time.monotonic() > deadline:
            raise ClusterError(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(POLL_S)


def free_ports(count: int) -> list[int]:
    """Return `count` distinct TCP ports at 127.0.0.1 that are free and reserved for this process.

    A port stays reserved until this process has asked for `PORTS_CLAIMED_MAX` others. So another
    test process cannot get a port that this one has not bound yet.
    """
    found: list[int] = []
    # Not the shared generator: processes with the same seed would try the same ports in order.
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if not claim_port(port):
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise ClusterError(f"no {count} free ports in {PORTS}")


def free_port_base(nodes: int) -> int:
    """Return a first port for `codeq-cluster dev` with that many nodes, as `free_ports` does."""
    bases = range(PORTS.start, PORTS.stop - DEV_LINK_OFFSET - nodes)
    for base in random.SystemRandom().sample(bases, len(bases)):
        http = range(base, base + nodes)
        if all(claim_port(port) and claim_port(port + DEV_LINK_OFFSET) for port in http):
            return base
    raise ClusterError(f"no {nodes} free ports in a row in {bases}")


def claim_port(port: int) -> bool:
    """Return whether a TCP port at 127.0.0.1 is free, and reserve it if so.

    The reservation is a bound UDP port of the same number, which nothing here uses otherwise.
    """
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with socket.socket() as probe:
        # The same option as a node's: a connection in TIME_WAIT must not make the port look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            claim.bind(("127.0.0.1", port))
            probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            return False
    if len(_claims) == PORTS_CLAIMED_MAX:
        _claims.popleft().close()
    _claims.append(claim)
    return True


@atexit.register
def _let_ports_go() -> None:
    for claim in _claims:
        claim.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGroup:
    """One shard as one node sees it, from `GET /v1/codeq/raft/status`."""

    shard: int
    is_leader: bool
    leader: str | None
    term: int
    applied_index: int
    digest: str


@dataclass(slots=True, kw_only=True)
class NodeProcess:
    """A node: its ports, its files, and its process while it runs.

    Attributes:
        release: The directory of the package it runs; None for this one.
    """

    id: str
    http_port: int
    link_port: int
    directory: Path
    secure: bool = False
    release: Path | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    paused: bool = False

    @property
    def url(self) -> str:
        """Base URL of the HTTP front end."""
        return f"{'https' if self.secure else 'http'}://127.0.0.1:{self.http_port}"

    @property
    def config_path(self) -> Path:
        """The node's configuration file."""
        return self.directory / "node.yaml"

    @property
    def data_path(self) -> Path:
        """The node's data directory."""
        return self.directory / "data"

    @property
    def log_path(self) -> Path:
        """Standard output and error of all runs of the node, one after the other."""
        return self.directory / "node.log"

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        if not self.log_path.exists():
            return ""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


class LocalCluster:
    """Real node processes on loopback.

    An async context manager: entering starts every node and waits until all are ready, leaving
    stops them. Ports are picked at run time and kept over restarts.

    Args:
        directory: Data, configuration and logs, one directory per node; kept afterwards.
        nodes: The number of nodes.
        shards: Raft groups.
        cuttable: Route every directed link, or those of the nodes named, through a proxy of this
            process, so that `cut` works. Otherwise nodes dial each other directly, and a killed
            node refuses connections at once, as it would without proxies.
        settings: Merged into every configuration file.
        authority: Signs a certificate per node, for https and for the link; None leaves both
            plain.
        names: Ids of the nodes; None for n1, n2 and so on.
        ready_within_s: The bound on the nodes' start.
        absent: Nodes that `start` must start: they join a cluster that is bootstrapped already.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        shards: int = 4,
        cuttable: bool | Collection[str] = False,
        settings: Mapping[str, object] | None = None,
        authority: Authority | None = None,
        names: Sequence[str] | None = None,
        ready_within_s: float = START_WITHIN_S,
        absent: Sequence[str] = (),
    ) -> None:
        self.shards = shards
        self.authority = authority
        self._settings = dict(settings or {})
        self._ready_within_s = ready_within_s
        self._absent = tuple(absent)
        ports = free_ports(2 * nodes)
        self.nodes: dict[str, NodeProcess] = {}
        for n in range(nodes):
            node_id = names[n] if names else f"n{n + 1}"
            self.nodes[node_id] = NodeProcess(
                id=node_id,
                http_port=ports[2 * n],
                link_port=ports[2 * n + 1],
                directory=directory / node_id,
                secure=authority is not None,
            )
        self._cuttable = frozenset(self.nodes if cuttable is True else cuttable or ())
        self._proxies = LinkProxies({n.id: n.link_port for n in self.nodes.values()})
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Start every node that is not absent, and wait until they are ready."""
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
            timeout=aiohttp.ClientTimeout(total=STATUS_TIMEOUT_S),
            connector=aiohttp.TCPConnector(ssl=self.trust),
        )
        try:
            if self._cuttable:
                await self._proxies.start()
            for node in self.nodes.values():
                self._write_config(node)
            present = [node for node in self.nodes if node not in self._absent]
            for node_id in present:
                self._launch(self.nodes[node_id])
            await self.wait_ready(present, within_s=self._ready_within_s)
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
        """End every node."""
        await self.close()

    async def close(self) -> None:
        """Kill all running processes; safe to call again. `stop` shuts a node down properly."""
        for node in self.nodes.values():
            if node.process is None:
                continue
            node.process.kill()
            await asyncio.to_thread(node.process.wait)
            node.process = None
        await self._proxies.stop()
        if self._http is not None:
            await self._http.close()
            self._http = None

    @property
    def trust(self) -> ssl.SSLContext:
        """The context for clients to trust the nodes; without effect on plain HTTP."""
        if self.authority is None:
            return ssl.create_default_context()
        return ssl.create_default_context(cadata=self.authority.pem.decode())

    @property
    def urls(self) -> dict[str, str]:
        """Base URL of every node, running or not."""
        return {node.id: node.url for node in self.nodes.values()}

    def pid(self, node_id: str) -> int:
        """Return the process id of a running node."""
        process = self.nodes[node_id].process
        assert process is not None, f"{node_id} does not run"
        return process.pid

    # Faults.

    async def kill(self, node_id: str) -> None:
        """Kill a node with SIGKILL and reap it."""
        process = self._running(node_id)
        process.kill()
        await asyncio.to_thread(process.wait)
        self.nodes[node_id].process = None
        self.nodes[node_id].paused = False

    async def stop(self, node_id: str) -> int:
        """Stop a node with SIGTERM and return its exit status.

        Raises:
            ClusterError: It did not end in time.
        """
        process = self._running(node_id)
        process.send_signal(signal.SIGTERM)
        try:
            status = await asyncio.to_thread(process.wait, STOP_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{node_id} did not stop\n{self.logs()}") from error
        self.nodes[node_id].process = None
        return status

    def pause(self, node_id: str) -> None:
        """Freeze a node with SIGSTOP: it keeps its connections and answers nothing."""
        self._running(node_id).send_signal(signal.SIGSTOP)
        self.nodes[node_id].paused = True

    def resume(self, node_id: str) -> None:
        """Resume a frozen node."""
        self._running(node_id).send_signal(signal.SIGCONT)
        self.nodes[node_id].paused = False

    def start(self, node_id: str) -> None:
        """Start a stopped node on its old ports and data, without waiting."""
        assert not self.nodes[node_id].running, f"{node_id} runs already"
        self._launch(self.nodes[node_id])

    def configure(self, node_id: str) -> NodeProcess:
        """Add one more node with its own configuration; it is not started."""
        first = next(iter(self.nodes.values()))
        http_port, link_port = free_ports(2)
        node = NodeProcess(
            id=node_id,
            http_port=http_port,
            link_port=link_port,
            directory=first.directory.parent / node_id,
            secure=first.secure,
        )
        self.nodes[node_id] = node
        self._write_config(node)
        return node

    def cut(self, node_id: str, *, hears: bool = False, speaks: bool = False) -> None:
        """Cut a node off from its peers; clients still reach it.

        Args:
            node_id: The node to cut off.
            hears: Leave the direction to the node open.
            speaks: Leave the direction from the node open.
        """
        assert node_id in self._cuttable, "only what was made cuttable can be cut off"
        for peer in self.nodes:
            if peer == node_id:
                continue
            if not speaks:
                self._proxies.block(node_id, peer)
            if not hears:
                self._proxies.block(peer, node_id)

    def heal(self, node_id: str | None = None) -> None:
        """Open every direction to and from a node, or of all nodes; held bytes arrive late."""
        for source in self.nodes:
            for target in self.nodes:
                if source != target and node_id in (None, source, target):
                    self._proxies.unblock(source, target)

    def link_port(self, source: str, target: str) -> int:
        """Return the port at which a node dials another, so that a test can slow that link down."""
        return self._link_port(self.nodes[source], self.nodes[target])

    async def restore(self) -> None:
        """Undo every fault: all nodes run, are connected and ready."""
        self.heal()
        for node in self.nodes.values():
            if node.paused:
                self.resume(node.id)
            if not node.running:
                self._launch(node)
        await self.wait_ready()

    # Observation.

    async def ready(self, node_id: str) -> bool:
        """Return whether the node reports that it is ready."""
        return await self._get(node_id, "/readyz") is not None

    async def wait_ready(
        self, nodes: Sequence[str] | None = None, *, within_s: float = START_WITHIN_S
    ) -> None:
        """Wait until these nodes (all by default) are ready.

        Raises:
            ClusterError: A node was not ready in time, or its process ended.
        """
        waited = tuple(nodes or self.nodes)

        async def are_ready() -> bool:
            for node_id in waited:
                if not self.nodes[node_id].running:
                    raise ClusterError(f"{node_id} ended before it was ready\n{self.logs()}")
            return all([await self.ready(node_id) for node_id in waited])

        try:
            await until(are_ready, within_s=within_s, what=f"{', '.join(waited)} ready")
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.logs()}") from error

    async def status(self, node_id: str) -> dict[int, ObservedGroup] | None:
        """Return the node's shards, or None if it does not answer."""
        answer = await self._get(node_id, "/v1/codeq/raft/status")
        if answer is None:
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
            for group in answer["groups"]
        }

    async def leader_of(
        self, shard: int, *, among: Sequence[str] | None = None, within_s: float = 15.0
    ) -> str:
        """Return the node that leads a shard, after waiting for one if necessary.

        Args:
            shard: The shard.
            among: The nodes asked, all by default; of two that claim to lead, the one with the
                higher term is believed.
            within_s: Seconds to wait.

        Raises:
            ClusterError: No leader in time.
        """

        async def leader() -> str | None:
            claims: list[tuple[int, str]] = []
            for node_id in among or tuple(self.nodes):
                groups = await self.status(node_id) if self._answers(node_id) else None
                if groups is not None and groups[shard].is_leader:
                    claims.append((groups[shard].term, node_id))
            return max(claims)[1] if claims else None

        return await until(leader, within_s=within_s, what=f"a leader of shard {shard}")

    async def wait_converged(self, *, within_s: float = 20.0) -> dict[int, ObservedGroup]:
        """Wait until every node has the same applied index and digest in every shard.

        Returns:
            The common status by shard, as the first node reports it.

        Raises:
            ClusterError: The nodes still differ at the deadline.
        """
        seen: dict[str, dict[int, ObservedGroup] | None] = {}

        async def converged() -> dict[int, ObservedGroup] | None:
            for node_id in self.nodes:
                seen[node_id] = await self.status(node_id)
            answers = [groups for groups in seen.values() if groups is not None]
            if len(answers) < len(self.nodes):
                return None
            states = {
                tuple((g.shard, g.applied_index, g.digest) for g in groups.values())
                for groups in answers
            }
            return answers[0] if len(states) == 1 else None

        try:
            return await until(converged, within_s=within_s, what="equal replicas")
        except ClusterError as error:
            raise ClusterError(f"{error}: {seen}\n{self.logs()}") from error

    def logs(self) -> str:
        """Return the last lines of every node's log."""
        return "\n".join(
            f"---- {node.id} ({node.url})\n{node.log_tail()}" for node in self.nodes.values()
        )

    # Private.

    def _running(self, node_id: str) -> subprocess.Popen[bytes]:
        process = self.nodes[node_id].process
        if process is None or process.poll() is not None:
            raise ClusterError(f"{node_id} does not run\n{self.nodes[node_id].log_tail()}")
        return process

    def _answers(self, node_id: str) -> bool:
        node = self.nodes[node_id]
        return node.running and not node.paused

    async def _get(self, node_id: str, path: str) -> Any:
        assert self._http is not None, "the cluster is not entered"
        if not self._answers(node_id):
            return None
        try:
            async with self._http.get(self.nodes[node_id].url + path) as response:
                if response.status != 200:
                    return None
                return await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError):
            return None

    def _launch(self, node: NodeProcess) -> None:
        log: IO[bytes]
        with node.log_path.open("ab") as log:
            node.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [
                    sys.executable,
                    "-m",
                    "codeq_cluster.cli.main",
                    "node",
                    "--config",
                    str(node.config_path),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A PORT or RAFT_PEERS meant for another program must not reconfigure one node.
                env=without_settings(environment()) | _path_of(node.release),
                # Python looks for the package here first.
                cwd=node.release,
                # Ctrl-C at the terminal must reach only the harness, which then stops its nodes.
                start_new_session=True,
            )
        node.paused = False

    def _write_config(self, node: NodeProcess) -> None:
        node.directory.mkdir(parents=True, exist_ok=True)
        peers = {
            peer.id: f"127.0.0.1:{self._link_port(node, peer)}" for peer in self.nodes.values()
        }
        if self._cuttable:
            # The node announces an address that nobody listens on: a peer that dialled the real one
            # would bypass the proxy and its cuts.
            peers[node.id] = f"127.0.0.1:{_NOBODY}"
        config: dict[str, object] = {
            "port": node.http_port,
            "clusterId": "acceptance",
            "clusterSecret": "acceptance-secret",
            "raft": {
                "selfId": node.id,
                "bindAddr": f"127.0.0.1:{node.link_port}",
                "peers": ",".join(f"{name}={address}" for name, address in peers.items()),
                "peerHTTPAddrs": ",".join(f"{n.id}={n.url}" for n in self.nodes.values()),
            },
            "persistenceConfig": {"path": str(node.data_path), "numShards": self.shards},
            "auth": {"tenantFallback": "default", **_PROVIDERS},
            "webhooks": {"allowPrivate": True, "unsigned": "allow"},
        }
        for key, value in self._settings.items():
            section = config.get(key)
            if isinstance(section, dict) and isinstance(value, dict):
                config[key] = section | value
            else:
                config[key] = value
        if self.authority is not None:
            _secure(config, node, self.authority)
        node.config_path.write_text(yaml.safe_dump(config, sort_keys=False))

    def _link_port(self, source: NodeProcess, target: NodeProcess) -> int:
        if source is not target and self._cuttable & {source.id, target.id}:
            return self._proxies.port(source.id, target.id)
        return target.link_port


def _path_of(release: Path | None) -> dict[str, str]:
    return {} if release is None else {"PYTHONPATH": str(release)}


def _secure(config: dict[str, object], node: NodeProcess, authority: Authority) -> None:
    certificate, key, ca = (node.directory / name for name in ("node.pem", "node.key", "ca.pem"))
    authority.issue(node.id, "127.0.0.1").write(certificate, key)
    ca.write_bytes(authority.pem)
    pair = {"certFile": str(certificate), "keyFile": str(key)}
    config["tls"] = pair
    config["raft.tls"] = {**pair, "caFile": str(ca)}
