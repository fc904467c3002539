"""Node: the composition root: from settings to a running node, and back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import time
from collections.abc import Callable
from functools import partial

from codeq_cluster.api.app import make_app
from codeq_cluster.api.server import HttpServer
from codeq_cluster.auth import Authenticator
from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine import Engine, EngineLimits
from codeq_cluster.broker.ports import Depth, Head, Snapshot
from codeq_cluster.broker.requests import PeerStatus, ShardStatus
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.waiters import Waiters
from codeq_cluster.cluster.forwarding import Forwarder
from codeq_cluster.core.rules import Rules
from codeq_cluster.errors import SafetyViolated, StorageFailed
from codeq_cluster.node_metrics import register_gauges
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.running import DiskThread, GroupLink, LoopTimers, ThreadFlusher
from codeq_cluster.settings import NodeSettings
from codeq_cluster.storage.directory import DataDirectory, open_directory
from codeq_cluster.storage.rocks import RocksShard, new_cache
from codeq_cluster.telemetry import Metrics
from codeq_cluster.telemetry.tasks import TaskObserver
from codeq_cluster.wire import Mesh

log = logging.getLogger(__name__)

EXIT_UNSAFE = 70  # The process ends at once: an invariant does not hold, or the disk has failed.
_COLLECT_AFTER = (20_000, 20, 50)
HANDOVER_S = 1.0  # A planned stop waits this long for other nodes to take the leaderships over.


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        """Return Unix milliseconds; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return milliseconds that never jump."""
        return time.monotonic_ns() // 1_000_000


class Node:
    """One node of the cluster."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.metrics = Metrics(commands_max=settings.metrics_max_commands)
        self._peers = {peer.id: peer for peer in settings.peers}
        self._stack = contextlib.AsyncExitStack()
        self._shards: list[RocksShard] = []
        self._engines: list[Engine] = []
        self._groups: list[RaftGroup] = []
        self._http: HttpServer | None = None

    @property
    def port(self) -> int:
        """Return the port of the HTTP front end, once started."""
        assert self._http is not None
        return self._http.port

    async def start(self) -> None:
        """Start everything, in this order; whatever was started is stopped again on failure.

        Raises:
            DataDirectoryRefused: The data is another node's, another cluster's, locked or damaged.
            OSError: A port is taken.
        """
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def stop(self) -> None:
        """Stop taking requests, hand leaderships over, then stop the rest in reverse order."""
        if self._http is not None:
            await self._http.stop()
        await self._hand_over()
        await self._stack.aclose()

    async def _start(self) -> None:
        settings = self.settings
        loop = asyncio.get_running_loop()
        stack = self._stack

        # The data directory: locked, checked, one more incarnation.
        directory = open_directory(
            settings.data_dir,
            cluster_id=settings.cluster_id,
            node_id=settings.node_id,
            shards=settings.shards,
        )
        stack.callback(directory.close)

        # The stores, one a shard, sharing one block cache.
        self._open_shards(directory)

        # The thread in which the groups wait for the disk.
        disk = DiskThread(loop)
        stack.callback(disk.stop)

        # The broker's engines, one a shard.
        waiters = Waiters(waiters_max=settings.limits.waiters_max)
        self._make_engines(waiters)

        # The link; it begins to carry messages when it is started below.
        mesh = self._make_mesh(directory)
        forwarder = Forwarder(
            node_id=settings.node_id,
            engines=self._engines,
            calls=mesh,
            snapshot=Snapshot,
            head=Head,
            depth=Depth,
            took=self.metrics.forwarded,
        )
        self._serve = forwarder.serve

        # The Raft groups drive the engines.
        timers = LoopTimers(loop)
        for shard, engine in enumerate(self._engines):
            group = RaftGroup(
                shard=shard,
                node_id=settings.node_id,
                nodes=[peer.id for peer in settings.peers],
                preferred=settings.peers[shard % len(settings.peers)].id,
                incarnation=directory.incarnation,
                store=self._shards[shard].log,
                machine=engine,
                source=engine,
                link=GroupLink(mesh, shard),
                timers=timers,
                flusher=ThreadFlusher(
                    disk, now=timers.now, took=partial(self.metrics.log_synced, shard)
                ),
                random=random.Random(),  # noqa: S311 - spreads elections, guards nothing
                settings=settings.raft,
                on_fatal=partial(_stop_at_once, shard),
            )
            engine.attach(group)
            self._groups.append(group)
            group.start()
            stack.callback(group.stop)
            stack.callback(engine.stop)
        await mesh.start()
        stack.push_async_callback(mesh.stop)

        # What callers talk to.
        background = Background()
        stack.push_async_callback(background.stop)
        broker = Broker(
            shards=forwarder,
            waiters=waiters,
            background=background,
            max_attempts_default=settings.lifecycle.max_attempts_default,
            status=self.status,
            missing=self.missing,
        )
        register_gauges(
            self.metrics,
            engines=self._engines,
            groups=self._groups,
            stores=self._shards,
            mesh=mesh,
        )
        authenticator = Authenticator(settings.auth)
        await authenticator.start()
        stack.push_async_callback(authenticator.stop)

        # Last, the door.
        self._http = HttpServer(
            make_app(broker, authenticator, settings, self.metrics),
            host=settings.host,
            port=settings.port,
            limits=settings.limits,
            metrics=self.metrics,
        )
        await self._http.start()
        stack.push_async_callback(self._http.stop)
        log.info("serving", extra={"node": settings.node_id, "port": self._http.port})

    def _open_shards(self, directory: DataDirectory) -> None:
        cache = new_cache(self.settings.store)
        for shard in range(self.settings.shards):
            store = RocksShard(
                directory.shard_path(shard), settings=self.settings.store, cache=cache
            )
            self._stack.callback(store.close)
            self._shards.append(store)

    def _make_engines(self, waiters: Waiters) -> None:
        settings = self.settings
        lifecycle = settings.lifecycle
        rules = Rules(
            backoff_policy=lifecycle.backoff_policy.value,
            backoff_base_ms=lifecycle.backoff_base_seconds * 1000,
            backoff_max_ms=lifecycle.backoff_max_seconds * 1000,
            retention_ms=lifecycle.retention_seconds * 1000,
            dlq_retention_ms=lifecycle.dlq_retention_seconds * 1000,
        )
        limits = EngineLimits(
            operations_max=settings.limits.operations_queued_max,
            bytes_max=settings.limits.operations_queued_bytes_max,
            lease_grace_ms=int(lifecycle.lease_grace_seconds * 1000),
            entry_bytes_max=settings.raft.entry_bytes_max,
        )
        observer = TaskObserver(self.metrics)
        for shard in range(settings.shards):
            engine = Engine(
                node_id=settings.node_id,
                shard=shard,
                shards=settings.shards,
                store=self._shards[shard].state,
                rules=rules,
                limits=limits,
                clock=SystemClock(),
                fraction=random.SystemRandom().random,
                observer=observer,
            )
            engine.on_rows(waiters.rows)
            engine.on_leader(partial(self.metrics.leader_changed, shard))
            self._engines.append(engine)

    def _make_mesh(self, directory: DataDirectory) -> Mesh:
        settings = self.settings

        def on_raft(peer: str, group: int, message: dict[str, object]) -> None:
            if 0 <= group < len(self._groups):
                self._groups[group].receive(peer, message)

        def on_up(peer: str) -> None:
            for group in self._groups:
                group.peer_up(peer)

        def on_down(peer: str, refused: bool) -> None:
            for group in self._groups:
                group.peer_down(peer, refused=refused)

        async def serve(peer: str, method: str, body: object, timeout_s: float) -> object:
            return await self._serve(peer, method, body, timeout_s)

        return Mesh(
            node_id=settings.node_id,
            cluster_id=settings.cluster_id,
            secret=settings.cluster_secret,
            peers={peer.id: peer.link for peer in settings.peers if peer.id != settings.node_id},
            host=settings.link_host,
            port=settings.link_port,
            settings=settings.link,
            incarnation=directory.incarnation,
            recognises=directory.recognises,
            on_raft=on_raft,
            on_up=on_up,
            on_down=on_down,
            serve=serve,
        )

    async def _hand_over(self) -> None:
        """Give every leadership to a peer, so that nobody waits for an election; bounded."""
        asked = [group for group in self._groups if group.transfer(None)]
        if not asked:
            return
        gone = asyncio.Event()

        def changed() -> None:
            if not any(group.status().is_leader for group in asked):
                gone.set()

        for engine in self._engines:
            engine.on_leader(changed)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANDOVER_S):
                await gone.wait()

    # -- what the node says of itself ------------------------------------------------------------

    def status(self) -> list[ShardStatus]:
        """Return one status a shard."""
        return [self._status_of(group) for group in self._groups]

    def missing(self) -> list[str]:
        """Name what keeps this node from being ready."""
        reasons = []
        for group in self._groups:
            status = group.status()
            if status.leader is None or (status.is_leader and not status.ready):
                reasons.append(f"shard {status.shard} has no leader")
            elif status.applied_index < status.commit_index:
                behind = status.commit_index - status.applied_index
                reasons.append(f"shard {status.shard} is {behind} entries behind")
        return reasons

    def _status_of(self, group: RaftGroup) -> ShardStatus:
        settings = self.settings
        status = group.status()
        own = self._peers[settings.node_id]
        leader = self._peers.get(status.leader or "")
        return ShardStatus(
            shard_idx=status.shard,
            is_leader=status.is_leader,
            self_id=settings.node_id,
            self_addr=own.link,
            leader_id=leader.id if leader else "",
            leader_addr=leader.link if leader else "",
            leader_http_addr=leader.http if leader else "",
            has_leader=leader is not None,
            term=status.term,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            digest=status.digest,
            log_bytes=status.log_bytes,
            durability=settings.raft.durability.value,
            peers=tuple(
                PeerStatus(id=peer.id, connected=peer.connected, match_index=peer.match_index)
                for peer in status.peers
            ),
        )


def _stop_at_once(shard: int, error: BaseException) -> None:
    """End the process: going on could lose or change what has been acknowledged."""
    reason = "storage failed" if isinstance(error, StorageFailed) else "an invariant does not hold"
    if isinstance(error, SafetyViolated):
        reason = "the replicated log is not safe to use"
    log.critical(
        "stopping at once: %s", reason, exc_info=error, extra={"shard": shard, "error": str(error)}
    )
    logging.shutdown()
    os._exit(EXIT_UNSAFE)


async def run(settings: NodeSettings, *, ready: Callable[[], None] | None = None) -> None:
    """Run a node until the calling task is cancelled.

    Args:
        settings: The node's.
        ready: Called once the node serves; it may not have a leader for every shard yet.
    """
    node = Node(settings)
    await node.start()
    # What start-up made lives as long as the node: the collector need not look at it again, and
    # looks less often at the rest, most of which is freed without it.
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        if ready is not None:
            ready()
        await asyncio.Event().wait()
    finally:
        await node.stop()
