"""Store: the settings of the write-ahead log and of RocksDB, one directory a shard."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from codeq_cluster.settings.key import key
from codeq_cluster.settings.kinds import MIB, member, whole


class LogSync(StrEnum):
    """Which thread waits until the disk has the write-ahead log."""

    AUTO = "auto"
    THREAD = "thread"
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The log of a node and the databases of its shards."""

    block_cache_bytes: int = key(
        256 * MIB, whole(MIB, 2**40), "size of RocksDB's block cache, shared by all shards"
    )
    memtable_bytes: int = key(16 * MIB, whole(MIB, 4096 * MIB), "size of one memtable")
    bloom_bits: int = key(10, whole(1, 32), "bits for each key in the Bloom filters")
    # A stall of some seconds at 10 MB/s.
    unspilled_bytes: int = key(
        64 * MIB,
        whole(MIB, 2**40),
        "size of a shard's rows in memory that its database has not taken yet; beyond it, the "
        "shard waits",
    )
    # At 100 MB/s of writes: a second's notice, and room for writes in progress.
    min_free_bytes: int = key(
        256 * MIB,
        whole(0, 2**40),
        "free space on the disk; a node with less stops leading and voting before writes fail; "
        "0 waits until one fails",
    )
    # The kernel costs half the CPU, and waits longer where other work keeps all cores busy.
    sync: LogSync = key(
        LogSync.AUTO,
        member(LogSync),
        "what waits for the disk: `kernel` takes less CPU, `thread` is faster on busy cores, "
        "`auto` decides by how long syncs take",
    )
