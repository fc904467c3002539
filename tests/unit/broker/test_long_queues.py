"""Long queues: a start, a claim and a count cost the same whatever the number of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from tests.fakes.memory_store import MemoryShard, MemoryState
from tests.fakes.spilled_shard import SpilledShard

from .conftest import Shard, TestClock, claim, create, make_shard

pytestmark = pytest.mark.asyncio

_STORE = StoreSettings(block_cache_bytes=2**20, memtable_bytes=2**20)


class _CountingState(MemoryState):
    """Counts the rows it has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.rows_read = 0

    def get(self, key: bytes) -> bytes | None:
        """Count one row."""
        self.rows_read += 1
        return super().get(key)

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Count the rows of the page."""
        page = super().scan(start, end, limit)
        self.rows_read += len(page)
        return page


async def _fill(shard: Shard, count: int) -> None:
    for first in range(0, count, 1000):
        numbers = range(first, min(first + 1000, count))
        await shard.engine.operate([create(f"t{number:06}") for number in numbers])


async def _claimed(shard: Shard, request: str, count: int) -> Sequence[str]:
    [outcome] = await shard.engine.operate([claim(request, count=count)])
    assert isinstance(outcome, Claimed)
    return [task.id for task in outcome.tasks]


async def test_every_task_of_a_long_queue_is_claimed_after_a_restart(tmp_path: Path) -> None:
    """They fill many windows of one priority, and come in order from a reopened store."""
    count = 20_500
    disk = SpilledShard(RocksShard(tmp_path, settings=_STORE, cache=new_cache(_STORE)))
    shard = make_shard(disk, TestClock(), operations_max=count)  # type: ignore[arg-type]
    shard.log.lead()
    await _fill(shard, count)
    shard.engine.stop()
    disk.close()

    disk = SpilledShard(RocksShard(tmp_path, settings=_STORE, cache=new_cache(_STORE)))
    shard = make_shard(disk, TestClock())  # type: ignore[arg-type]
    shard.log.lead()
    got: list[str] = []
    while page := await _claimed(shard, f"r{len(got)}", 1000):
        got += page
    shard.engine.stop()
    disk.close()

    assert got == [f"t{number:06}" for number in range(count)]


async def test_a_start_reads_as_much_of_a_long_queue_as_of_a_short_one() -> None:
    """A start reads counters and the next few timers, however many tasks wait or are leased."""
    read = []
    for count in (1000, 4000):
        store = MemoryShard()
        store.state = state = _CountingState()
        shard = make_shard(store, TestClock())
        shard.log.lead()
        await _fill(shard, count)
        await shard.engine.operate([create(f"d{number}", delay_ms=60_000) for number in range(500)])
        await _claimed(shard, "r", 500)
        shard.engine.stop()
        state.rows_read = 0
        make_shard(store, TestClock()).log.lead()
        read.append(state.rows_read)

    assert read[1] == read[0]
    assert 0 < read[0] < 1000


async def test_a_count_of_a_queue_reads_no_task() -> None:
    """One row per priority shows how long the oldest task waits; counters have the rest."""
    store = MemoryShard()
    store.state = state = _CountingState()
    shard = make_shard(store, TestClock())
    shard.log.lead()
    await _fill(shard, 3000)
    state.rows_read = 0

    [depth] = await shard.engine.depths("acme")

    assert ("render", 3000) == (depth.queue, depth.ready)
    assert state.rows_read <= 10
    shard.engine.stop()
