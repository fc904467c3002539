"""Db: the cluster under test, real node processes with an address each."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from jepsen_lite.client import Tokens
from jepsen_lite.disk import Disk, DiskFault
from jepsen_lite.drifting import Pace
from jepsen_lite.history import Group
from jepsen_lite.network import Network
from jepsen_lite.shims import shim
from jepsen_lite.sink import Sink
from tests.harness.commands import command
from tests.harness.node_process import (
    ADMIN_TOKEN,
    OPERATOR_TOKEN,
    PRODUCER_TOKEN,
    WORKER_TOKENS,
    Harness,
    NodeProcess,
)
from tests.harness.waiting import ClusterError, soon

HTTP_PORT = 8080
LINK_PORT = 7000
WORKERS_MAX = 24
DEADLINE_MS = 5000
SECRET = "jepsen-lite-secret"
# A tenant beside that of the clients, whose one token has every role in it.
HOSTILE_TENANT = "hostile"
HOSTILE_TOKEN = "jepsen-lite-hostile"
START_WITHIN_S = 60.0
ASK_S = 1.0

TOKENS = Tokens(
    producer=PRODUCER_TOKEN,
    admin=ADMIN_TOKEN,
    operator=OPERATOR_TOKEN,
    workers=dict(list(WORKER_TOKENS.items())[:WORKERS_MAX]),
)


def soon_forgotten(**raft: object) -> Mapping[str, object]:
    """Return settings with logs so short that a node that was away needs a snapshot.

    Args:
        raft: Further settings of `raft`.
    """
    return {"raft": {"logEntriesMax": 1000, "logBytesMax": 2**20, "keepEntries": 1, **raft}}


class Node(NodeProcess):
    """A node: its files, its disk, and its process while it runs.

    Attributes:
        ending: Whether it was asked to stop, or killed.
        member: Whether it belongs to the cluster, or should; a spare does not.
        damaged: Whether its disk was corrupted.
        refused: Whether it found its disk damaged and refused to serve; it is then left alone.
        starts: How often it was started.
        started_s: When it was last started, in monotonic seconds.
    """

    def __init__(self, name: str, home: Path, *, host: str, member: bool, release: Path) -> None:
        super().__init__(
            name, home, host=host, http_port=HTTP_PORT, link_port=LINK_PORT, release=release
        )
        self.disk = Disk(home / "data", home / "disk")
        self.pace = Pace(home / "clock.control")
        self.member = member
        self.ending = False
        self.damaged = False
        self.refused = False
        self.starts = 0
        self.started_s = 0.0

    @property
    def gave_up(self) -> bool:
        """Whether it has ended by itself."""
        return self.process is not None and not self.running and not self.ending

    @property
    def waits_for_operator(self) -> bool:
        """Whether it runs without a replica whose disk has failed too often, by its log."""
        if not self.running or self.damaged:
            return False
        life = self.log_path.read_text(errors="replace").rpartition("---- start ")[2]
        return '"reason": "given-up"' in life


class Db(Harness[Node]):
    """The nodes; an async context manager that stops them all.

    Args:
        directory: Of the run; every node's files are below it.
        network: Open already.
        nodes: Those that bootstrap the cluster.
        spares: Nodes that may join later; they do not run before.
        shards: Raft groups.
        source: The tree whose `codeq_cluster` is run: the checkout's, or that of a mutant.
        shimmed: Whether the disk shim intercepts the data directory; otherwise there are no disk
            faults.
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
        self.network = network
        self._source = source
        self._shimmed = shimmed
        self._clocks = clocks
        self.sink = sink
        made = {}
        for name in (*nodes, *spares):
            home = directory / name
            home.mkdir(parents=True)
            made[name] = Node(
                name, home, host=network.address(name), member=name in nodes, release=source
            )
        artifacts = {"provider": "local", "directory": str(directory / "artifacts")}
        super().__init__(
            made,
            shards=shards,
            settings={"artifacts": artifacts, **(settings or {})},
            token=OPERATOR_TOKEN,
            status_s=ASK_S,
        )

    async def _open(self) -> None:
        for name in self.nodes:
            self.write_config(name)
        for name in self.members:
            self.start(name)
        await self.wait_ready(within_s=START_WITHIN_S)
        self._check_disks()

    async def close(self) -> None:
        """Stop everything that runs."""
        for node in self.nodes.values():
            if node.running and node.paused:
                node.resume()
            node.disk.fault(DiskFault.NONE)
        await asyncio.gather(*(self.end(n.id) for n in self.nodes.values() if n.running))
        await super().close()

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
    def log_entries_max(self) -> int:
        """How many entries a shard's log keeps for nodes that are away."""
        raft = self._settings.get("raft")
        return int(raft.get("logEntriesMax", 0)) if isinstance(raft, dict) else 0

    def link(self, name: str) -> str:
        """Return the address at which a node's peers reach it."""
        return f"{self.nodes[name].host}:{LINK_PORT}"

    # Actions on nodes.

    def start(self, node_id: str) -> None:
        """Start a node that does not run, without waiting for it."""
        node = self.nodes[node_id]
        with node.log_path.open("ab") as log:
            log.write(f"---- start {node.starts} at {time.monotonic_ns()}\n".encode())
        super().start(node_id)
        node.starts += 1
        node.started_s = time.monotonic()
        node.ending = False

    async def kill(self, node_id: str) -> bool:
        """Kill a node with SIGKILL; return whether that is what it died of."""
        self._running(node_id).ending = True
        return await super().kill(node_id)

    async def kill_all(self) -> None:
        """Kill all running nodes at one instant."""
        names = [node.id for node in self.nodes.values() if node.running]
        await self.pause(*names)
        for name in names:
            await self.kill(name)

    async def end(self, name: str) -> bool:
        """Ask a node to end, and kill it if it does not; return whether the kill was needless."""
        self._running(name).ending = True
        try:
            return await self.stop(name) == 0
        except ClusterError:
            return False

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
        self.write_config(name)

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
        try:
            ended = await command(
                *words, *urls, token=OPERATOR_TOKEN, release=self._source, within_s=within_s
            )
        except TimeoutError:
            return False, f"no end within {within_s:g} s"
        return ended.code == 0, (ended.out + ended.err).strip()

    async def retire_damaged(self, *, within_s: float) -> list[str]:
        """Stop nodes that are damaged and not ready in time, as an operator would; return them."""
        gone = []
        for node in self.nodes.values():
            if not node.damaged or node.refused:
                continue

            async def ready(name: str = node.id) -> bool:
                return await self.ready(name)

            if not await soon(ready, within_s=within_s):
                await self.end(node.id)
                node.refused = True
                gone.append(node.id)
        return gone

    def shift_clock(self, name: str, shift_s: float) -> None:
        """Shift a node's clock from its next reading on; 0 ends the shift."""
        assert self._clocks
        self.nodes[name].pace.jump(shift_s)

    # Reports of nodes.

    async def undelivered(self) -> int:
        """Return how many webhook calls have failed, by the counters of running nodes."""
        failed = 0.0
        for name in self.members:
            for sample, value in (await self.metrics(name)).items():
                result = sample.startswith("codeq_webhook_deliveries_total") and (
                    'kind="result"' in sample
                )
                failed += value if result and 'outcome="success"' not in sample else 0
        return int(failed)

    async def groups(self, name: str) -> tuple[Group, ...] | None:
        """Return a node's shards as it sees them, or None without an answer."""
        seen = await self.status(name)
        return (
            None
            if seen is None
            else tuple(
                Group(
                    shard=each.shard,
                    leads=each.is_leader,
                    term=each.term,
                    applied=each.applied_index,
                    digest=each.digest,
                )
                for each in seen.values()
            )
        )

    async def memberships(self, name: str) -> tuple[Group, ...] | None:
        """Return the voters of each shard, as a node has them, or None without an answer."""
        body = await self._document_of(name, "/v1/codeq/admin/cluster")
        if body is None:
            return None
        # A node reports its own vote not per shard, but only as "votes in every shard".
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
        """Raise ClusterError when a member has ended that nobody killed.

        A node whose disk is damaged or refuses writes need not come up. A node that stopped because
        of a refusing disk is started again once the disk is mended, as a service manager would do.
        """
        for name in self.serving:
            node = self.nodes[name]
            if not node.gave_up or node.damaged or node.disk.refuses:
                continue
            if node.started_s > node.disk.mended_s:
                raise ClusterError(f"{name} ended by itself\n{node.log_tail()}")
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
        answer = await self.asked(name, "/healthz")
        if answer is None:
            return None
        return parsedate_to_datetime(answer.headers["date"]).timestamp() - int(time.time())

    def _check_disks(self) -> None:
        if not self._shimmed:
            return
        silent = [name for name in self.members if not self.nodes[name].disk.syncs]
        if silent:
            raise ClusterError(f"the disk shim sees nothing of {', '.join(silent)}")

    def _command(self, node: Node) -> list[str]:
        return self.network.inside(node.id, super()._command(node))

    def _environment(self, node: Node) -> dict[str, str]:
        kept = super()._environment(node)
        libraries = []
        if self._shimmed:
            libraries.append(str(shim("disk")))
            kept |= node.disk.environment
        if self._clocks:
            libraries.append(str(shim("clock")))
            kept |= node.pace.environment
        return kept | {"LD_PRELOAD": ":".join(libraries)}

    def _peers(self, node: Node) -> Sequence[str]:
        return [n.id for n in self.nodes.values() if n.member or n is node]

    def _config(self, node: Node) -> dict[str, object]:
        config = super()._config(node)
        return config | {
            "auth": _with_hostile(config["auth"]),
            "host": node.host,
            "logLevel": "info",
            # Every second node syncs through the kernel, so that both ways to sync meet every
            # fault.
            "store": {"sync": ("thread", "kernel")[list(self.nodes).index(node.id) % 2]},
            "limits": {"requestTimeoutMs": DEADLINE_MS},
            "webhooks": {"allowPrivate": True},
            "webhookHmacSecret": SECRET,
            "resultWebhookMaxAttempts": 50,
            "resultWebhookMaxBackoffSeconds": 3,
        }


def _with_hostile(auth: Any) -> Any:
    """Return the settings of authentication with the hostile tenant's token added."""
    of = ("admin", "claim", "heartbeat", "result", "subscribe")
    scopes = [f"codeq:{each}" for each in of]
    token = {"token": HOSTILE_TOKEN, "subject": HOSTILE_TENANT, "tenant": HOSTILE_TENANT}
    tokens = [{**token, "scopes": scopes, "eventTypes": ["*"]}]
    provider = {"kind": "static", "tokens": tokens}
    return auth | {side: [*auth[side], provider] for side in ("producer", "worker")}


def _sorted(
    more: Collection[str], peers: Sequence[Mapping[str, Any]], *, voter: bool
) -> tuple[str, ...]:
    return tuple(sorted({*more, *(peer["id"] for peer in peers if peer["voter"] is voter)}))


def discard(directory: Path) -> None:
    """Delete the nodes' data; their logs and configurations stay."""
    for node in directory.iterdir():
        for name in ("data", "disk"):
            shutil.rmtree(node / name, ignore_errors=True)
