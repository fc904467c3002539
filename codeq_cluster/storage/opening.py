"""Opening: a node's shards and its write-ahead log, as a start finds them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from codeq_cluster.storage.buffer import RowBuffer
from codeq_cluster.storage.shard import Database, write_log_rows
from codeq_cluster.storage.wal import Wal

log = logging.getLogger(__name__)

_PIECE = 1000  # Writes of the log that are brought into a database at once.


def catch_up(databases: Sequence[Database], wal: Wal, *, expected: bool) -> None:
    """Bring what the write-ahead log holds into the databases, then begin a segment.

    When it returns, every database holds, on disk, all that was promised.

    Args:
        databases: By shard.
        wal: Not begun yet.
        expected: There is a log; without it something is lost.

    Raises:
        DataDirectoryRefused: The log is damaged or missing.
        StorageFailed: The disk refused.
    """
    if expected:
        bring_up(databases, wal)
    newest = max(wal.seq, *(database.mark for database in databases))
    # The segment that begins now says that nothing before it is missing. A shard that has written
    # nothing for long would seem to lack all of it at the next start.
    for database in databases:
        if database.mark < newest:
            write_log_rows(database, RowBuffer(), mark=newest)
            database.sync()
    wal.begin(newest)


def bring_up(databases: Sequence[Database], wal: Wal) -> None:
    """Bring what the write-ahead log holds into the databases, durably.

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
