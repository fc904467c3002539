"""Spiller: moves rows from memory to the shards' databases, then trims the write-ahead log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from codeq_cluster.errors import StorageFailed
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.shard import Applied, Database, Shard
from codeq_cluster.storage.wal import Wal
from codeq_cluster.storage.wal_writer import Executor, WalWriter

log = logging.getLogger(__name__)

# Each shard is spilled this often. A task that lives less long is written once, in its last state.
SPILL_S = 1.0
# Shards take turns, a quarter of them at a time, so that the loop is not held up by all at once.
_TURNS = 4
# A spill begins earlier at this size or this number of rows. The database takes about 2 us for a
# row of any size, and holds the loop meanwhile.
SPILL_BYTES = 4 * 2**20
SPILL_ROWS = 8192
# Bound on a shard's rows in memory while its database takes no writes; beyond it, the shard's log
# waits, and so do its callers.
HELD_BYTES = StoreSettings().unspilled_bytes
# Pauses between tries while a database waits for its background work; tries too soon prolong the
# wait.
_STALLED_S = 0.01
_STALLED_S_STEP_MAX = 0.25
_STALLED_S_MAX = 60.0


class SpillTimers(Protocol):
    """Time and the event loop."""

    def now(self) -> float:
        """Return monotonic seconds."""

    def call_later(self, delay_s: float, call: Callable[[], None]) -> object:
        """Run `call` on the loop after `delay_s` seconds."""


class _Stall:
    """A database that has taken no write for some time."""

    def __init__(self, now: float) -> None:
        self.since = now
        self.pause_s = _STALLED_S
        self.retry_at = now


class Spiller:
    """Makes the shards of one node and spills them; belongs to the loop.

    A stalled database delays no other shard: its own shard's rows stay in memory, and the spiller
    tries again.
    If these rows outgrow `HELD_BYTES`, the shard's log is held: the replica acknowledges nothing
    more until there is room.

    Args:
        databases: By shard, open; they hold every row that the log has.
        executor: Runs the syncs of the databases.
        on_failed: Called with (shard, error) when a database failed; `reopen` must follow.
        held_bytes: See `HELD_BYTES`.
        spill_s: See `SPILL_S`.

    Attributes:
        shards: In the order of their numbers.
    """

    def __init__(
        self,
        wal: Wal,
        writer: WalWriter,
        databases: Sequence[Database],
        *,
        applied: Applied,
        executor: Executor,
        timers: SpillTimers,
        on_failed: Callable[[int, BaseException], None],
        held_bytes: int = HELD_BYTES,
        spill_s: float = SPILL_S,
    ) -> None:
        self._wal = wal
        self._writer = writer
        self._executor = executor
        self._timers = timers
        self._on_failed = on_failed
        self._held_bytes = held_bytes
        self._turn_s = spill_s / _TURNS
        self._early_bytes = min(SPILL_BYTES, held_bytes)
        self.shards = [
            Shard(
                number,
                database,
                writer,
                applied=applied,
                changed=partial(self.changed, number),
                reopened=partial(self.reopened, number),
            )
            for number, database in enumerate(databases)
        ]
        self._stalls: dict[int, _Stall] = {}
        self._failed: set[int] = set()
        self._renewed: set[int] = set()  # Reopened since the present trim of the log began.
        self._turn = 0
        self._armed = False
        self._upto = 0  # The next trim waits until all databases have this job; 0 for none.
        self._releasing = False
        self._stopped = False

    def changed(self, shard: int) -> None:
        """Note that a shard has something to spill."""
        if self.shards[shard].outgrows(self._early_bytes, SPILL_ROWS):
            # For a stalled shard this only checks whether it holds too much.
            self._spill(shard)
        if not self._armed:
            self._arm(self._turn_s)

    def reopened(self, shard: int) -> None:
        """Note that a shard continues with another database, or with its own reopened."""
        self._renewed.add(shard)
        self._failed.discard(shard)
        self._stalls.pop(shard, None)

    def stop(self) -> None:
        """Spill nothing more."""
        self._stopped = True

    def spill_all(self) -> bool:
        """Spill every shard now; return whether every database has all rows of its shard."""
        done = [self._spill(shard) for shard in range(len(self.shards))]
        return all(done)

    def _arm(self, delay_s: float) -> None:
        if not self._armed and not self._stopped:
            self._armed = True
            self._timers.call_later(delay_s, self._pass)

    def _pass(self) -> None:
        self._armed = False
        if self._stopped:
            return
        if self._wal.releasable and not self._releasing and not self._upto:
            self._upto = self._writer.completed
        for shard in sorted({*range(self._turn, len(self.shards), _TURNS), *self._stalls}):
            self._spill(shard, seq=self._upto)
        self._turn = (self._turn + 1) % _TURNS
        # What a database shows after it has refused a write may not be on disk.
        if self._upto and not self._failed and all(map(self._has_all, self.shards)):
            self._release()
        if self._stalls:
            next_at = min(stall.retry_at for stall in list(self._stalls.values()))
            self._arm(max(_STALLED_S, next_at - self._timers.now()))
        elif self._upto or any(shard.size for shard in self.shards):
            self._arm(self._turn_s)

    def _has_all(self, shard: Shard) -> bool:
        """Return whether a database has what the next trim of the log removes."""
        return shard.holds(self._upto)

    def _spill(self, shard: int, *, seq: int = 0) -> bool:
        """Spill one shard, unless its database has just refused; return whether all is written."""
        if shard in self._failed or self.shards[shard].withdrawn:
            return False
        stall, now = self._stalls.get(shard), self._timers.now()
        if stall is not None and now < stall.retry_at:
            self._hold_when_full(shard)
            return False
        try:
            done = self.shards[shard].spill(seq=seq)
            if not done:
                self._note_stall(shard, stall, now)
        except StorageFailed as error:
            self._fail(shard, error)
            return False
        if done:
            self._stalls.pop(shard, None)
            self.shards[shard].log.let_go()
        return done

    def _fail(self, shard: int, error: StorageFailed) -> None:
        self._stalls.pop(shard, None)
        self._failed.add(shard)
        self._on_failed(shard, error)
        # The held write is durable, and a replica steps back only once its last write is reported.
        self.shards[shard].log.let_go()

    def _note_stall(self, shard: int, stall: _Stall | None, now: float) -> None:
        if stall is None:
            stall = self._stalls[shard] = _Stall(now)
            log.warning("database stalled", extra={"shard": shard})
        if now - stall.since > _STALLED_S_MAX:
            raise StorageFailed("RocksDB waits for a flush or a compaction in vain")
        stall.retry_at = now + stall.pause_s
        stall.pause_s = min(2 * stall.pause_s, _STALLED_S_STEP_MAX)
        self._hold_when_full(shard)

    def _hold_when_full(self, shard: int) -> None:
        if self.shards[shard].size > self._held_bytes:
            self.shards[shard].log.hold = True

    def _release(self) -> None:
        """Delete the log's old segments once the databases have synced their rows."""
        upto, self._upto = self._upto, 0
        self._releasing = True
        self._renewed.clear()
        unsynced: list[tuple[int, StorageFailed]] = []

        def work() -> None:
            for number, shard in enumerate(self.shards):
                try:
                    shard.sync()
                except StorageFailed as error:
                    unsynced.append((number, error))
            # A database reopened meanwhile may have lost rows.
            if not unsynced and all(shard.holds(upto) for shard in self.shards):
                self._wal.release(upto)

        self._executor.run(work, partial(self._released, unsynced))

    def _released(
        self, unsynced: Sequence[tuple[int, StorageFailed]], error: BaseException | None
    ) -> None:
        self._releasing = False
        for shard, failure in unsynced:
            # A second sync would succeed, but without the pages that the disk has refused.
            if shard not in (self._failed | self._renewed) and not self.shards[shard].withdrawn:
                self._fail(shard, failure)
        if error is not None:
            # The next pass tries again; until then the log is longer than necessary.
            log.warning("write-ahead log not shortened", extra={"error": str(error)})
            self._arm(_STALLED_S_STEP_MAX)
        elif self._wal.releasable:
            self._arm(self._turn_s)
