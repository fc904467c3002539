"""Open storage: the data directory, a database per shard, and the write-ahead log before them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.node.base import NodeBase
from codeq_cluster.node.disk_guard import out_of_room
from codeq_cluster.node.metrics import register_log_sync
from codeq_cluster.raft.io_adapters import DiskThread, LoopTimers
from codeq_cluster.settings import Durability, NodeSettings
from codeq_cluster.storage.directory import DataDirectory, open_directory
from codeq_cluster.storage.node_storage import NodeStorage
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from codeq_cluster.storage.shard import Shard
from codeq_cluster.storage.syncers import syncer_of
from codeq_cluster.storage.wal_writer import Syncer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStorage:
    """A node's storage.

    Attributes:
        databases: By shard.
        shards: Each shard's rows and log, in front of its database.
        syncer: Waits until the disk has a write; None when nobody waits.
        pending: Returns the number of the log's write that the disk has not answered; 0 for none.
    """

    directory: DataDirectory
    databases: Sequence[RocksShard]
    shards: Sequence[Shard]
    syncer: Syncer | None
    pending: Callable[[], int]


def open_storage(base: NodeBase, *, on_failed: Callable[[int, BaseException], None]) -> OpenStorage:
    """Lock and check the directory, raise its incarnation by one, and open everything in it.

    Args:
        on_failed: Called with (shard, error) when a database failed.

    Raises:
        DataDirectoryRefused: The data is another node's, another cluster's, locked or damaged.
        ReleaseTooOld: The data has formats that this release does not know.
    """
    settings = base.settings
    directory = open_directory(
        settings.data_dir,
        cluster_id=settings.cluster_id,
        node_id=settings.node_id,
        shards=settings.shards,
        virtual_by_ms=None if base.virtual is None else base.virtual.offset_ms,
    )
    base.stack.callback(directory.close)
    if base.virtual is not None and directory.virtual_by_ms is not None:
        base.virtual.begin(offset_ms=directory.virtual_by_ms)
    databases = list(_open_databases(base, directory))
    directory.note_made()
    loop = asyncio.get_running_loop()
    disk = DiskThread(loop)
    syncer = _syncer(settings, disk, loop)
    register_log_sync(base.metrics, syncer)
    storage = NodeStorage(
        databases,
        directory,
        executor=disk,
        syncer=syncer,
        timers=LoopTimers(loop),
        on_synced=base.metrics.fsync.observe,
        on_failed=on_failed,
        held_bytes=settings.store.unspilled_bytes,
    )
    with naming_remedy(settings.data_dir):
        storage.start()
    base.stack.callback(storage.stop)
    return OpenStorage(
        directory=directory,
        databases=databases,
        shards=storage.shards,
        syncer=syncer,
        pending=storage.pending,
    )


@contextlib.contextmanager
def naming_remedy(data_dir: Path, *, shard: int | None = None) -> Iterator[None]:
    """Refuse the directory on a storage error, with the shard's number and a remedy."""
    try:
        yield
    except (DataDirectoryRefused, StorageFailed) as error:
        text = f"{error}{remedy(error, data_dir)}"
        raise DataDirectoryRefused(text if shard is None else f"shard {shard}: {text}") from error


def remedy(error: BaseException, data_dir: Path) -> str:
    """Return what an operator can do against a storage error, as the end of its text."""
    if "in use by another process" in str(error) or out_of_room(error):
        return ""
    return f"; see what codeq-cluster repair --data-dir {data_dir} finds"


def _open_databases(base: NodeBase, directory: DataDirectory) -> Iterator[RocksShard]:
    settings = base.settings
    cache = new_cache(settings.store)
    for shard in range(settings.shards):
        with naming_remedy(settings.data_dir, shard=shard):
            database = RocksShard(
                directory.shard_path(shard),
                settings=settings.store,
                cache=cache,
                create=not directory.made,
                wal=directory.wal,
            )
        base.stack.callback(_close, shard, database)
        yield database


def _syncer(
    settings: NodeSettings, disk: DiskThread, loop: asyncio.AbstractEventLoop
) -> Syncer | None:
    if settings.raft.durability is not Durability.FSYNC:
        return None
    return syncer_of(settings.store.sync, disk, loop, loop.time)


def _close(shard: int, store: RocksShard) -> None:
    """Close a store; only log its earlier failure, so that it hides no other error."""
    try:
        store.close()
    except StorageFailed as error:
        log.warning("closing a store failed", extra={"shard": shard, "error": str(error)})
