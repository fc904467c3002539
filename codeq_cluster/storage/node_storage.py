"""Node storage: all shards of a node and their shared write-ahead log, from start to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from codeq_cluster.errors import StorageFailed
from codeq_cluster.storage import spiller
from codeq_cluster.storage.opening import catch_up
from codeq_cluster.storage.shard import Applied, Database, Shard
from codeq_cluster.storage.spiller import HELD_BYTES, SPILL_S, Spiller
from codeq_cluster.storage.wal import SEGMENT_BYTES, SegmentDisk, Wal
from codeq_cluster.storage.wal_writer import Executor, Syncer, WalWriter

log = logging.getLogger(__name__)

_STOP_S: Final = 5.0  # A stopping node waits so long for stalled databases; the log keeps the rest.
_STOP_STEP_S: Final = 0.02


class WalPlace(Protocol):
    """The home of a node's write-ahead log, and whether it has one."""

    @property
    def segments(self) -> SegmentDisk:
        """Return the directory of the log's segments."""

    @property
    def has_wal(self) -> bool:
        """Return whether the databases lack rows that the log has."""

    def note_wal(self, *, begun: bool) -> None:
        """Record durably whether they lack rows from now on; raises StorageFailed."""

    @property
    def applied(self) -> Applied:
        """Return the record of how far the shards' states have come."""


class StorageTimers(spiller.SpillTimers, Protocol):
    """Time and the event loop."""

    def call_last(self, call: Callable[[], None]) -> object:
        """Run `call` at the end of the loop's current pass."""


class NodeStorage:
    """The storage of a node.

    Attributes:
        shards: In the order of their numbers.
    """

    def __init__(
        self,
        databases: Sequence[Database],
        place: WalPlace,
        *,
        executor: Executor,
        syncer: Syncer | None,
        timers: StorageTimers,
        on_synced: Callable[[float, int], None],
        on_failed: Callable[[int, BaseException], None],
        segment_bytes: int = SEGMENT_BYTES,
        held_bytes: int = HELD_BYTES,
        spill_s: float = SPILL_S,
    ) -> None:
        """Wrap open databases; `start` follows.

        Args:
            databases: By shard.
            executor: Runs the calls that wait for the disk; `stop` stops it.
            syncer: Waits until the disk has a write; None when a write counts as durable as soon as
                the operating system has it. `stop` stops it.
            on_synced: Called with (seconds, shard) of every write of a log, once it is durable or
                failed.
            on_failed: Called with (shard, error) when a database failed; `reopen` must follow.
            held_bytes: Bound on a shard's rows in memory; beyond it, its log waits for its
                database.
            spill_s: Seconds between two spills of a shard.
        """
        self._place = place
        self._databases = databases
        self._executor = executor
        self._syncer = syncer
        self._timers = timers
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._held_bytes = held_bytes
        self._spill_s = spill_s
        self._wal = Wal(place.segments, segment_bytes=segment_bytes)
        self.shards: Sequence[Shard] = ()

    def start(self) -> None:
        """Bring the databases up to date with the write-ahead log; blocks.

        Raises:
            DataDirectoryRefused: The log is damaged or missing.
            StorageFailed: The disk refused.
        """
        catch_up(self._databases, self._wal, expected=self._place.has_wal)
        self._place.note_wal(begun=True)
        self._writer = WalWriter(
            self._wal,
            executor=self._executor,
            syncer=self._syncer,
            call_last=self._timers.call_last,
            now=self._timers.now,
            on_synced=self._on_synced,
        )
        self._spiller = Spiller(
            self._wal,
            self._writer,
            self._databases,
            applied=self._place.applied,
            executor=self._executor,
            timers=self._timers,
            on_failed=self._on_failed,
            held_bytes=self._held_bytes,
            spill_s=self._spill_s,
        )
        self.shards = self._spiller.shards

    def pending(self) -> int:
        """Return the number of the log's write that the disk has not answered; 0 for none."""
        return self._writer.pending

    def kill(self) -> None:
        """Stop all writes, as if the process had ended; the caller stops the executor."""
        self._writer.stop()
        self._spiller.stop()

    def stop(self) -> None:
        """Bring every row into the databases, so that any release can continue; blocks.

        Failures are logged. The write-ahead log then stays, and the next start reads it.
        """
        self._writer.stop()
        self._spiller.stop()
        if not self._quiet(time.monotonic() + _STOP_S):
            # The file stays open: once its descriptor is reused, a sync still under way would sync
            # another file.
            log.warning("write-ahead log kept: the disk does not answer")
            return
        try:
            if not self._spilled(time.monotonic() + _STOP_S):
                log.warning("write-ahead log kept: a database takes no writes")
                self._wal.close()
                return
            for shard in self.shards:
                shard.sync()
            self._place.note_wal(begun=False)
            self._wal.end()
        except StorageFailed as error:
            log.warning("write-ahead log kept", extra={"error": str(error)})
            self._wal.close()

    def _quiet(self, until: float) -> bool:
        """Wait for the other users of the log; return whether none is left."""
        synced = self._syncer is None or self._syncer.stop(max(0.0, until - time.monotonic()))
        return self._executor.stop(max(0.0, until - time.monotonic())) and synced

    def _spilled(self, until: float) -> bool:
        while not self._spiller.spill_all():
            if time.monotonic() > until:
                return False
            time.sleep(_STOP_STEP_S)
        return True
