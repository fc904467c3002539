"""Shard: one shard's log and state: the newest rows in memory, all others in its database.

The rows of the log are on disk in the node's write-ahead log before `write` reports them durable.
The database gets the rows of log and state later, together and in bulk (`spill`).
A spill writes both as of one moment. So the database's state is never newer than its log, and the
state never lacks an entry that the log has forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from codeq_cluster.codec import keyspace
from codeq_cluster.errors import StorageDamaged
from codeq_cluster.forwarded import forwarded
from codeq_cluster.storage.buffer import MISSING, RowBuffer
from codeq_cluster.storage.segments import Row, Write
from codeq_cluster.storage.wal_writer import WalWriter

OnDamage = Callable[[StorageDamaged], None]
Done = Callable[[BaseException | None], None]


class LogRows(Protocol):
    """The log's rows in the database."""

    on_damage: OnDamage

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def scan(self, start: bytes, end: bytes, *, limit: int, bytes_max: int) -> list[Row]:
        """Return at most `limit` rows, about `bytes_max` bytes of them."""


class StateRows(Protocol):
    """The state's rows in the database, and how far the log is in them."""

    on_damage: OnDamage

    @property
    def applied_index(self) -> int:
        """Return the index of the last entry in the state."""

    @property
    def digest(self) -> bytes:
        """Return the running hash over every applied entry."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return n values for n keys."""

    def scan(self, start: bytes, end: bytes, limit: int) -> list[Row]:
        """Return at most `limit` rows of start <= key < end, ascending."""


class Database(Protocol):
    """One shard's database; `RocksShard` in production."""

    @property
    def log(self) -> LogRows:
        """Return the log's rows."""

    @property
    def state(self) -> StateRows:
        """Return the state's rows."""

    @property
    def mark(self) -> int:
        """Return the last job of the write-ahead log whose writes the database has."""

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
        """Write all or none, unsynced; return False if the database would make the caller wait.

        With `wait` it may block instead, and returns True.

        Raises:
            StorageFailed: Nothing was written; `reopen` must follow.
        """

    def sync(self) -> None:
        """Make every write durable; blocks; raises StorageFailed."""

    def checkpoint(self, path: Path) -> None:
        """Copy the written rows; blocks; raises StorageFailed."""

    def replace(self, log_rows: Sequence[Row], *, index: int, mark: int) -> None:
        """Continue with the directory prepared beside this one; raises StorageFailed."""

    def reopen(self) -> None:
        """Reopen with the content on disk; blocks; raises DataDirectoryRefused."""

    def close(self) -> None:
        """Close; raises StorageFailed."""


class Applied(Protocol):
    """How far each shard's state has come; survives the death of the process."""

    def note(self, shard: int, index: int) -> None:
        """Note that the state has reached an entry."""

    def of(self, shard: int) -> int:
        """Return the last entry noted; 0 when none is known."""


class Shard:
    """One shard's storage.

    Attributes:
        state: The committed state; a `StateStore`.
        log: The log's rows; a `LogStore` and a `LogWriter`.
        withdrawn: The database is about to be reopened.
    """

    def __init__(
        self,
        number: int,
        database: Database,
        journal: WalWriter,
        *,
        applied: Applied,
        changed: Callable[[], None],
        reopened: Callable[[], None] = lambda: None,
    ) -> None:
        """Wrap an open database that holds every row the write-ahead log has of the shard.

        Args:
            changed: Called when there is something to spill.
            reopened: Called when the database has been exchanged or reopened.
        """
        self._reopened = reopened
        self.withdrawn = False
        self._number = number
        self._database = database
        self._journal = journal
        self.state = ShardState(number, database.state, applied, changed)
        self.log = ShardLog(number, database.log, journal, changed, mark=database.mark)

    @property
    def size(self) -> int:
        """Return the approximate number of bytes that wait to be spilled."""
        return self.state.buffer.size + self.log.buffer.size

    def outgrows(self, size: int, rows: int) -> bool:
        """Return whether so many bytes wait to be spilled, or so many rows."""
        state, log = self.state.buffer, self.log.buffer
        return state.size + log.size >= size or len(state.rows) + len(log.rows) >= rows

    def report_damage(self, to: OnDamage) -> None:
        """Call `to` with every damaged row that a read finds, on the thread of that read."""
        self._database.state.on_damage = self._database.log.on_damage = to

    def holds(self, upto: int) -> bool:
        """Return whether the database holds all the shard's writes up to a job.

        False while it is about to be reopened: it may have lost rows that were not synced.
        """
        return not self.withdrawn and self._database.mark >= upto

    def spill(self, *, seq: int = 0) -> bool:
        """Write the waiting rows to the database.

        Args:
            seq: Up to this job, the buffer or the database has every write of this shard in the
                write-ahead log. 0 when only the shard's own mark is known.

        Returns:
            False when the database takes no write now, or the shard has withdrawn.

        Raises:
            StorageFailed: The database failed; `reopen` must follow.
        """
        if self.withdrawn:
            return False
        state, log = self.state, self.log
        # A release may have told the database of later jobs than this shard's own, and their
        # segments may be gone: a mark never goes back.
        mark = max(seq, log.mark, self._database.mark)
        if not state.buffer and not log.buffer and mark == self._database.mark:
            return True
        written = self._database.write(
            rows=state.buffer.rows,
            index=state.applied_index,
            digest=state.digest,
            delete_ranges=log.buffer.ranges,
            log_rows=log.buffer.rows,
            mark=mark,
        )
        if written:
            state.spilled()
            log.spilled()
        return written

    def sync(self) -> None:
        """Make the spilled rows durable; blocks; raises StorageFailed."""
        self._database.sync()

    def checkpoint(self, path: Path) -> None:
        """Copy the spilled rows; blocks; raises StorageFailed."""
        self._database.checkpoint(path)

    def replace(self, log_rows: Sequence[Row], *, index: int) -> None:
        """Continue with the directory prepared beside this one, and with a log of these rows.

        Raises:
            StorageFailed: The disk refused, or another state was prepared.
        """
        self._database.replace(log_rows, index=index, mark=self._journal.seq)
        self._restart()

    def withdraw(self) -> None:
        """Spill nothing until `reopen` has succeeded."""
        self.withdrawn = True

    def reopen(self) -> None:
        """Continue with the content on disk; blocks. `withdraw` comes first; nobody may write.

        Raises:
            DataDirectoryRefused: It cannot be opened, or is damaged; the call may be retried.
            StorageFailed: It cannot be read or takes no write; the call may be retried.
        """
        self._database.reopen()
        seq = self._journal.seq
        kept = RowBuffer()
        for write in self._journal.kept(self._number, self._database.mark):
            kept.write(write.puts, write.delete_ranges)
        # The newest mark covers failed jobs too: with a lower one, the next start would apply rows
        # of such a job that are left on disk.
        write_log_rows(self._database, kept, mark=seq)
        self._database.sync()
        self._restart()
        self.withdrawn = False

    def close(self) -> None:
        """Close the database; the write-ahead log has the rows that were not spilled."""
        self._database.close()

    def _restart(self) -> None:
        self.state.load()
        self.log.load(self._database.mark)
        self._reopened()


def write_log_rows(database: Database, rows: RowBuffer, *, mark: int) -> None:
    """Write rows of a log into its database, beside the state already there; may block.

    Raises:
        StorageFailed: The disk refused, or the database takes no write.
    """
    state = database.state
    database.write(
        rows={},
        index=state.applied_index,
        digest=state.digest,
        delete_ranges=rows.ranges,
        log_rows=rows.rows,
        mark=mark,
        wait=True,
    )


class ShardState:
    """The committed state; implements `broker.ports.StateStore`.

    Attributes:
        applied_index: Index of the last entry in the state; 1 when fresh.
        stored_index: Index of the last entry in the database's state.
        digest: The running hash over every applied entry, 16 bytes; zeros when fresh.
    """

    stored_index: int = forwarded("_stored.applied_index")

    def __init__(
        self, shard: int, stored: StateRows, applied: Applied, changed: Callable[[], None]
    ) -> None:
        self._shard = shard
        self._noted = applied
        self._stored = stored
        self._changed = changed
        self.load()

    def load(self) -> None:
        """Start from the content of the database."""
        self.buffer = RowBuffer(keyspace.is_task_index)
        self.applied_index = self._stored.applied_index
        self.digest = self._stored.digest

    @property
    def seen_index(self) -> int:
        """Return the last entry that is known to have been applied, at least `applied_index`."""
        return max(self.applied_index, self._noted.of(self._shard))

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        value = self.buffer.rows.get(key, MISSING)
        return self._stored.get(key) if value is MISSING else value  # type: ignore[return-value]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return n values for n keys, None where there is none."""
        rows = self.buffer.rows
        if rows.keys().isdisjoint(keys):
            return self._stored.get_many(keys)
        return list(map(self.get, keys))

    def scan(self, start: bytes, end: bytes, limit: int) -> list[Row]:
        """Return at most `limit` rows of start <= key < end, ascending."""
        found: list[Row] = []
        while start < end and len(found) < limit:
            page = self._stored.scan(start, end, limit)
            edge = end if len(page) < limit else page[-1][0] + b"\x00"
            found += self.buffer.merged(page, start, edge)
            start = edge
        return found[:limit]

    def commit(self, mutations: Mapping[bytes, bytes | None], *, index: int, digest: bytes) -> None:
        """Take one entry's mutations, as `StateStore` says.

        Nothing is written to disk: the log can rebuild the state until the next spill.
        """
        assert index == self.applied_index + 1, f"entry {index} after entry {self.applied_index}"
        assert len(digest) == len(self.digest), f"a digest of {len(digest)} bytes"
        self.buffer.update(mutations)
        self.applied_index, self.digest = index, digest
        self._noted.note(self._shard, index)
        self._changed()

    def spilled(self) -> None:
        """Note that the database has the rows of the buffer."""
        self.buffer = RowBuffer(keyspace.is_task_index)


class ShardLog:
    """The log's rows; implements `raft.ports.LogStore` and `raft.ports.LogWriter`.

    Attributes:
        mark: The last job of the write-ahead log with writes of this shard that are in the buffer
            or the database.
    """

    def __init__(
        self,
        shard: int,
        stored: LogRows,
        journal: WalWriter,
        changed: Callable[[], None],
        *,
        mark: int,
    ) -> None:
        self._shard = shard
        self._stored = stored
        self._journal = journal
        self._changed = changed
        self._held: Callable[[], None] | None = None
        self.hold = False
        self.load(mark)

    def load(self, mark: int) -> None:
        """Start from the content of the database."""
        self.buffer = RowBuffer()
        self.mark = mark
        self.hold = False
        self._held = None

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        value = self.buffer.get(key)
        return self._stored.get(key) if value is MISSING else value  # type: ignore[return-value]

    def scan(self, start: bytes, end: bytes, *, limit: int, bytes_max: int) -> list[Row]:
        """Return at most `limit` rows of start <= key < end, ascending, about `bytes_max` bytes."""
        found: list[Row] = []
        while start < end and limit and not found:
            page = self._stored.scan(start, end, limit=limit, bytes_max=bytes_max)
            is_cut = bool(page) and (len(page) == limit or _weight(page) >= bytes_max)
            edge = page[-1][0] + b"\x00" if is_cut else end
            found = self.buffer.merged(page, start, edge)
            start = edge
        return _first(found, limit=limit, bytes_max=bytes_max)

    def write(
        self, puts: Sequence[Row], delete_ranges: Sequence[tuple[bytes, bytes]], done: Done
    ) -> None:
        """Make rows durable, all or none, then call `done` on the loop with the error or None."""
        if delete_ranges:
            _check_ranges(delete_ranges)

        def written(seq: int, error: BaseException | None) -> None:
            if error is not None:
                done(error)
                return
            self.buffer.write(puts, delete_ranges)
            self.mark = seq
            self._changed()
            if self.hold:
                self._held = partial(done, None)
            else:
                done(None)

        self._journal.write(Write(self._shard, delete_ranges, puts), written)

    def forget(self, delete_ranges: Sequence[tuple[bytes, bytes]], puts: Sequence[Row]) -> None:
        """Delete and replace rows that are no longer needed; durable only after the next spill."""
        _check_ranges(delete_ranges)
        self.buffer.write(puts, delete_ranges)
        self._changed()

    def spilled(self) -> None:
        """Note that the database has the rows of the buffer."""
        self.buffer = RowBuffer()

    def let_go(self) -> None:
        """Report a held write as durable, because the buffer has room again."""
        self.hold = False
        held, self._held = self._held, None
        if held is not None:
            held()


def _check_ranges(ranges: Sequence[tuple[bytes, bytes]]) -> None:
    """Stop on an inverted range: on disk it would fail every later start."""
    for start, end in ranges:
        assert start <= end, f"range {start!r} to {end!r} is inverted"


def _weight(rows: Sequence[Row]) -> int:
    return sum(len(key) + len(value) for key, value in rows)


def _first(rows: list[Row], *, limit: int, bytes_max: int) -> list[Row]:
    """Return the first rows: at most `limit`, about `bytes_max` bytes, but at least one."""
    size = 0
    for place, (key, value) in enumerate(rows[:limit], 1):
        size += len(key) + len(value)
        if size >= bytes_max:
            return rows[:place]
    return rows[:limit]
