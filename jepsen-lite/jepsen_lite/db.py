"""Db: the cluster under test, real node processes with an address each."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

from jepsen_lite.client import Tokens
from jepsen_lite.disk import Disk, DiskFault
from jepsen_lite.drifting import Pace
from jepsen_lite.history import Group
from jepsen_lite.network import Network
from jepsen_lite.shims import shim
from jepsen_lite.sink import Sink

HTTP_PORT = 8080
LINK_PORT = 7000
WORKERS_MAX = 24
DEADLINE_MS = 5000
SECRET = "jepsen-lite-secret"
START_WITHIN_S = 60.0
STOP_WITHIN_S = 20.0
FREEZE_WITHIN_S = 1.0
ASK_S = 1.0
POLL_S = 0.05

TOKENS = Tokens(
    producer="jepsen-producer",
    admin="jepsen-admin",
    operator="jepsen-operator",
    workers={f"worker-{n}": f"jepsen-worker-{n}" for n in range(WORKERS_MAX)},
)
_SCOPES = ["codeq:claim", "codeq:heartbeat", "codeq:abandon", "codeq:nack", "codeq:result"]


def soon_forgotten(**raft: object) -> Mapping[str, object]:
    """Return settings of nodes whose logs are so short that a node that was away needs a snapshot.

    Args:
        raft: Further settings of `raft`.
    """
    return {"raft": {"logEntriesMax": 1000, "logBytesMax": 2**20, "keepEntries": 1, **raft}}


class DbFailed(RuntimeError):
    """The cluster did not reach a state in time; the text names it and shows the nodes' logs."""


@dataclass(slots=True, kw_only=True)
class Node:
    """A node: its files, its disk, and its process while it runs.

    Attributes:
        ending: It was asked to stop, or killed.
        member: It belongs to the cluster, or should; a spare does not.
        damaged: Its disk was corrupted.
        refused: It found its disk damaged and would not serve; it is left alone from then on.
        started_s: Its last start, in monotonic seconds.
    """

    id: str
    address: str
    directory: Path
    disk: Disk
    pace: Pace
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    paused: bool = False
    ending: bool = False
    member: bool = True
    damaged: bool = False
    refused: bool = False
    starts: int = 0
    started_s: float = 0.0

    @property
    def running(self) -> bool:
        """Whether the process lives, frozen or not."""
        return self.process is not None and self.process.poll() is None

    @property
    def gave_up(self) -> bool:
        """Whether it has ended by itself."""
        return self.process is not None and not self.running and not self.ending

    @property
    def answering(self) -> bool:
        """Whether it can be asked anything."""
        return self.running and not self.paused

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """Output of every run of the node, one after the other."""
        return self.directory / "node.log"

    @property
    def waits_for_operator(self) -> bool:
        """Whether it runs without a replica whose disk has failed too often, by its log."""
        if not self.running or self.damaged:
            return False
        life = self.log.read_text(errors="replace").rpartition("---- start ")[2]
        return '"reason": "given-up"' in life

    def logged_since(self, offset: int) -> str:
        """Return the part of the log after the first `offset` bytes."""
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")


class Db:
    """The nodes; an async context manager that stops them all.

    Args:
        directory: Of the run; every node's files are below it.
        network: Open already.
        nodes: Those that bootstrap the cluster.
        spares: Nodes that may join later; they do not run before.
        shards: Raft groups.
        source: The tree whose `codeq_cluster` is run: the checkout's, or that of a mutant.
        shimmed: Whether the disk shim intercepts the data directory; without it no disk can fail.
        clocks: Whether clocks will be moved.
        sink: Receiver of webhooks.
        settings: Added to every node's configuration.
    """

    def __init__(
        self,
        directory: Path,
        network: Network,
        nodes: Sequence[str],
        *,
        shards: int,
        source: Path,
        spares: Sequence[str] = (),
        shimmed: bool = True,
        clocks: bool = False,
        sink: Sink | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.shards = shards
        self.network = network
        self._source = source
        self._shimmed = shimmed
        self._clocks = clocks
        self.sink = sink
        self._settings = dict(settings or {})
        self.nodes: dict[str, Node] = {}
        for name in (*nodes, *spares):
            home = directory / name
            home.mkdir(parents=True)
            self.nodes[name] = Node(
                id=name,
                address=network.address(name),
                directory=home,
                disk=Disk(home / "data", home / "disk"),
                pace=Pace(home / "clock.control"),
                member=name in nodes,
            )
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {TOKENS.operator}"},
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
        )
        try:
            for node in self.nodes.values():
                self._configure(node)
            for name in self.members:
                self.start(name)
            await self.wait_ready(within_s=START_WITHIN_S)
            self._check_disks()
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

    async def close(self) -> None:
        """Stop everything that runs."""
        for node in self.nodes.values():
            if node.running and node.paused:
                self.resume(node.id)
            node.disk.fault(DiskFault.NONE)
        await asyncio.gather(*(self.stop(n.id) for n in self.nodes.values() if n.running))
        if self._http is not None:
            await self._http.close()
            self._http = None

    @property
    def members(self) -> list[str]:
        """Every node that belongs to the cluster, or should."""
        return [node.id for node in self.nodes.values() if node.member]

    @property
    def spares(self) -> list[str]:
        """Every node that may join: it has no data and does not run."""
        return [node.id for node in self.nodes.values() if not node.member]

    @property
    def serving(self) -> list[str]:
        """Every member but those that refused to serve."""
        return [name for name in self.members if not self.nodes[name].refused]

    @property
    def urls(self) -> dict[str, str]:
        """Base URL of every node."""
        return {node.id: f"http://{node.address}:{HTTP_PORT}" for node in self.nodes.values()}

    @property
    def log_entries_max(self) -> int:
        """How many entries a shard's log keeps for nodes that are away."""
        raft = self._settings.get("raft")
        return int(raft.get("logEntriesMax", 0)) if isinstance(raft, dict) else 0

    def link(self, name: str) -> str:
        """Return the address at which a node's peers reach it."""
        return f"{self.nodes[name].address}:{LINK_PORT}"

    # Actions on nodes.

    def start(self, name: str) -> None:
        """Start a node that does not run, without waiting for it."""
        node = self.nodes[name]
        assert not node.running, f"{name} runs already"
        command = [sys.executable, "-m", "codeq_cluster.cli.main", "node", "--config"]
        command.append(str(node.directory / "node.yaml"))
        if shutil.which("setpriv"):
            # A harness that was killed must not leave nodes behind.
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        with node.log.open("ab") as log:
            log.write(f"---- start {node.starts} at {time.monotonic_ns()}\n".encode())
            node.process = subprocess.Popen(
                self.network.inside(name, command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(node),
                cwd=self._source,
                start_new_session=True,
            )
        node.starts += 1
        node.started_s = time.monotonic()
        node.paused = node.ending = False

    async def kill(self, name: str) -> bool:
        """Kill a node with SIGKILL; return whether that ended it."""
        process = self._process(name)
        self.nodes[name].ending = True
        process.kill()
        await asyncio.to_thread(process.wait)
        self.nodes[name].process = None
        self.nodes[name].paused = False
        return process.returncode == -signal.SIGKILL

    async def kill_all(self) -> None:
        """Kill all running nodes at one instant."""
        names = [node.id for node in self.nodes.values() if node.running]
        await self.pause(*names)
        for name in names:
            await self.kill(name)

    async def stop(self, name: str) -> bool:
        """Ask a node to stop, and kill it if it does not; return whether it stopped by itself."""
        process = self._process(name)
        self.nodes[name].ending = True
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            await self.kill(name)
            return False
        self.nodes[name].process = None
        return process.returncode == 0

    async def pause(self, *names: str) -> int:
        """Freeze nodes at one instant; return how many are stopped by the kernel's account."""
        processes = [self._process(name) for name in names]
        for name, process in zip(names, processes, strict=True):
            process.send_signal(signal.SIGSTOP)
            self.nodes[name].paused = True

        async def all_stand() -> bool:
            return all(_stands(process.pid) for process in processes)

        # Each of its threads stops when it is next scheduled.
        await until(all_stand, within_s=FREEZE_WITHIN_S)
        return sum(_stands(process.pid) for process in processes)

    def resume(self, name: str) -> None:
        """Resume a frozen node."""
        self._process(name).send_signal(signal.SIGCONT)
        self.nodes[name].paused = False

    async def cut_power(self, names: Sequence[str]) -> int:
        """Cut the power of nodes at one instant; return how many bytes were lost in all."""
        await self.pause(*names)
        for name in names:
            await self.kill(name)
        return sum([await asyncio.to_thread(self.nodes[name].disk.cut_power) for name in names])

    def wipe(self, name: str) -> None:
        """Delete all data of a dead node."""
        node = self.nodes[name]
        assert not node.running, f"{name} runs"
        node.disk.wipe()
        node.damaged = node.refused = False

    def admit(self, name: str) -> None:
        """Make a spare a member: clients ask it, and it may be started."""
        node = self.nodes[name]
        assert not node.member, f"{name} is a member"
        node.member = True
        self._configure(node)

    async def dismiss(self, name: str) -> None:
        """Make a removed node a spare and delete its data."""
        node = self.nodes[name]
        node.member = False
        if node.running:
            await self.kill(name)
        node.process = None
        self.wipe(name)

    async def command(self, *words: str, among: Sequence[str], within_s: float) -> tuple[bool, str]:
        """Run an operator's command, and kill it if it takes too long.

        Args:
            words: The words after `codeq-cluster`.
            among: Nodes it may ask.
            within_s: Longest wait for its end.

        Returns:
            Whether it succeeded, and its output.
        """
        urls = [word for name in among for word in ("--url", self.urls[name])]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "codeq_cluster.cli.main", *words),
            *(*urls, "--token", TOKENS.operator),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(self._source)},
            cwd=self._source,
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), within_s)
        except TimeoutError:
            process.kill()
            await process.wait()
            return False, f"no end within {within_s:g} s"
        return process.returncode == 0, said.decode(errors="replace").strip()

    async def retire_damaged(self, *, within_s: float) -> list[str]:
        """Stop nodes that are damaged and not ready in time, as an operator would; return them."""
        gone = []
        for node in self.nodes.values():
            if not node.damaged or node.refused:
                continue

            async def ready(name: str = node.id) -> bool:
                return await self.ready(name)

            if not await until(ready, within_s=within_s):
                await self.stop(node.id)
                node.refused = True
                gone.append(node.id)
        return gone

    def shift_clock(self, name: str, shift_s: float) -> None:
        """Move a node's clock from its next reading on; 0 sets it right."""
        assert self._clocks
        self.nodes[name].pace.jump(shift_s)

    # Reports of nodes.

    async def undelivered(self) -> int:
        """Return how many webhook calls have failed, by the counters of running nodes."""
        failed = 0
        for name in self.members:
            for line in (await self._text(name, "/metrics")).splitlines():
                if line.startswith("codeq_webhook_deliveries_total") and 'kind="result"' in line:
                    outcome = line.partition('outcome="')[2].partition('"')[0]
                    failed += 0 if outcome == "success" else int(float(line.rpartition(" ")[2]))
        return failed

    async def ready(self, name: str) -> bool:
        """Return whether a node reports that it is ready."""
        return await self._get(name, "/readyz") is not None

    async def wait_ready(self, names: Sequence[str] = (), *, within_s: float) -> None:
        """Wait until these nodes, or all, are ready.

        Raises:
            DbFailed: One was not ready in time, or ended.
        """
        waited = tuple(names or self.serving)

        async def are_ready() -> bool:
            for name in waited:
                if not self.nodes[name].running:
                    raise DbFailed(f"{name} ended\n{self._tail(name)}")
            return all([await self.ready(name) for name in waited])

        if not await until(are_ready, within_s=within_s):
            tails = "\n".join(self._tail(name) for name in waited)
            raise DbFailed(f"not ready within {within_s:g} s: {', '.join(waited)}\n{tails}")

    async def groups(self, name: str) -> tuple[Group, ...] | None:
        """Return a node's shards as it sees them, or None without an answer."""
        body = await self._get(name, "/v1/codeq/raft/status")
        if body is None:
            return None
        return tuple(
            Group(
                shard=int(group["shardIdx"]),
                leads=bool(group["isLeader"]),
                term=int(group["term"]),
                applied=int(group["appliedIndex"]),
                digest=str(group["digest"]),
            )
            for group in body["groups"]
        )

    async def memberships(self, name: str) -> tuple[Group, ...] | None:
        """Return the voters of each shard, as a node has them, or None without an answer."""
        body = await self._get(name, "/v1/codeq/admin/cluster")
        if body is None:
            return None
        # About itself a node only reports whether it votes in every shard.
        itself = {node["id"] for node in body["nodes"] if node["self"] and node["voter"]}
        return tuple(
            Group(
                shard=int(shard["shard"]),
                leads=shard["leader"] == name,
                term=int(shard["term"]),
                voters=_sorted(itself, shard["peers"], voter=True),
                learners=_sorted((), shard["peers"], voter=False),
                changing=bool(shard["changing"]),
            )
            for shard in body["shards"]
        )

    def supervise(self) -> None:
        """Raise DbFailed if a member has ended that nobody killed.

        A node whose disk is damaged or refuses writes need not come up. A node that stopped because
        of a refusing disk is started again once the disk is mended, as a service manager would do.
        """
        for name in self.serving:
            node = self.nodes[name]
            if not node.gave_up or node.damaged or node.disk.refuses:
                continue
            if node.started_s > node.disk.mended_s:
                raise DbFailed(f"{name} ended by itself\n{self._tail(name)}")
            self.start(name)

    async def vote(self, wanted: Sequence[str]) -> bool:
        """Return whether exactly these nodes vote in every shard, as its leader has it."""
        for shard in range(self.shards):
            leader = await self.leader(shard)
            told = await self.memberships(leader) if leader else None
            seen = next((group for group in told or () if group.shard == shard), None)
            if seen is None or seen.changing or not seen.leads:
                return False
            if (seen.voters, seen.learners) != (tuple(sorted(wanted)), ()):
                return False
        return True

    async def clock_ahead_s(self, name: str) -> float | None:
        """Return how far a node's clock is ahead of ours, in whole seconds; None if unknown."""
        assert self._http is not None
        try:
            async with self._http.get(
                f"{self.urls[name]}/healthz", timeout=aiohttp.ClientTimeout(total=ASK_S)
            ) as response:
                told = parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (aiohttp.ClientError, TimeoutError, OSError, KeyError, ValueError):
            return None
        return told - int(time.time())

    async def leader(self, shard: int) -> str | None:
        """Return the leader of a shard, by the highest term claimed; None if no node claims it."""
        claims = []
        for node in self.nodes.values():
            # A removed node may not know yet that others lead.
            groups = await self.groups(node.id) if node.answering and node.member else None
            claims += [
                (group.term, node.id)
                for group in groups or ()
                if group.shard == shard and group.leads
            ]
        return max(claims)[1] if claims else None

    async def converged(self) -> bool:
        """Return whether all nodes report the same of every shard, and all shards have leaders."""
        told = [await self.groups(name) for name in self.serving]
        if any(groups is None for groups in told):
            return False
        states = {tuple((g.shard, g.applied, g.digest) for g in groups or ()) for groups in told}
        led = {group.shard for groups in told for group in groups or () if group.leads}
        return len(states) == 1 and len(led) == self.shards

    async def _get(self, name: str, path: str) -> Any:
        text = await self._text(name, path)
        try:
            return json.loads(text) if text else None
        except ValueError:
            return None

    async def _text(self, name: str, path: str) -> str:
        """Return the body of a node's answer with 200; nothing for any other answer, or none."""
        node = self.nodes[name]
        if not node.answering or self._http is None:
            return ""
        try:
            async with self._http.get(
                f"http://{node.address}:{HTTP_PORT}{path}",
                timeout=aiohttp.ClientTimeout(total=ASK_S),
            ) as response:
                return await response.text() if response.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return ""

    def _check_disks(self) -> None:
        if not self._shimmed:
            return
        silent = [name for name in self.members if not self.nodes[name].disk.syncs]
        if silent:
            raise DbFailed(f"the disk shim sees nothing of {', '.join(silent)}")

    def _process(self, name: str) -> subprocess.Popen[bytes]:
        process = self.nodes[name].process
        if process is None or process.poll() is not None:
            raise DbFailed(f"{name} does not run\n{self._tail(name)}")
        return process

    def _tail(self, name: str) -> str:
        log = self.nodes[name].log
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join([f"---- {name}", *lines[-20:]])

    def _environment(self, node: Node) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        libraries = []
        if self._shimmed:
            libraries.append(str(shim("disk")))
            kept |= node.disk.environment
        if self._clocks:
            libraries.append(str(shim("clock")))
            kept |= node.pace.environment
        return kept | {"LD_PRELOAD": ":".join(libraries), "PYTHONPATH": str(self._source)}

    def _configure(self, node: Node) -> None:
        peers = [n for n in self.nodes.values() if n.member or n is node]
        config: dict[str, object] = {
            "host": node.address,
            "port": HTTP_PORT,
            "clusterId": "jepsen-lite",
            "clusterSecret": "jepsen-lite-cluster",
            "logLevel": "info",
            "raft": {
                "selfId": node.id,
                "bindAddr": f"{node.address}:{LINK_PORT}",
                "peers": ",".join(f"{n.id}={n.address}:{LINK_PORT}" for n in peers),
                "peerHTTPAddrs": ",".join(f"{n.id}=http://{n.address}:{HTTP_PORT}" for n in peers),
            },
            "persistenceConfig": {"path": str(node.data), "numShards": self.shards},
            "auth": {
                "tenantFallback": "default",
                "producer": [{"kind": "static", "tokens": _producers()}],
                "worker": [{"kind": "static", "tokens": _workers()}],
            },
            # Every other node lets the kernel sync, so that both ways to sync meet every fault.
            "store": {"sync": ("thread", "kernel")[list(self.nodes).index(node.id) % 2]},
            "limits": {"requestTimeoutMs": DEADLINE_MS},
            "webhooks": {"allowPrivate": True},
            "webhookHmacSecret": SECRET,
            "resultWebhookMaxAttempts": 50,
            "resultWebhookMaxBackoffSeconds": 3,
        }
        for key, value in self._settings.items():
            section = config.get(key)
            both = isinstance(section, dict) and isinstance(value, dict)
            config[key] = {**section, **value} if both else value  # type: ignore[dict-item]
        (node.directory / "node.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


async def until(condition: Callable[[], Awaitable[bool]], *, within_s: float) -> bool:
    """Poll until a condition holds; return whether it did in time."""
    deadline = time.monotonic() + within_s
    while not await condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _sorted(
    more: Collection[str], peers: Sequence[Mapping[str, Any]], *, voter: bool
) -> tuple[str, ...]:
    return tuple(sorted({*more, *(peer["id"] for peer in peers if peer["voter"] is voter)}))


def discard(directory: Path) -> None:
    """Delete the nodes' data; their logs and configurations stay."""
    for node in directory.iterdir():
        for name in ("data", "disk"):
            shutil.rmtree(node / name, ignore_errors=True)


def _stands(pid: int) -> bool:
    """Return whether a process is stopped, by its state in the kernel."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"


def _producers() -> list[dict[str, object]]:
    return [
        {"token": TOKENS.producer, "subject": "producer"},
        {"token": TOKENS.admin, "subject": "admin", "scopes": ["codeq:admin"]},
        {"token": TOKENS.operator, "subject": "operator", "scopes": ["codeq:operator"]},
    ]


def _workers() -> list[dict[str, object]]:
    return [
        {"token": token, "subject": name, "scopes": _SCOPES, "eventTypes": ["*"]}
        for name, token in TOKENS.workers.items()
    ]
