"""Rocks options: how a shard's RocksDB is set up."""

from __future__ import annotations

from rocksdict import BlockBasedIndexType, BlockBasedOptions, Cache, DBRecoveryMode, Options

from codeq_cluster.settings import StoreSettings

# RocksDB marks a file when half of this many consecutive rows are deleted; one read of a queue's
# head has fewer rows than that.
_TOMBSTONE_WINDOW = 512


def new_cache(settings: StoreSettings) -> Cache:
    """Return a new block cache for all shards of a node."""
    return Cache(settings.block_cache_bytes)


def database_options(settings: StoreSettings, *, create: bool) -> Options:
    """Return the options of a shard's database."""
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    refuse_damage(options)
    options.set_max_background_jobs(2)
    options.set_max_total_wal_size(8 * settings.memtable_bytes)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(2**20)
    # Statistics for the metrics; they had no measurable cost for reads or writes.
    options.enable_statistics()
    return options


def refuse_damage(options: Options) -> None:
    """Make RocksDB refuse a damaged write-ahead log; by default it drops what follows the damage.

    A crash can tear the last record, which it cuts.
    """
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())


def cut_damage(options: Options) -> None:
    """Make RocksDB end its write-ahead log before the first damage.

    A power cut leaves zeros in unsynced content, because pages reach the disk in any order. Rows
    after them are lost, so the node's own log must have them.
    """
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())


def state_options(settings: StoreSettings, cache: Cache) -> Options:
    """Return the options of the state's column family."""
    options = log_options(settings, cache)
    # Queue rows are deleted where they are read. Files full of tombstones are compacted early:
    # otherwise a scan of a queue's head would have to skip every task claimed before.
    options.add_compact_on_deletion_collector_factory(
        _TOMBSTONE_WINDOW, _TOMBSTONE_WINDOW // 2, deletion_ratio=0.5
    )
    return options


def log_options(settings: StoreSettings, cache: Cache) -> Options:
    """Return the options of the log's column family."""
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(settings.bloom_bits, block_based=False)
    # In pieces, because a filter or index larger than one shard of the cache would be read for
    # every get.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(4096)
    table.set_pin_top_level_index_and_filter(True)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(settings.memtable_bytes)
    options.set_max_write_buffer_number(3)
    options.set_level_compaction_dynamic_level_bytes(True)
    return options
