"""Storage: disks, and RocksDB's work on them."""

from __future__ import annotations

from deploy.grafana.boards.panels import Board
from deploy.grafana.boards.terms import growth, most, of, rate, total

_MINE = {"instance": "$instance", "shard": "$shard"}


def storage() -> Board:
    """Return the board of the disks."""
    board = Board("storage", "Storage", "Do the disks keep up, and how long will they last?")
    board.choose("instance", "Node", "codeq_disk_free_bytes")
    board.choose("shard", "Shard", "codeq_store_keys")
    _disks(board)
    _work(board)
    _levels(board)
    _memory(board)
    return board


def _disks(board: Board) -> None:
    board.row("Disks")
    free = of("codeq_disk_free_bytes", instance="$instance")
    board.graph("Free", (free, "{{instance}}"), unit="bytes")
    board.graph(
        "Size of the stores",
        (total(of("codeq_store_live_sst_bytes", **_MINE), "instance"), "{{instance}}"),
        unit="bytes",
    )
    board.graph(
        "Rows, estimated", (total(of("codeq_store_keys", **_MINE), "instance"), "{{instance}}")
    )


def _work(board: Board) -> None:
    written = rate("codeq_store_written_bytes_total", "instance", **_MINE)
    parts = {
        "write-ahead log": "codeq_store_wal_written_bytes_total",
        "flushes": "codeq_store_flush_written_bytes_total",
        "compactions": "codeq_store_compaction_written_bytes_total",
    }
    on_disk = " + ".join(rate(metric, "instance", **_MINE) for metric in parts.values())
    board.row("Work")
    board.graph(
        "Written in a second, by whom",
        *((rate(metric, **_MINE), name) for name, metric in parts.items()),
        unit="Bps",
        stacked=True,
    )
    board.graph(
        "Write amplification",
        (f"({on_disk}) / {written}", "{{instance}}"),
        about="Bytes that go to the disk for each byte written to the store.",
    )
    board.graph(
        "Read by compactions in a second",
        (rate("codeq_store_compaction_read_bytes_total", "instance", **_MINE), "{{instance}}"),
        unit="Bps",
    )
    board.graph(
        "Flushes and compactions",
        (growth("codeq_store_flushes_total", **_MINE), "flushes"),
        (growth("codeq_store_compactions_total", **_MINE), "compactions"),
        (total(of("codeq_store_running_flushes", **_MINE)), "flushes under way"),
        (total(of("codeq_store_running_compactions", **_MINE)), "compactions under way"),
    )
    board.graph(
        "Time spent in them",
        (rate("codeq_store_flush_seconds_total", **_MINE), "flushes"),
        (rate("codeq_store_compaction_seconds_total", **_MINE), "compactions"),
        unit="percentunit",
        about="Of one core and its disk.",
    )
    board.graph(
        "Left to compact",
        (total(of("codeq_store_pending_compaction_bytes", **_MINE), "instance"), "{{instance}}"),
        unit="bytes",
    )
    board.graph(
        "Stalls of writes",
        (growth("codeq_store_write_stalls_total", "kind", **_MINE), "{{kind}}"),
        (total(of("codeq_store_write_stopped", **_MINE)), "shards stopped now"),
        about="RocksDB slows writes down (delay) or refuses them (stop) until it has caught up.",
        width=12,
    )
    board.graph(
        "Pace of writes that are slowed down",
        (most(of("codeq_store_delayed_write_rate", **_MINE), "instance"), "{{instance}}"),
        unit="Bps",
        about="0 when they are not.",
        width=12,
    )


def _levels(board: Board) -> None:
    each = "{{family}} level {{level}}"
    board.row("Levels")
    for title, metric, unit, about in (
        ("Files", "codeq_store_level_files", "short", ""),
        ("Size", "codeq_store_level_bytes", "bytes", ""),
    ):
        board.graph(
            title, (total(of(metric, **_MINE), "family, level"), each), unit=unit, about=about
        )
    board.graph(
        "Reads of files in a second",
        (rate("codeq_store_level_file_reads_total", "family, level", **_MINE), each),
        unit="ops",
        about="Those that the block cache did not spare, of lookups and compactions.",
    )
    for title, metric, about in (
        (
            "Read amplification, worst shard",
            "codeq_store_level_read_amplification",
            "Sorted runs of a level that a lookup may have to search.",
        ),
        (
            "Write amplification, worst shard",
            "codeq_store_level_write_amplification",
            "Bytes written to a level for each byte that came in from above, since the start.",
        ),
        ("Files of level 0, worst shard", "codeq_store_level0_files", ""),
    ):
        by = "instance" if metric.endswith("level0_files") else "family, level"
        legend = "{{instance}}" if by == "instance" else each
        board.graph(title, (most(of(metric, **_MINE), by), legend), about=about)


def _memory(board: Board) -> None:
    hits = rate("codeq_store_block_cache_hits_total", "instance", **_MINE)
    misses = rate("codeq_store_block_cache_misses_total", "instance", **_MINE)
    board.row("Memory")
    board.graph(
        "Memtables",
        (total(of("codeq_store_memtable_bytes", **_MINE), "instance"), "{{instance}}"),
        unit="bytes",
    )
    board.graph(
        "Block cache",
        (most(of("codeq_store_block_cache_bytes", **_MINE), "instance"), "{{instance}}"),
        unit="bytes",
        about="The shards of a node share it.",
    )
    board.graph(
        "Blocks found in the cache",
        (f"{hits} / ({hits} + {misses})", "{{instance}}"),
        unit="percentunit",
        most=1,
    )
    board.graph(
        "Lookups in a second",
        (rate("codeq_store_keys_read_total", "instance", **_MINE), "{{instance}}"),
        unit="ops",
        width=24,
    )
