"""Queries: reads of tasks, results and queue depths."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.ports import Shards, Snapshot
from codeq_cluster.broker.values import FoundTask, QueueDepth
from codeq_cluster.broker.waiters import Place, Waiters
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Counters, Result
from codeq_cluster.portions import in_portions

# Between two reads while no applied entries arrive that could show a result.
ISOLATED_PAUSE_S = 1.0


class Queries:
    """Reads, linearizable unless asked to be stale."""

    def __init__(self, shards: Shards, waiters: Waiters) -> None:
        self._shards = shards
        self._waiters = waiters

    async def task(
        self, tenant: str, task_id: str, *, stale: bool, timeout_s: float
    ) -> FoundTask | None:
        """Return the tenant's task, or None."""
        looked = await self._look(tenant, task_id, stale=stale, timeout_s=timeout_s)
        return None if looked is None else looked[0]

    async def result(
        self,
        tenant: str,
        task_id: str,
        *,
        wait_s: float = 0,
        stale: bool = False,
        timeout_s: float,
        place: Place = nullcontext,
    ) -> tuple[FoundTask, Result | None] | None:
        """Return a task and its result, waiting up to `wait_s` for one; None for no task."""
        if wait_s <= 0:
            return await self._look(tenant, task_id, stale=stale, timeout_s=timeout_s)
        loop = asyncio.get_running_loop()
        waits_until = loop.time() + wait_s
        with place(), self._waiters.for_result(task_id) as ticket:
            while True:
                ticket.event.clear()
                looked = await self._look(tenant, task_id, stale=stale, timeout_s=timeout_s)
                if looked is None or looked[1] is not None:
                    return looked
                remaining_s = waits_until - loop.time()
                if self._shards.isolated and remaining_s > ISOLATED_PAUSE_S:
                    await ticket.wait(ISOLATED_PAUSE_S)
                elif remaining_s <= 0 or not await ticket.wait(remaining_s):
                    return looked

    async def queues(self, tenant: str, queue: str = "", *, timeout_s: float) -> list[QueueDepth]:
        """Return the depth of every queue of the tenant, by name, summed over the shards.

        Args:
            queue: Only this queue; empty for all.
            timeout_s: For all shards together.
        """
        deadline = deadline_in(timeout_s)
        sums: dict[str, QueueDepth] = {}
        found = await self._shards.depths(tenant, queue, deadline=deadline)
        async for depth in in_portions(found):
            before = sums.get(depth.queue, QueueDepth(depth.queue, Counters(), 0))
            counters = before.counters
            ages = [ms for ms in (before.oldest_ready_ms, depth.oldest_ready_ms) if ms]
            held = [ms for ms in (before.oldest_held_ms, depth.oldest_held_ms) if ms]
            sums[depth.queue] = QueueDepth(
                depth.queue,
                Counters(
                    counters.ready + depth.ready,
                    counters.delayed + depth.delayed,
                    counters.leased + depth.leased,
                    counters.dead + depth.dead,
                    held=counters.held + depth.held,
                ),
                min(ages, default=0),
                min(held, default=0),
                max(before.held_until_ms, depth.held_until_ms),
            )
        return [sums[queue] for queue in sorted(sums)]

    async def _look(
        self, tenant: str, task_id: str, *, stale: bool, timeout_s: float
    ) -> tuple[FoundTask, Result | None] | None:
        shard = shard_of(task_id, self._shards.count)
        keys = (
            keyspace.task(task_id),
            keyspace.payload(task_id),
            keyspace.result(task_id),
        )
        rows = await self._rows(shard, keys, stale=stale, timeout_s=timeout_s)
        record, payload, ended = rows.values
        if record is None:
            return None
        task = records.decode_task(record)
        if task.tenant != tenant:
            return None  # Another tenant's task does not exist for this one.
        assert payload is not None, "a task has no payload"
        found = FoundTask(task, payload.decode(), shard, rows.applied_index)
        return found, None if ended is None else records.decode_result(ended)

    async def _rows(
        self, shard: int, keys: Sequence[bytes], *, stale: bool, timeout_s: float
    ) -> Snapshot:
        if stale:
            return self._shards.local(shard).stale(keys)
        deadline = deadline_in(timeout_s)
        return await self._shards.read(shard, keys, deadline=deadline)
