"""A program with a node's storage on real files; it writes until it is killed.

Arguments: the data directory, the number of shards, and the value of `store.sync`. For each durable
    row it prints the shard and the number of the row, in one write.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from codeq_cluster.raft.io_adapters import DiskThread, LoopTimers
from codeq_cluster.settings import LogSync, StoreSettings
from codeq_cluster.storage.directory import open_directory
from codeq_cluster.storage.node_storage import NodeStorage
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from codeq_cluster.storage.syncers import syncer_of

_SETTINGS = StoreSettings(block_cache_bytes=2**20, memtable_bytes=2**16)
_TRIM_EACH = 50
_STOP_S = 60.0
DIGEST_BYTES = 16


@asynccontextmanager
async def storage_of(
    path: Path, *, shards: int, planned: bool, sync: LogSync = LogSync.THREAD
) -> AsyncIterator[NodeStorage]:
    """Open a node's storage; at the end it stops as planned, or as if the process were killed."""
    loop = asyncio.get_running_loop()
    cache = new_cache(_SETTINGS)
    disk = DiskThread(loop)
    syncer = syncer_of(sync, disk, loop, loop.time)
    failures: list[tuple[int, BaseException]] = []
    with open_directory(path, cluster_id="c", node_id="n1", shards=shards) as directory:
        databases = [
            RocksShard(
                directory.shard_path(shard),
                settings=_SETTINGS,
                cache=cache,
                create=not directory.made,
                wal=directory.wal,
            )
            for shard in range(shards)
        ]
        try:
            directory.note_made()
            storage = NodeStorage(
                databases,
                directory,
                executor=disk,
                syncer=syncer,
                timers=LoopTimers(loop),
                on_synced=lambda _seconds, _shard: None,
                on_failed=lambda shard, error: failures.append((shard, error)),
                segment_bytes=2**16,
            )
            storage.start()
            yield storage
            if planned:
                storage.stop()
            else:
                storage.kill()
            assert not failures
        finally:
            assert syncer.stop(_STOP_S)
            assert disk.stop(_STOP_S)
            for database in databases:
                database.close()


def row_of(number: int) -> tuple[bytes, bytes]:
    """Return a row of a log."""
    return b"log/" + number.to_bytes(8, "big"), (b"%d " % number) * 200


async def write(storage: NodeStorage, shard: int, *rows: tuple[bytes, bytes]) -> None:
    """Write the rows and return once they are durable."""
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    storage.shards[shard].log.write(rows, [], done.set_result)
    assert await done is None


def stored_rows(storage: NodeStorage, shard: int) -> dict[bytes, bytes]:
    """Return the rows of a log."""
    log = storage.shards[shard].log
    return dict(log.scan(b"log/", b"log0", limit=10**6, bytes_max=2**40))


def next_row(storage: NodeStorage, shard: int) -> int:
    """Return the number after that of the last row."""
    rows = stored_rows(storage, shard)
    return int.from_bytes(max(rows)[len(b"log/") :], "big") + 1 if rows else 2


async def _work(storage: NodeStorage, shard: int) -> None:
    """Write rows, apply each, and trim the rows that the database has, for ever."""
    here = storage.shards[shard]
    number = next_row(storage, shard)
    while True:
        await write(storage, shard, row_of(number))
        os.write(1, b"%d %d\n" % (shard, number))
        # The state may be behind the log, as after any start.
        for index in range(here.state.applied_index + 1, number + 1):
            assert here.log.get(row_of(index)[0]) is not None, f"entry {index} is gone"
            here.state.commit({b"last": b"%d" % index}, index=index, digest=bytes(DIGEST_BYTES))
        if number % _TRIM_EACH == 0:
            here.log.forget([(b"log/", row_of(here.state.stored_index)[0])], [])
        number += 1


async def _main(path: Path, shards: int, sync: LogSync) -> None:
    async with (
        storage_of(path, shards=shards, planned=False, sync=sync) as storage,
        asyncio.TaskGroup() as g,
    ):
        for shard in range(shards):
            g.create_task(_work(storage, shard))


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]), LogSync(sys.argv[3])))
