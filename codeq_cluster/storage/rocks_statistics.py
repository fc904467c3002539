"""RocksDB's statistics: its work per level and in total, read from the texts it prints.

The binding gives numbers only for the simplest properties, so this module parses the tables that
RocksDB writes into its own log. It skips lines of another form, as a later RocksDB may print; a
test against the real one notices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LEVEL = re.compile(
    r"^ +L(?P<level>\d+) +(?P<files>\d+)/\d+ +(?P<size>[\d.]+) (?P<unit>[KMGT]B)"
    # Score, then the bytes that compactions read, wrote and moved, in tenths of a gigabyte: too
    # coarse.
    r"(?: +[\d.]+){7}"
    r" +(?P<write_amplification>[\d.]+) ",
    re.MULTILINE,
)
_READS = re.compile(
    r"^\*\* Level (?P<level>\d+) read latency histogram \(micros\):\nCount: (?P<count>\d+) ",
    re.MULTILINE,
)
_STALLS = re.compile(r" total-(?P<kind>delays|stops): (?P<count>\d+)")
_UNITS = {"KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_KINDS = {"delays": "delay", "stops": "stop"}

# RocksDB's counters, by metric name.
_COUNTS = {
    "written_bytes": "bytes.written",
    "wal_written_bytes": "wal.bytes",
    "flush_written_bytes": "flush.write.bytes",
    "compaction_read_bytes": "compact.read.bytes",
    "compaction_written_bytes": "compact.write.bytes",
    "keys_read": "number.keys.read",
    "block_cache_hits": "block.cache.hit",
    "block_cache_misses": "block.cache.miss",
}
# RocksDB's timers: each has a number of runs and the seconds they took.
_TIMES = {
    ("flushes", "flush_seconds"): "db.flush.micros",
    ("compactions", "compaction_seconds"): "compaction.times.micros",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStatistics:
    """One level of one column family that holds files, or has held some since the opening.

    Attributes:
        level: From 0.
        files: In the level.
        size_bytes: Of these files, to three digits.
        read_amplification: Sorted runs a lookup may have to search here: every file of level 0,
            one of any other level that is not empty.
        write_amplification: Bytes written here for each byte that came in from above, since the
            opening, to a tenth.
        file_reads: Reads of these files that the block cache did not spare, compactions' included,
            since the opening.
    """

    family: str
    level: int
    files: int
    size_bytes: float
    read_amplification: int
    write_amplification: float
    file_reads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyStatistics:
    """One column family.

    Attributes:
        levels: In ascending order.
        stalls: How often writes were slowed down (`delay`) and refused (`stop`) until flushes and
            compactions had caught up, since the opening.
    """

    levels: tuple[LevelStatistics, ...]
    stalls: dict[str, int]


def family_statistics(text: str, *, family: str) -> FamilyStatistics:
    """Return the statistics in a column family's property `rocksdb.cfstats`."""
    reads = {int(found["level"]): int(found["count"]) for found in _READS.finditer(text)}
    stalls = {_KINDS[found["kind"]]: int(found["count"]) for found in _STALLS.finditer(text)}
    return FamilyStatistics(levels=tuple(_levels(text, family, reads)), stalls=stalls)


def _levels(text: str, family: str, reads: dict[int, int]) -> Iterator[LevelStatistics]:
    for found in _LEVEL.finditer(text):
        level, files = int(found["level"]), int(found["files"])
        yield LevelStatistics(
            family=family,
            level=level,
            files=files,
            size_bytes=float(found["size"]) * _UNITS[found["unit"]],
            read_amplification=files if level == 0 else min(files, 1),
            write_amplification=float(found["write_amplification"]),
            file_reads=reads.get(level, 0),
        )


def counters(text: str) -> dict[str, float]:
    """Return the statistics that a database prints.

    Returns:
        Totals since the opening, by name: `…_bytes`, `…_seconds`, or a number of times.
    """
    totals: dict[str, float] = {}
    for name, theirs in _COUNTS.items():
        count = _number(_line(text, theirs), "COUNT")
        if count is not None:
            totals[name] = count
    for (runs, seconds), theirs in _TIMES.items():
        line = _line(text, theirs)
        count, micros = _number(line, "COUNT"), _number(line, "SUM")
        if count is not None and micros is not None:
            totals[runs], totals[seconds] = count, micros / 1e6
    return totals


def _line(text: str, name: str) -> str:
    """Return the line of a counter or timer, empty without one.

    Searched by its first word, because a scrape on the node's loop needs a dozen of 300 lines.
    """
    start = text.find(f"rocksdb.{name} ")
    return "" if start < 0 else text[start : text.find("\n", start)]


def _number(line: str, word: str) -> float | None:
    _, found, rest = line.partition(f" {word} : ")
    return float(rest.split()[0]) if found else None
