"""Store metrics: state and work of each shard's RocksDB, read at the scrape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.telemetry import Metrics, ScrapedMetric

_Sample = tuple[str, Sequence[str], float]

_GAUGES = {
    "level0_files": "Files of level 0, which every lookup may have to search.",
    "pending_compaction_bytes": "Estimated bytes that compactions have yet to rewrite.",
    "running_compactions": "Compactions under way.",
    "running_flushes": "Flushes under way.",
    "write_stopped": "Whether writes wait until flushes and compactions have caught up.",
    "delayed_write_rate": "Bytes a second that writes are slowed down to; 0 when they are not.",
    "memtable_bytes": "Memory of the memtables.",
    "block_cache_bytes": "Memory of the block cache, which the shards share.",
    "live_sst_bytes": "Size of the files in use.",
    "keys": "Estimate of the number of rows.",
}
_COUNTERS = {
    "written_bytes": "Bytes of the batches written, by the log and the state.",
    "wal_written_bytes": "Bytes written to the write-ahead log.",
    "flushes": "Memtables written to files.",
    "flush_seconds": "Seconds spent in flushes.",
    "flush_written_bytes": "Bytes that flushes wrote.",
    "compactions": "Compactions that ended.",
    "compaction_seconds": "Seconds spent in compactions.",
    "compaction_read_bytes": "Bytes that compactions read.",
    "compaction_written_bytes": "Bytes that compactions wrote.",
    "keys_read": "Lookups of a row by its key.",
    "block_cache_hits": "Blocks that were found in the block cache.",
    "block_cache_misses": "Blocks that had to be read from a file.",
}
_STALLS = "Times that writes were slowed down (delay) or refused (stop) for a while."
_PER_LEVEL = {
    "level_files": "Files of the level.",
    "level_bytes": "Size of the files of the level.",
    "level_read_amplification": "Sorted runs of the level that a lookup may have to search.",
    "level_write_amplification": "Bytes written to the level per byte from above, since the start.",
}
_READS = "Reads of the level's files that the block cache did not spare."

_BY_SHARD = ("shard",)
_BY_LEVEL = ("shard", "family", "level")


def register_stores(metrics: Metrics, stores: Sequence[RocksShard]) -> None:
    """Register the metrics of the stores, by shard, and by column family and level within it.

    A scrape reads them from RocksDB on the loop: about a millisecond a shard.
    """
    levels = [_level(name, text, _BY_SHARD) for name, text in _GAUGES.items()]
    levels += [_level(name, text, _BY_SHARD, counter=True) for name, text in _COUNTERS.items()]
    levels += [_level("write_stalls", _STALLS, ("shard", "kind"), counter=True)]
    levels += [_level(name, text, _BY_LEVEL) for name, text in _PER_LEVEL.items()]
    levels += [_level("level_file_reads", _READS, _BY_LEVEL, counter=True)]
    metrics.read_together_at_scrape(levels, lambda: _samples(stores))


def _level(
    name: str, text: str, labels: tuple[str, ...], *, counter: bool = False
) -> ScrapedMetric:
    return ScrapedMetric(
        name=_counter(name) if counter else f"codeq_store_{name}",
        text=text,
        labels=labels,
        counter=counter,
    )


def _counter(name: str) -> str:
    return f"codeq_store_{name}_total"


def _samples(stores: Sequence[RocksShard]) -> Iterator[_Sample]:
    for number, store in enumerate(stores):
        shard = str(number)
        for name, value in store.properties().items():
            yield f"codeq_store_{name}", (shard,), value
        for name, value in store.counters().items():
            yield _counter(name), (shard,), value
        for family in store.family_statistics():
            for kind, count in family.stalls.items():
                yield _counter("write_stalls"), (shard, kind), float(count)
            for level in family.levels:
                key = (shard, level.family, str(level.level))
                yield "codeq_store_level_files", key, float(level.files)
                yield "codeq_store_level_bytes", key, level.size_bytes
                yield "codeq_store_level_read_amplification", key, float(level.read_amplification)
                yield "codeq_store_level_write_amplification", key, level.write_amplification
                yield _counter("level_file_reads"), key, float(level.file_reads)
