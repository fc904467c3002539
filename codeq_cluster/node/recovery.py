"""Recovery: keeps a node's replicas whole: serves and fetches snapshots, watches the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.errors import StorageDamaged
from codeq_cluster.node.disk_guard import OutageReason, Outages, free_bytes_of
from codeq_cluster.node.metrics import register_outages
from codeq_cluster.node.shard_replica import ShardReplica
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.journal import stored_place
from codeq_cluster.settings import NodeSettings
from codeq_cluster.snapshots.checkpoint import Snapshots
from codeq_cluster.snapshots.fetcher import SnapshotFetcher
from codeq_cluster.snapshots.ports import READ, TAKE
from codeq_cluster.snapshots.room import Room
from codeq_cluster.snapshots.server import SnapshotServer
from codeq_cluster.storage.directory import DataDirectory
from codeq_cluster.storage.shard import Shard
from codeq_cluster.storage.swap import incoming_path
from codeq_cluster.telemetry import Metrics
from codeq_cluster.wire import Mesh

_Serve = Callable[[str, str, object, float], Coroutine[None, None, object]]


class Recovery:
    """Looks after the replicas of one node, on events from their groups.

    Attributes:
        outages: The replicas that are out.

    Args:
        settings: The node's settings.
        stores: Of this node, in the order of shards.
        groups: In the same order; may be filled until `attach`.
        engines: In the same order; may be filled until `attach`.
        background: Runs it all; it ends before the replicas do.
        metrics: Counts the events.
        fatal: Called with (shard, error) when the process must end; does not return.
    """

    outages: Outages

    def __init__(
        self,
        settings: NodeSettings,
        *,
        stores: Sequence[Shard],
        groups: Sequence[RaftGroup],
        engines: Sequence[Engine],
        background: Background,
        metrics: Metrics,
        fatal: Callable[[int, BaseException], None],
    ) -> None:
        self._settings = settings
        self._stores = stores
        self._groups = groups
        self._engines = engines
        self._background = background
        self._metrics = metrics
        self._fatal = fatal

    def attach(
        self,
        mesh: Mesh,
        directory: DataDirectory,
        *,
        hand_over: Callable[[], Awaitable[None]],
        told: Callable[[], None],
        needed: Callable[[int], bool],
    ) -> dict[str, _Serve]:
        """Start, now that there are groups; return the methods served to peers.

        Args:
            mesh: To the peers.
            directory: Holds the snapshots.
            hand_over: Transfers the leaderships; bounded.
            told: See `Outages`.
            needed: Returns whether a shard has no majority without this node.
        """
        settings = self._settings
        replicas = [
            ShardReplica(store, group, engine)
            for store, group, engine in zip(self._stores, self._groups, self._engines, strict=True)
        ]
        self.outages = Outages(
            replicas=replicas,
            path=settings.data_dir,
            min_free_bytes=settings.store.min_free_bytes,
            hand_over=hand_over,
            fatal=self._fatal,
            told=told,
        )
        self._background.spawn(self.outages.watch())
        self._watch_for_damage()
        register_outages(self._metrics, self.outages)
        snapshots = [
            Snapshots(
                directory.snapshots_path(shard),
                shard=shard,
                store=store,
                incoming=incoming_path(directory.shard_path(shard)),
                log_at=stored_place,
            )
            for shard, store in enumerate(self._stores)
        ]
        server = SnapshotServer(
            stores=snapshots,
            replicas=replicas,
            took=self._metrics.snapshot_taken,
        )
        self._background.spawn(server.watch())
        for shard, engine in enumerate(self._engines):
            engine.on_reload(partial(server.forget, shard))
        self._fetcher = SnapshotFetcher(
            stores=snapshots,
            replicas=replicas,
            calls=mesh,
            room=Room(
                free_bytes=partial(free_bytes_of, settings.data_dir),
                reserve_bytes=settings.store.min_free_bytes,
                is_out=self._is_out_of_room,
            ),
            bytes_per_s=settings.raft.snapshot_bytes_per_s,
            hurries=needed,
            took=self._installed,
            failed=self.failed,
        )
        return {TAKE: server.serve, READ: server.serve}

    def behind(self, shard: int) -> None:
        """Fetch a snapshot: the leader no longer has entries that the replica needs."""
        self._background.spawn(self._fetcher.fetch(shard))

    def diverged(self, shard: int, index: int) -> None:
        """Replace a replica's state, which differed from the majority's at an entry."""
        if self.outages.diverged(shard, index):
            self.behind(shard)

    def failed(self, shard: int, error: BaseException) -> None:
        """Take a replica out because its disk refused or its data is damaged."""
        self.outages.failed(shard, error)

    def _installed(self, shard: int, seconds: float) -> None:
        self._metrics.snapshot_taken(shard, seconds)
        self.outages.installed(shard)

    def _is_out_of_room(self, shard: int) -> bool:
        outage = self.outages.out.get(shard)
        return outage is not None and outage.reason is OutageReason.DISK_FULL

    def _watch_for_damage(self) -> None:
        loop = asyncio.get_running_loop()

        def met(shard: int, error: StorageDamaged) -> None:
            loop.call_soon_threadsafe(partial(self.failed, shard, error))

        for shard, store in enumerate(self._stores):
            store.state.on_damage = store.log.on_damage = partial(met, shard)
