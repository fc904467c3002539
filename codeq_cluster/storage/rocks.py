"""Rocks: one shard's RocksDB: its log and its state behind one write-ahead log.

This is the only module that knows rocksdict. The two column families share RocksDB's write-ahead
log, so a synced write to either makes every earlier write to both durable. After a crash the state
is never newer than the log that led to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ColumnFamily,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from codeq_cluster.durable import sync_directory
from codeq_cluster.errors import DataDirectoryRefused, StorageDamaged, StorageFailed
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.buffer import Missing, RowBuffer
from codeq_cluster.storage.rocks_statistics import FamilyStatistics, counters, family_statistics
from codeq_cluster.storage.swap import exchange, finish, incoming_path

Get = Callable[[bytes], bytes | None]
Rows = Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]]
# Returns the term of the entry at an index of a log, and the row with the group's membership there.
LogAt = Callable[[Get, Rows, int], tuple[int | None, bytes]]

_STATE = "state"
_LOG = "raft"
_FRESH_INDEX = 1  # The log begins with an entry of its own at index 1.
_FRESH_DIGEST = bytes(16)
_PLACE = b"codeq/meta/applied"  # -> applied index (8 bytes), digest (16 bytes)
_PLACE_BYTES = 8 + 16
_MARK = (
    b"wal"  # Among the log's rows -> the last job of the write-ahead log that is in here (8 bytes).
)
# Rows of a complete log in one batch; entries are at most a megabyte, and mostly far smaller.
_ROWS_A_WRITE = 64

_DAMAGED = "Corruption: "  # RocksDB's prefix for failed checksums and impossible content.
# RocksDB's error for a write that would wait for its background work.
_STALLED = "Write stall"
_STALLED_S = 0.002
_STALLED_S_STEP_MAX = 0.25
_STALLED_S_MAX = 60.0
_LAST_KEY = b"\xff" * 16  # Past every key.

# RocksDB marks a file when half of this many consecutive rows are deleted; one read of a queue's
# head has fewer rows than that.
_TOMBSTONE_WINDOW = 512

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


def new_cache(settings: StoreSettings) -> Cache:
    """Return a new block cache for all shards of a node."""
    return Cache(settings.block_cache_bytes)


class RocksShard:
    """One shard's directory, open and locked.

    Attributes:
        state: The committed state; a `StateStore`.
        log: The journal's rows; a `LogStore`.
        mark: The last job of the node's write-ahead log whose writes are here; 0 for none.
    """

    def __init__(
        self, path: Path, *, settings: StoreSettings, cache: Cache, create: bool = True
    ) -> None:
        """Open the directory, or create it.

        Raises:
            DataDirectoryRefused: Another process has it open, it is damaged, or it is missing and
                `create` is false.
        """
        self._path = path
        self._settings = settings
        self._cache = cache
        self._db = self._open(create=create)
        self._is_open = True
        self.log = RocksLog(self._db)
        try:
            self.state = RocksState(self._db)
            self.mark = self._stored_mark()
        except (StorageFailed, ValueError) as error:
            self.log.close()
            self._db.close()
            raise DataDirectoryRefused(_why_refused(path, error)) from error

    def _open(self, *, create: bool) -> Rdict:
        state = _family(self._settings, self._cache)
        # Queue rows are deleted where they are read. Files full of tombstones are compacted early:
        # otherwise a scan of a queue's head would have to skip every task claimed before.
        state.add_compact_on_deletion_collector_factory(
            _TOMBSTONE_WINDOW, _TOMBSTONE_WINDOW // 2, deletion_ratio=0.5
        )
        families = {_STATE: state, _LOG: _family(self._settings, self._cache)}
        path = self._path
        try:
            if create and not path.exists():
                path.mkdir(parents=True)
                sync_directory(path.parent)
            options = _database(self._settings, create=create)
            db = Rdict(str(path), options, column_families=families)
        except Exception as error:
            raise DataDirectoryRefused(_why_refused(path, error)) from error
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
        log_family = self.log.handle

        def fill(batch: WriteBatch) -> None:
            for key, value in rows.items():
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            batch.put(_PLACE, index.to_bytes(8, "big") + digest)
            for start, end in delete_ranges:
                assert start <= end, f"range {start!r} to {end!r} is inverted"
                batch.delete_range(start, end, log_family)
            for key, value in log_rows.items():
                assert value is not None, "the log deletes ranges, not rows"
                batch.put(key, value, log_family)
            batch.put(_MARK, mark.to_bytes(8, "big"), log_family)

        if wait:
            self.state.write_patiently(fill)
        elif not self.state.try_write(fill):
            return False
        self.state.note_written(index=index, digest=digest)
        self.mark = mark
        return True

    def sync(self) -> None:
        """Make every write so far durable; blocks.

        Raises:
            StorageFailed: The disk refused.
        """
        self.log.sync()

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
                prepared.log.write(
                    [(_MARK, mark.to_bytes(8, "big"))],
                    delete_ranges=[(b"", b"\xff")],
                    sync=False,
                )
                for start in range(0, len(log_rows), _ROWS_A_WRITE):
                    some = log_rows[start : start + _ROWS_A_WRITE]
                    prepared.log.write(some, sync=start + len(some) == len(log_rows))
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
        return int.from_bytes(self.log.get(_MARK) or b"", "big")

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


class _Rows:
    """Ordered rows of one column family.

    Attributes:
        name: Of the column family.
        on_damage: Called with every damaged row that a read finds, on the thread of that read.
    """

    def __init__(self, db: Rdict, name: str) -> None:
        self.on_damage: Callable[[StorageDamaged], None] = lambda _failure: None
        self.name = name
        self.open(db)

    def open(self, db: Rdict) -> None:
        """Read and write this database from now on."""
        self._db = db
        self._rows = db.get_column_family(self.name)
        # None once closed, because a handle that stays open keeps the directory locked.
        self._handle: ColumnFamily | None = db.get_column_family_handle(self.name)

    @property
    def family(self) -> Rdict:
        """Return the open family."""
        return self._rows

    @property
    def handle(self) -> ColumnFamily:
        """Return the handle of the family for a batch."""
        assert self._handle is not None, "the directory is open"
        return self._handle

    def close(self) -> None:
        """Close the family."""
        self._handle = None
        self._rows.close()

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None.

        Raises:
            StorageFailed: The disk refused.
        """
        try:
            value: bytes | None = self._rows.get(key)
        except Exception as error:
            raise self._failed("reading a row", error) from error
        return value

    def _read(
        self, start: bytes, end: bytes, *, limit: int, bytes_max: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        try:
            options = ReadOptions()
            options.set_iterate_upper_bound(end)
            rows_there = self._rows.iter(options)
            rows_there.seek(start)
            while len(rows) < limit and rows_there.valid():
                key, value = rows_there.key(), rows_there.value()
                rows.append((key, value))
                size += len(key) + len(value)
                if bytes_max is not None and size >= bytes_max:
                    break
                rows_there.next()
            rows_there.status()
        except Exception as error:
            raise self._failed("reading rows", error) from error
        return rows

    def write_patiently(self, fill: Callable[[WriteBatch], None]) -> None:
        """Write a batch, all or none; blocks while RocksDB waits for its background work.

        Raises:
            StorageFailed: Nothing was written, and nothing will be until the directory is reopened.
        """
        give_up_at = time.monotonic() + _STALLED_S_MAX
        pause_s = _STALLED_S
        while not self.try_write(fill):
            if time.monotonic() > give_up_at:
                raise StorageFailed("writing: RocksDB waits for a flush or a compaction in vain")
            time.sleep(pause_s)
            # A retry that comes too soon adds to the time for which RocksDB stalls writes.
            pause_s = min(2 * pause_s, _STALLED_S_STEP_MAX)

    def _write(self, fill: Callable[[WriteBatch], None], *, sync: bool) -> None:
        """Write a batch, all or none, and sync it with a call of its own.

        rocksdict holds the interpreter's lock during a write. A write that syncs would therefore
        stop every thread of the process, including the loop's, until the disk is done. `flush_wal`
        releases the lock.
        """
        self.write_patiently(fill)
        if sync:
            self.sync()

    def sync(self) -> None:
        """Make every write of the directory durable; blocks; raises StorageFailed."""
        try:
            self._db.flush_wal(sync=True)
        except Exception as error:
            raise self._failed("syncing", error) from error

    def try_write(self, fill: Callable[[WriteBatch], None]) -> bool:
        """Write a batch, all or none; False when RocksDB would make the caller wait.

        A write that waits for a failed flush would wait for ever, and the process with it. No write
        is therefore allowed to wait.

        Raises:
            StorageFailed: Nothing was written, and nothing will be until the directory is reopened.
        """
        options = WriteOptions()
        options.no_slowdown = True
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._handle)
        fill(batch)
        try:
            self._db.write(batch, options)
        except Exception as error:
            if _STALLED not in str(error):
                raise self._failed("writing", error) from error
            if self._number("background-errors"):
                raise StorageFailed(
                    "writing: RocksDB waits for a flush or a compaction in vain"
                ) from error
            return False
        return True

    def _failed(self, doing: str, error: Exception) -> StorageFailed:
        if _DAMAGED not in str(error):
            return StorageFailed(f"{doing}: {error}")
        failure = StorageDamaged(f"{doing}: {error}")
        # Reported here, because a reader may swallow the error.
        self.on_damage(failure)
        return failure

    def _number(self, name: str) -> int:
        return self._rows.property_int_value(f"rocksdb.{name}") or 0


class RocksState(_Rows):
    """The committed state and its applied index.

    The index is a row of its own under `codeq/meta/applied`. No entry may write that row, and a
    scan across it returns it.
    """

    def __init__(self, db: Rdict) -> None:
        super().__init__(db, _STATE)

    def open(self, db: Rdict) -> None:
        """Read and write this database from now on.

        Raises:
            ValueError: Its applied index is damaged.
        """
        super().open(db)
        self._applied, self._digest = _place(self.get(_PLACE))

    @property
    def applied_index(self) -> int:
        """Return the index of the last entry in the state; 1 when fresh."""
        return self._applied

    @property
    def digest(self) -> bytes:
        """Return the running hash over every applied entry, 16 bytes; zeros when fresh."""
        return self._digest

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return n values for n keys, None where there is none."""
        try:
            values = self._rows.get(list(keys))
        except Exception as error:
            raise self._failed("reading rows", error) from error
        assert isinstance(values, list), "a list of keys is answered with a list"
        return values

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows of start <= key < end, ascending."""
        return self._read(start, end, limit=limit)

    def commit(
        self,
        mutations: Mapping[bytes, bytes | None],
        *,
        index: int,
        digest: bytes,
        net: bool = False,  # noqa: ARG002 - here every row is written, net or not
    ) -> None:
        """Write one entry's mutations with its index and digest, all or none; None deletes.

        The write survives the process at once, and a power cut from the log's next synced write on.

        Raises:
            StorageFailed: Nothing was written; the node must stop.
        """
        assert index == self._applied + 1, f"entry {index} after entry {self._applied}"
        assert len(digest) == len(_FRESH_DIGEST), f"a digest of {len(digest)} bytes"

        def fill(batch: WriteBatch) -> None:
            for key, value in mutations.items():
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            batch.put(_PLACE, index.to_bytes(8, "big") + digest)

        self._write(fill, sync=False)
        self.note_written(index=index, digest=digest)

    def note_written(self, *, index: int, digest: bytes) -> None:
        """Note the entry and digest of the state, whose rows have just been written."""
        self._applied, self._digest = index, digest

    @property
    def stored_index(self) -> int:
        """Return the index of the last entry in the database; here nothing waits in memory."""
        return self._applied

    @property
    def seen_index(self) -> int:
        """Return the index of the last entry that was applied."""
        return self._applied

    def fill(self, rows: Mapping[bytes, bytes]) -> None:
        """Write rows of a new state that has no entry yet; `settle` ends that.

        Raises:
            StorageFailed: Nothing was written.
        """

        def fill(batch: WriteBatch) -> None:
            for key, value in rows.items():
                batch.put(key, value)

        self._write(fill, sync=False)

    def settle(self, *, index: int, digest: bytes) -> None:
        """Record the entry of the state that `fill` wrote; durable with the next synced write.

        Raises:
            StorageFailed: Nothing was written.
        """
        self.fill({_PLACE: index.to_bytes(8, "big") + digest})
        self._applied, self._digest = index, digest


class RocksLog(_Rows):
    """The journal's rows."""

    def __init__(self, db: Rdict) -> None:
        super().__init__(db, _LOG)

    def scan(
        self, start: bytes, end: bytes, *, limit: int, bytes_max: int
    ) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` rows of start <= key < end, ascending, about `bytes_max` bytes."""
        return self._read(start, end, limit=limit, bytes_max=bytes_max)

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        *,
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
        sync: bool,
    ) -> None:
        """Apply the range deletes, then the puts, all or none; may be called from a thread.

        Raises:
            StorageFailed: Nothing was written; the node must stop.
        """
        # RocksDB logs an inverted range, fails on it, and then fails on every later open.
        for start, end in delete_ranges:
            assert start <= end, f"range {start!r} to {end!r} is inverted"

        def fill(batch: WriteBatch) -> None:
            for start, end in delete_ranges:
                batch.delete_range(start, end, self._handle)
            for key, value in puts:
                batch.put(key, value)

        self._write(fill, sync=sync)


class StoredShard:
    """A shard's directory that no process writes, from a checkpoint or a stopped node; read only.

    Attributes:
        mark: The last job of the node's write-ahead log whose writes are in the directory.
        pending: The rows of the shard's log that only the node's write-ahead log has.
    """

    def __init__(self, path: Path) -> None:
        """Open the directory, including the content of RocksDB's own write-ahead log.

        Raises:
            StorageFailed: It cannot be read, or is damaged.
        """
        self._name = path.name
        families = {_STATE: Options(raw_mode=True), _LOG: Options(raw_mode=True)}
        options = Options(raw_mode=True)
        # The same mode as for a node: by default, RocksDB silently drops what follows a damaged
        # record.
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        try:
            self._db = Rdict(
                str(path),
                options,
                column_families=families,
                access_type=AccessType.read_only(),
            )
            self._state = self._db.get_column_family(_STATE)
            self._log = self._db.get_column_family(_LOG)
            self.index, self.digest = _place(self._state.get(_PLACE))
            self.mark = int.from_bytes(self._log.get(_MARK) or b"", "big")
        except Exception as error:
            raise StorageFailed(f"reading {self._name}: {error}") from error
        self.pending = RowBuffer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the directory."""
        self._state.close()
        self._log.close()
        self._db.close()

    def get(self, key: bytes) -> bytes | None:
        """Return a row of the state, or None; raises StorageFailed."""
        return self._get(self._state, key)

    def log_get(self, key: bytes) -> bytes | None:
        """Return a row of the log, or None; raises StorageFailed."""
        value = self.pending.get(key)
        return value if not isinstance(value, Missing) else self._get(self._log, key)

    def rows(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the state's rows of start <= key < end, ascending; raises StorageFailed."""
        return self._iterate(self._state, start, end)

    def log_rows(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the log's rows of start <= key < end, ascending; raises StorageFailed."""
        stored = self._iterate(self._log, start, end)
        return self.pending.over(stored, start, end)

    def _get(self, family: Rdict, key: bytes) -> bytes | None:
        try:
            value: bytes | None = family.get(key)
        except Exception as error:
            raise StorageFailed(f"reading {self._name}: {error}") from error
        return value

    def _iterate(self, family: Rdict, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            options = ReadOptions()
            options.set_iterate_upper_bound(end)
            found = family.iter(options)
            found.seek(start)
            while found.valid():
                yield found.key(), found.value()
                found.next()
            found.status()
        except Exception as error:
            raise StorageFailed(f"reading {self._name}: {error}") from error


@dataclass(frozen=True, slots=True)
class StatePosition:
    """The position of a shard's state.

    Attributes:
        index: Of the last entry in it.
        term: Of that entry.
        members: The row of the log with the group's members there; empty when the log names none.
    """

    index: int
    term: int
    digest: bytes
    members: bytes


def read_place(
    path: Path,
    *,
    log_at: LogAt,
    every_row: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> StatePosition:
    """Return the position of a directory that no process writes.

    Args:
        path: A checkpoint.
        log_at: Finds an entry's term and members in the log.
        every_row: Read the whole state, so that RocksDB compares every checksum.
        stopped: Asked at every row; True ends the reading.

    Raises:
        StorageFailed: It cannot be read, is damaged, or was not read to its end.
    """
    with StoredShard(path) as shard:
        if every_row:
            for _ in shard.rows(b"", _LAST_KEY):
                if stopped():
                    raise StorageFailed(f"reading {path.name}: stopped before its end")
        try:
            term, members = log_at(shard.log_get, shard.log_rows, shard.index)
        except (ValueError, DataDirectoryRefused) as error:
            raise StorageFailed(f"reading the log of {path.name}: {error}") from error
        if term is None:
            raise StorageFailed(
                f"{path.name} lacks the log entry {shard.index} that its state ends with"
            )
        return StatePosition(shard.index, term, shard.digest, members)


def _place(row: bytes | None) -> tuple[int, bytes]:
    if row is None:
        return _FRESH_INDEX, _FRESH_DIGEST
    if len(row) != _PLACE_BYTES:
        raise ValueError(f"the applied index has {len(row)} bytes, not {_PLACE_BYTES}")
    return int.from_bytes(row[:8], "big"), row[8:]


def _database(settings: StoreSettings, *, create: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    # A crash can tear the last record; any other damage must be seen, not skipped.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_background_jobs(2)
    options.set_max_total_wal_size(8 * settings.memtable_bytes)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(2**20)
    # Statistics for the metrics; they had no measurable cost for reads or writes.
    options.enable_statistics()
    return options


def _family(settings: StoreSettings, cache: Cache) -> Options:
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


def _why_refused(path: Path, error: Exception) -> str:
    text = " ".join(str(error).split())
    # The word "lock" alone would also match "block checksum mismatch".
    if f"{path}/LOCK: " in text:
        return f"the data directory {path} is in use by another process"
    return f"the data directory {path} cannot be opened: {text}"
