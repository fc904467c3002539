"""Spilled shard: a shard's database without a node; every write is in it when its call returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.segments import Row
from codeq_cluster.storage.shard import ShardState
from tests.simulator.disk import SimApplied


class SpilledShard:
    """A database that no node has open.

    Attributes:
        state: A node's state over the database; nothing waits in it after a commit.
        log: The log's rows in the database.
    """

    def __init__(self, database: RocksShard) -> None:
        """Wrap an open database; the wrapper ends where the database is reopened or replaced."""
        self._database = database
        self.state = ShardState(0, database.state, SimApplied(), self._spill)
        self.log = _SpilledLog(database)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _spill(self) -> None:
        put(
            self._database,
            self.state.buffer.rows,
            index=self.state.applied_index,
            digest=self.state.digest,
            sync=False,
        )
        self.state.spilled()


class _SpilledLog:
    def __init__(self, database: RocksShard) -> None:
        self._database = database
        self.get = database.log.get
        self.scan = database.log.scan

    def write(
        self,
        puts: Sequence[Row],
        *,
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
        sync: bool,
    ) -> None:
        put_log(self._database, puts, delete_ranges=delete_ranges, sync=sync)


def put(
    shard: RocksShard,
    rows: Mapping[bytes, bytes | None],
    *,
    index: int | None = None,
    digest: bytes | None = None,
    log_rows: Sequence[Row] = (),
    delete_ranges: Sequence[tuple[bytes, bytes]] = (),
    sync: bool = True,
) -> None:
    """Write rows into a database, beside what is there."""
    shard.write(
        rows=rows,
        index=shard.state.applied_index if index is None else index,
        digest=shard.state.digest if digest is None else digest,
        delete_ranges=delete_ranges,
        log_rows=dict(log_rows),
        mark=shard.mark,
        wait=True,
    )
    if sync:
        shard.sync()


def put_log(
    shard: RocksShard,
    puts: Sequence[Row],
    *,
    delete_ranges: Sequence[tuple[bytes, bytes]] = (),
    sync: bool = True,
) -> None:
    """Write rows of the log into a database, beside what is there."""
    put(shard, {}, log_rows=puts, delete_ranges=delete_ranges, sync=sync)
