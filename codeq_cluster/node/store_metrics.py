"""Store metrics: state and work of each shard's RocksDB, read at the scrape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.telemetry import Metrics, ScrapedMetric

_Sample = tuple[str, Sequence[str], float]

_GAUGES = {
    "level0_files": "Files in level 0; a lookup may have to search all of them.",
    "pending_compaction_bytes": "Estimated bytes that compactions have yet to rewrite.",
    "running_compactions": "Compactions in progress.",
    "running_flushes": "Flushes in progress.",
    "write_stopped": "1 if writes wait until flushes and compactions have caught up.",
    "delayed_write_rate": "Bytes per second to which writes are slowed down; 0 if they are not.",
    "memtable_bytes": "Bytes of memory in the memtables.",
    "block_cache_bytes": "Bytes of memory in the block cache, which all shards share.",
    "live_sst_bytes": "Bytes in the files in use.",
    "keys": "Estimated number of rows.",
}
_COUNTERS = {
    "written_bytes": "Bytes in the batches that the log and the state wrote.",
    "wal_written_bytes": "Bytes written to the write-ahead log.",
    "flushes": "Flushes: memtables written to files.",
    "flush_seconds": "Seconds spent in flushes.",
    "flush_written_bytes": "Bytes that flushes wrote.",
    "compactions": "Compactions that finished.",
    "compaction_seconds": "Seconds spent in compactions.",
    "compaction_read_bytes": "Bytes that compactions read.",
    "compaction_written_bytes": "Bytes that compactions wrote.",
    "keys_read": "Lookups of a row by its key.",
    "block_cache_hits": "Blocks found in the block cache.",
    "block_cache_misses": "Blocks read from a file because the block cache lacked them.",
}
_STALLS = "Times that writes were slowed down (delay) or stopped (stop)."
_PER_LEVEL = {
    "level_files": "Files in the level.",
    "level_bytes": "Bytes in the level's files.",
    "level_read_amplification": "Sorted runs in the level that a lookup may have to search.",
    "level_write_amplification": "Bytes written to the level for each byte from the level above.",
}
_READS = "Reads of the level's files, after misses in the block cache."

_BY_SHARD = ("shard",)
_BY_LEVEL = ("shard", "family", "level")


def register_stores(metrics: Metrics, stores: Sequence[RocksShard]) -> None:
    """Register the metrics of the stores, by shard, and by column family and level within it.

    A scrape reads them from RocksDB on the loop: about a millisecond a shard.
    """
    scraped = [_metric(_gauge(name), text, _BY_SHARD) for name, text in _GAUGES.items()]
    scraped += [_metric(_counter(name), text, _BY_SHARD) for name, text in _COUNTERS.items()]
    scraped += [_metric(_counter("write_stalls"), _STALLS, ("shard", "kind"))]
    scraped += [_metric(_gauge(name), text, _BY_LEVEL) for name, text in _PER_LEVEL.items()]
    scraped += [_metric(_counter("level_file_reads"), _READS, _BY_LEVEL)]
    metrics.read_together_at_scrape(scraped, lambda: _samples(stores))


def _metric(name: str, text: str, labels: tuple[str, ...]) -> ScrapedMetric:
    return ScrapedMetric(name=name, text=text, labels=labels)


def _gauge(name: str) -> str:
    return f"codeq_store_{name}"


def _counter(name: str) -> str:
    return f"codeq_store_{name}_total"


def _samples(stores: Sequence[RocksShard]) -> Iterator[_Sample]:
    for number, store in enumerate(stores):
        shard = str(number)
        for name, value in store.properties().items():
            yield _gauge(name), (shard,), value
        for name, value in store.counters().items():
            yield _counter(name), (shard,), value
        for family in store.family_statistics():
            for kind, count in family.stalls.items():
                yield _counter("write_stalls"), (shard, kind), float(count)
            for level in family.levels:
                key = (shard, level.family, str(level.level))
                yield _gauge("level_files"), key, float(level.files)
                yield _gauge("level_bytes"), key, level.size_bytes
                yield _gauge("level_read_amplification"), key, float(level.read_amplification)
                yield _gauge("level_write_amplification"), key, level.write_amplification
                yield _counter("level_file_reads"), key, float(level.file_reads)
