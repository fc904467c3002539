"""Recovery: keeps a node's replicas whole: serves and fetches snapshots, watches the disk."""

from __future__ import annotations

import asyncio
from functools import partial

from codeq_cluster.broker.background import Background
from codeq_cluster.errors import StorageDamaged
from codeq_cluster.membership.node_view import NodeMembers
from codeq_cluster.node.base import NodeBase
from codeq_cluster.node.disk_guard import DiskGuard, OutageReason, free_bytes_of
from codeq_cluster.node.drain import Drain
from codeq_cluster.node.fatal import stop_at_once
from codeq_cluster.node.metrics import register_disk_guard
from codeq_cluster.node.open_storage import OpenStorage
from codeq_cluster.node.peer_handler import Method
from codeq_cluster.node.replica_events import ReplicaEvents
from codeq_cluster.node.replicas import Replicas
from codeq_cluster.node.shard_replica import ShardReplica
from codeq_cluster.raft.journal_rows import stored_place
from codeq_cluster.snapshots.checkpoint import Snapshots
from codeq_cluster.snapshots.fetcher import SnapshotFetcher
from codeq_cluster.snapshots.ports import READ, TAKE
from codeq_cluster.snapshots.room import Room
from codeq_cluster.snapshots.server import SnapshotServer
from codeq_cluster.storage.swap import incoming_path
from codeq_cluster.wire import Mesh


class Recovery:
    """Looks after the replicas of one node, on events from their groups.

    Attributes:
        disk_guard: Knows which replicas are out.

    Args:
        members: Know whether a shard has a majority without this node.
        events: Of the replicas; this registers for them.
    """

    def __init__(
        self,
        base: NodeBase,
        storage: OpenStorage,
        replicas: Replicas,
        *,
        mesh: Mesh,
        members: NodeMembers,
        drain: Drain,
        events: ReplicaEvents,
    ) -> None:
        settings, stores = base.settings, storage.shards
        self._stack = base.stack
        self._metrics = base.metrics
        self._stores = stores
        self._background = Background()
        shard_replicas = [
            ShardReplica(store, group, engine)
            for store, group, engine in zip(stores, replicas.groups, replicas.engines, strict=True)
        ]
        self.disk_guard = DiskGuard(
            replicas=shard_replicas,
            path=settings.data_dir,
            min_free_bytes=settings.store.min_free_bytes,
            transfer_all=drain.transfer_all,
            fatal=stop_at_once,
            pending=storage.pending,
            on_out_of_service=replicas.waiters.all,
        )
        register_disk_guard(base.metrics, self.disk_guard)
        snapshots = [
            Snapshots(
                storage.directory.snapshots_path(shard),
                shard=shard,
                store=store,
                incoming=incoming_path(storage.directory.shard_path(shard)),
                log_at=stored_place,
            )
            for shard, store in enumerate(stores)
        ]
        self._server = SnapshotServer(
            stores=snapshots, replicas=shard_replicas, on_taken=base.metrics.snapshot_taken
        )
        for shard, engine in enumerate(replicas.engines):
            engine.on_reload(partial(self._server.forget, shard))
        self._fetcher = SnapshotFetcher(
            stores=snapshots,
            replicas=shard_replicas,
            calls=mesh,
            room=Room(
                free_bytes=partial(free_bytes_of, settings.data_dir),
                reserve_bytes=settings.store.min_free_bytes,
                is_out=self._is_out_of_room,
            ),
            bytes_per_s=settings.raft.snapshot_bytes_per_s,
            hurries=members.needed,
            on_installed=self._installed,
            on_failed=self.failed,
        )
        events.on_behind = self.behind
        events.on_diverged = self.diverged
        events.on_failed = self.failed

    @property
    def methods(self) -> dict[str, Method]:
        """Return the methods served to peers."""
        return {TAKE: self._server.serve, READ: self._server.serve}

    def start(self) -> None:
        """Watch the disk, the data and the snapshots; fetches stop before the groups do.

        Damage that is met before, while the groups read their logs, ends the start instead.
        """
        self._watch_for_damage()
        self._stack.push_async_callback(self._background.stop)
        self._background.spawn(self.disk_guard.watch())
        self._background.spawn(self._server.watch())

    def is_out(self, shard: int) -> bool:
        """Return whether a shard's replica is out."""
        return shard in self.disk_guard.out

    def behind(self, shard: int) -> None:
        """Fetch a snapshot: the leader no longer has entries that the replica needs."""
        self._background.spawn(self._fetcher.fetch(shard))

    def diverged(self, shard: int, index: int) -> None:
        """Replace a replica's state, which differed from the majority's at an entry."""
        if self.disk_guard.diverged(shard, index):
            self.behind(shard)

    def failed(self, shard: int, error: BaseException) -> None:
        """Take a replica out because its disk refused or its data is damaged."""
        self.disk_guard.failed(shard, error)

    def _installed(self, shard: int, seconds: float) -> None:
        self._metrics.snapshot_taken(shard, seconds)
        self.disk_guard.installed(shard)

    def _is_out_of_room(self, shard: int) -> bool:
        outage = self.disk_guard.out.get(shard)
        return outage is not None and outage.reason is OutageReason.DISK_FULL

    def _watch_for_damage(self) -> None:
        loop = asyncio.get_running_loop()

        def met(shard: int, error: StorageDamaged) -> None:
            loop.call_soon_threadsafe(partial(self.failed, shard, error))

        for shard, store in enumerate(self._stores):
            store.report_damage(partial(met, shard))
