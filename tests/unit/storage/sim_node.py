"""A node's storage on simulated disks, under a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from codeq_cluster.storage.node_storage import NodeStorage
from codeq_cluster.storage.segments import Row
from codeq_cluster.storage.shard import Database, Shard
from codeq_cluster.storage.spiller import HELD_BYTES
from codeq_cluster.storage.syncers import ThreadSyncer
from tests.simulator.clock import SimClock, SimTimers
from tests.simulator.database import SimDatabase
from tests.simulator.disk import SimDisk, SimExecutor

ALL = (b"", b"\xff")
# A write that has not completed by then never will.
PATIENCE_S = 1.0


class SimNode:
    """Disks that outlive the lives of the node's storage; `start` begins a life.

    Args:
        shards: Number of shards.
        segment_bytes: Size of the write-ahead log's segments.
        held_bytes: Bound on one shard's rows in memory.
        seed: Decides what a crash leaves on the disks.
        open_databases: Opens other databases than simulated ones.

    Attributes:
        clock: Moves by `run` and while a write is under way.
        flush_s: The duration of a wait for the disk that begins now.
        databases: By shard, of this life.
        failed: (shard, text) of every failure that the storage reported.
    """

    def __init__(
        self,
        *,
        shards: int = 2,
        segment_bytes: int = 2**20,
        held_bytes: int = HELD_BYTES,
        seed: int = 0,
        open_databases: Callable[[], Sequence[Database]] | None = None,
    ) -> None:
        self.clock = SimClock()
        self.flush_s = 0.001
        self.disks = [SimDisk() for _ in range(shards)]
        self.databases: list[SimDatabase] = []
        self.failed: list[tuple[int, str]] = []
        self._segment_bytes = segment_bytes
        self._held_bytes = held_bytes
        self._open_databases = open_databases
        self._random = Random(seed)

    def start(self) -> None:
        """Begin a life."""
        timers = SimTimers(self.clock)
        self._timers = timers
        self.executor = SimExecutor(timers, lambda: self.flush_s)
        self.syncs = SimExecutor(timers, lambda: self.flush_s)
        self.databases = [SimDatabase(disk, self._random) for disk in self.disks]
        self.storage = NodeStorage(
            self.databases if self._open_databases is None else self._open_databases(),
            self.disks[0],
            executor=self.executor,
            syncer=ThreadSyncer(self.syncs),
            timers=timers,
            on_synced=lambda _seconds, _shard: None,
            on_failed=lambda shard, error: self.failed.append((shard, str(error))),
            segment_bytes=self._segment_bytes,
            held_bytes=self._held_bytes,
        )
        self.storage.start()

    def shard(self, number: int) -> Shard:
        """Return a shard of this life."""
        return self.storage.shards[number]

    def kill(self) -> None:
        """End the process: the machine keeps every write, synced or not."""
        self._timers.kill()
        self.storage.kill()

    def lose_power(self) -> None:
        """End the life and lose a random part of the unsynced writes."""
        self._timers.kill()
        self.storage.kill()
        self.executor.crash(self._random)
        self.syncs.crash(self._random)
        for disk in self.disks:
            disk.lose_power(self._random)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.run_until(self.clock.now + seconds)

    def begin(self, shard: int, *rows: Row) -> Callable[[], list[BaseException | None]]:
        """Begin a write; the returned function gives its outcome, [] while there is none."""
        told: list[BaseException | None] = []
        self.shard(shard).log.write(rows, [], told.append)
        return lambda: told

    def write(self, shard: int, *rows: Row) -> BaseException | None:
        """Write rows of a log; return the error, or None."""
        told = self.begin(shard, *rows)
        self.run(PATIENCE_S)
        [outcome] = told()
        return outcome

    def rows(self, shard: int) -> dict[bytes, bytes]:
        """Return the rows of a shard's log."""
        found = self.shard(shard).log.scan(*ALL, limit=10_000, bytes_max=2**30)
        return {key: value for key, value in found if key.startswith(b"log/")}
