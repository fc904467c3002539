"""Opening: brings a node's shards up to date with its write-ahead log at a start."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from codeq_cluster.storage.buffer import RowBuffer
from codeq_cluster.storage.shard import Database, write_log_rows
from codeq_cluster.storage.wal import Wal

log = logging.getLogger(__name__)

_PIECE = 1000  # Writes of the log that one step brings into the databases.


def catch_up(databases: Sequence[Database], wal: Wal, *, expected: bool) -> None:
    """Bring the content of the write-ahead log into the databases, then begin a segment.

    Afterwards every database has, on disk, everything that was promised.

    Args:
        databases: By shard.
        wal: The log; not begun yet.
        expected: There must be a log; if it is missing, data is lost.

    Raises:
        DataDirectoryRefused: The log is damaged or missing.
        StorageFailed: The disk refused.
    """
    if expected:
        bring_up(databases, wal)
    newest = max(wal.seq, *(database.mark for database in databases))
    # The new segment says that nothing before it is missing. Without this write, a shard that has
    # long written nothing would seem to lack it all at the next start.
    for database in databases:
        if database.mark < newest:
            write_log_rows(database, RowBuffer(), mark=newest)
            database.sync()
    wal.begin(newest)


def bring_up(databases: Sequence[Database], wal: Wal) -> None:
    """Bring the content of the write-ahead log into the databases, durably.

    Raises:
        DataDirectoryRefused: The log is damaged or missing.
        StorageFailed: The disk refused.
    """
    marks = [database.mark for database in databases]
    pending = [RowBuffer() for _ in databases]
    reached = list(marks)
    count = 0
    for seq, write in wal.recover(marks):
        pending[write.shard].write(write.puts, write.delete_ranges)
        reached[write.shard] = seq
        count += 1
        if count % _PIECE == 0:
            _bring(databases, pending, reached)
    _bring(databases, pending, reached)
    for database in databases:
        database.sync()
    if count:
        log.info("write-ahead log read", extra={"writes": count})


def _bring(databases: Sequence[Database], pending: list[RowBuffer], marks: Sequence[int]) -> None:
    for shard, database in enumerate(databases):
        rows = pending[shard]
        if not rows:
            continue
        write_log_rows(database, rows, mark=marks[shard])
        pending[shard] = RowBuffer()
