"""Rocks: one shard's RocksDB: its log and its state behind one write-ahead log.

The two column families share RocksDB's write-ahead log, so a synced write to either makes every
earlier write to both durable. After a crash the state is never newer than the log that led to it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path

from rocksdict import Cache, Checkpoint, Options, Rdict, WriteBatch, WriteOptions

from codeq_cluster.durable import sync_directory
from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.buffer import RowBuffer
from codeq_cluster.storage.rocks_options import (
    cut_damage,
    database_options,
    log_options,
    state_options,
)
from codeq_cluster.storage.rocks_rows import LOG, MARK, PLACE, STATE, RocksRows, RocksState
from codeq_cluster.storage.rocks_statistics import FamilyStatistics, counters, family_statistics
from codeq_cluster.storage.shard import write_log_rows
from codeq_cluster.storage.stored_shard import StoredShard
from codeq_cluster.storage.swap import exchange, finish, incoming_path
from codeq_cluster.storage.wal import SegmentDisk

# Rows of a complete log in one batch; entries are at most a megabyte, and mostly far smaller.
_ROWS_A_WRITE = 64
_ALL = (b"", b"\xff")  # The range of every key of a log.

# RocksDB's error for a write that would wait for its background work.
_STALLED = "Write stall"
_STALLED_S = 0.002
_STALLED_S_STEP_MAX = 0.25
_STALLED_S_MAX = 60.0

# RocksDB's own numbers, by metric name.
_PROPERTIES = {
    "level0_files": "rocksdb.num-files-at-level0",
    "pending_compaction_bytes": "rocksdb.estimate-pending-compaction-bytes",
    "running_compactions": "rocksdb.num-running-compactions",
    "running_flushes": "rocksdb.num-running-flushes",
    "write_stopped": "rocksdb.is-write-stopped",
    "delayed_write_rate": "rocksdb.actual-delayed-write-rate",
    "memtable_bytes": "rocksdb.cur-size-all-mem-tables",
    "block_cache_bytes": "rocksdb.block-cache-usage",
    "live_sst_bytes": "rocksdb.live-sst-files-size",
    "keys": "rocksdb.estimate-num-keys",
}
_TABLES = "rocksdb.cfstats"  # Levels and stalls of one family, as text.


class RocksShard:
    """One shard's directory, open and locked.

    Attributes:
        state: The rows of the committed state.
        log: The journal's rows; a `LogStore`.
        mark: The last job of the node's write-ahead log whose writes are here; 0 for none.
    """

    def __init__(
        self,
        path: Path,
        *,
        settings: StoreSettings,
        cache: Cache,
        create: bool = True,
        wal: SegmentDisk | None = None,
    ) -> None:
        """Open the directory, or create it.

        Args:
            wal: The node's write-ahead log, if its rows follow. Only this opening may then cut
                RocksDB's own log where it is damaged.

        Raises:
            DataDirectoryRefused: Another process has it open, it is damaged, or it is missing and
                `create` is false.
        """
        self._path = path
        self._settings = settings
        self._cache = cache
        self._db = self._open(create=create, wal=wal)
        self._is_open = True
        self.log = RocksRows(self._db, LOG)
        try:
            self.state = RocksState(self._db, STATE)
            self.mark = self._stored_mark()
        except (StorageFailed, ValueError) as error:
            self.log.close()
            self._db.close()
            raise DataDirectoryRefused(_why_refused(path, error)) from error

    def _open(self, *, create: bool, wal: SegmentDisk | None = None) -> Rdict:
        path = self._path
        options = database_options(self._settings, create=create)
        try:
            if create and not path.exists():
                path.mkdir(parents=True)
                sync_directory(path.parent)
            try:
                return self._opened(options)
            except Exception:
                # This opening deletes what it cannot read, so look first.
                if wal is None or not _has_the_rest(wal, path):
                    raise
                cut_damage(options)
                return self._opened(options)
        except Exception as error:
            raise DataDirectoryRefused(_why_refused(path, error)) from error

    def _opened(self, options: Options) -> Rdict:
        families = {
            STATE: state_options(self._settings, self._cache),
            LOG: log_options(self._settings, self._cache),
        }
        db = Rdict(str(self._path), options, column_families=families)
        # The options hold the statistics, which would be lost without this reference.
        self._options = options
        return db

    def checkpoint(self, path: Path) -> None:
        """Make a copy of the shard as it is now, from hard links; may be called from a thread.

        Raises:
            StorageFailed: The disk refused.
        """
        try:
            Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:
            raise StorageFailed(f"making a checkpoint: {error}") from error

    def write(
        self,
        *,
        rows: Mapping[bytes, bytes | None],
        index: int,
        digest: bytes,
        delete_ranges: Sequence[tuple[bytes, bytes]],
        log_rows: Mapping[bytes, bytes | None],
        mark: int,
        wait: bool = False,
    ) -> bool:
        """Write rows of state and log together, all or none, unsynced.

        Args:
            rows: Of the state; None deletes.
            index: Of the last entry in the state after this write.
            digest: Of that state.
            delete_ranges: Of the log, deleted before its rows are put.
            log_rows: Of the log.
            mark: The last job of the write-ahead log that the shard has after this write.
            wait: Block for RocksDB's background work, a minute at most.

        Returns:
            False when RocksDB would make the caller wait for its background work.

        Raises:
            StorageFailed: Nothing was written; `reopen` must follow.
        """
        state_family, log_family = self.state.handle, self.log.handle

        def fill(batch: WriteBatch) -> None:
            batch.set_default_column_family(state_family)
            for key, value in rows.items():
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            batch.put(PLACE, index.to_bytes(8, "big") + digest)
            for start, end in delete_ranges:
                # RocksDB logs an inverted range, fails on it, and then on every later open.
                assert start <= end, f"range {start!r} to {end!r} is inverted"
                batch.delete_range(start, end, log_family)
            assert None not in log_rows.values(), "the log deletes ranges, not rows"
            # One call puts them all; the results are None.
            deque(map(batch.put, log_rows, log_rows.values(), repeat(log_family)), maxlen=0)
            batch.put(MARK, mark.to_bytes(8, "big"), log_family)

        if wait:
            self._write_patiently(fill)
        elif not self._try_write(fill):
            return False
        self.state.applied_index, self.state.digest = index, digest
        self.mark = mark
        return True

    def sync(self) -> None:
        """Make every write so far durable; blocks.

        rocksdict holds the interpreter's lock during a write. A write that syncs would therefore
        stop every thread of the process, including the loop's, until the disk is done. `flush_wal`
        releases the lock.

        Raises:
            StorageFailed: The disk refused.
        """
        try:
            self._db.flush_wal(sync=True)
        except Exception as error:
            raise self.log.failed("syncing", error) from error

    def replace(
        self, log_rows: Sequence[tuple[bytes, bytes]], *, index: int, mark: int = 0
    ) -> None:
        """Continue with the directory prepared beside this one, and with a log of these rows.

        `state` and `log` stay the same objects. Blocks for some tenths of a second.

        Args:
            log_rows: All rows of the log; they replace those of the prepared directory.
            index: Of the last entry in the prepared state.
            mark: Writes of the write-ahead log up to this job do not apply to the new content.

        Raises:
            StorageFailed: The disk refused, or another state was prepared. Then nothing has
                changed, or the next opening completes the exchange.
        """
        try:
            prepared = RocksShard(
                incoming_path(self._path), settings=self._settings, cache=self._cache, create=False
            )
            try:
                if prepared.state.applied_index != index:
                    raise StorageFailed(
                        f"{incoming_path(self._path)} ends with entry "
                        f"{prepared.state.applied_index}, not with {index}"
                    )
                rows = RowBuffer()
                rows.write([], [_ALL])
                for start in range(0, len(log_rows), _ROWS_A_WRITE):
                    rows.write(log_rows[start : start + _ROWS_A_WRITE], [])
                    write_log_rows(prepared, rows, mark=mark)
                    rows = RowBuffer()
                prepared.sync()
            finally:
                prepared.close()
            self.close()
            exchange(self._path)
            self._go_on()
        except (OSError, DataDirectoryRefused) as error:
            raise StorageFailed(f"exchanging {self._path}: {error}") from error

    def reopen(self) -> None:
        """Close the directory and open it again, with the content that is on disk.

        RocksDB writes nothing any more after a failed write. `state` and `log` stay the same
        objects; reads fail until this succeeds.
        Blocks for as long as it takes to read the write-ahead log; may be called from a thread.

        Raises:
            DataDirectoryRefused: It cannot be opened, or is damaged; the call may be retried.
        """
        # The database has failed already: an error at the end is no news, and nothing waits for its
        # background work.
        if self._is_open:
            self._db.cancel_all_background(wait=False)
        with suppress(StorageFailed):
            self.close()
        try:
            # Finish an interrupted swap, but leave a download in progress untouched.
            finish(self._path)
        except OSError as error:
            raise DataDirectoryRefused(_why_refused(self._path, error)) from error
        try:
            self._go_on()
        except (StorageFailed, ValueError) as error:
            raise DataDirectoryRefused(_why_refused(self._path, error)) from error

    def _go_on(self) -> None:
        db = self._open(create=False)
        try:
            self.log.open(db)
            self.state.open(db)
            self.mark = self._stored_mark()
        except BaseException:
            # A handle that stays open would keep the directory locked.
            for part in (self.log, self.state, db):
                with suppress(Exception):
                    part.close()
            raise
        self._db = db
        self._is_open = True

    def _stored_mark(self) -> int:
        return int.from_bytes(self.log.get(MARK) or b"", "big")

    def properties(self) -> dict[str, float]:
        """Return RocksDB's own numbers, summed over both families where a sum makes sense.

        Empty while the directory is closed.
        """
        if not self._is_open:
            return {}
        # Ask the families that are open already. One opened for the question would flush its
        # memtable at its end, on the loop, at every scrape of the metrics.
        families = (self.state.family, self.log.family)
        numbers: dict[str, float] = {}
        for name, rocks_name in _PROPERTIES.items():
            values = [float(family.property_int_value(rocks_name) or 0) for family in families]
            shared = name in ("block_cache_bytes", "write_stopped", "delayed_write_rate")
            numbers[name] = max(values) if shared else sum(values)
        return numbers

    def counters(self) -> dict[str, float]:
        """Return RocksDB's counts since the opening, over both families, by name.

        RocksDB prints them as text first, which takes a third of a millisecond.
        """
        return counters(self._options.get_statistics() or "")

    def family_statistics(self) -> list[FamilyStatistics]:
        """Return the levels and stalls of each family; empty while the directory is closed.

        RocksDB prints them as text first, which takes a tenth of a millisecond a family.
        """
        if not self._is_open:
            return []
        return [
            family_statistics(part.family.property_value(_TABLES) or "", family=part.name)
            for part in (self.state, self.log)
        ]

    def close(self) -> None:
        """Close the directory; harmless when it is closed.

        Raises:
            StorageFailed: RocksDB reports a failure of its background work only now.
        """
        if not self._is_open:
            return
        self._is_open = False
        failures: list[Exception] = []
        for part in (self.state, self.log, self._db):
            try:
                part.close()
            except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more specific
                failures.append(error)
        if failures:
            raise StorageFailed(f"closing: {failures[0]}") from failures[0]

    def _write_patiently(self, fill: Callable[[WriteBatch], None]) -> None:
        """Write a batch; blocks while RocksDB waits for its background work, a minute at most."""
        give_up_at = time.monotonic() + _STALLED_S_MAX
        pause_s = _STALLED_S
        while not self._try_write(fill):
            if time.monotonic() > give_up_at:
                raise StorageFailed("writing: RocksDB waits for a flush or a compaction in vain")
            time.sleep(pause_s)
            # A retry that comes too soon adds to the time for which RocksDB stalls writes.
            pause_s = min(2 * pause_s, _STALLED_S_STEP_MAX)

    def _try_write(self, fill: Callable[[WriteBatch], None]) -> bool:
        """Write a batch; return False when RocksDB would make the caller wait.

        A write that waits for a failed flush would wait for ever, and the process with it. No write
        may therefore wait.
        """
        options = WriteOptions()
        options.no_slowdown = True
        batch = WriteBatch(raw_mode=True)
        fill(batch)
        try:
            self._db.write(batch, options)
        except Exception as error:
            if _STALLED not in str(error):
                raise self.state.failed("writing", error) from error
            if self.state.family.property_int_value("rocksdb.background-errors"):
                raise StorageFailed(
                    "writing: RocksDB waits for a flush or a compaction in vain"
                ) from error
            return False
        return True


def _has_the_rest(wal: SegmentDisk, path: Path) -> bool:
    """Return whether the node's log has all rows that cannot be read in the directory."""
    try:
        StoredShard(path, wal=wal).close()
    except StorageFailed:
        return False
    return True


def _why_refused(path: Path, error: Exception) -> str:
    text = " ".join(str(error).split())
    # The word "lock" alone would also match "block checksum mismatch".
    if f"{path}/LOCK: " in text:
        return f"the data directory {path} is in use by another process"
    return f"the data directory {path} cannot be opened: {text}"
