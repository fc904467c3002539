"""Steps: requests that record, park, and signal, and the question after what is recorded."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.search import items_of, task_of
from codeq_cluster.broker.requests.producer import on_its_shard
from codeq_cluster.broker.values import Caller
from codeq_cluster.core.durable import (
    SIGNALS_MAX,
    STEPS_MAX,
    DurableOperation,
    Park,
    RecordStep,
    SendSignal,
    Signal,
    Step,
)
from codeq_cluster.core.outcomes import Rejected, Signalled, StepStands
from codeq_cluster.core.sharding import shard_of

_A = TypeVar("_A")

_ROWS_MAX = max(STEPS_MAX, SIGNALS_MAX)


class Recorded(Struct, frozen=True):
    """What stands beside a task: steps in the order of recording, signals in that of sending."""

    steps: tuple[Step, ...]
    signals: tuple[Signal, ...]


class Steps:
    """Durable steps of tasks, each on its task's shard."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def record(self, caller: Caller, operation: RecordStep) -> StepStands | Rejected:
        """Record a step of a leased task, and extend the lease."""
        return await self._operate(caller, operation, StepStands)

    async def park(self, caller: Caller, operation: Park) -> StepStands | Rejected:
        """Let a leased task wait without a worker, unless the wait is over already."""
        return await self._operate(caller, operation, StepStands)

    async def signal(self, caller: Caller, operation: SendSignal) -> Signalled | Rejected:
        """Send a signal to a task that has not ended; a second one with the key is a retry."""
        return await self._operate(caller, operation, Signalled)

    async def of(self, caller: Caller, task_id: str) -> Recorded | None:
        """Return what stands beside a task, or None for no task of the caller's tenant."""
        task = await task_of(self._shards, caller, task_id)
        if task is None:
            return None
        shard = shard_of(task_id, self._shards.count)
        if task.more is None or task.more.durable is None:
            return Recorded((), ())
        beside = partial(items_of, self._shards, shard, count=_ROWS_MAX, prefix=f"{task_id}.")
        steps = [row async for row in beside(Step, caller)]
        signals = [row async for row in beside(Signal, caller)]
        if task.state.terminal:  # It waits for nothing, until it is requeued.
            steps = [replace(row, is_open=False) for row in steps]
        return Recorded(
            tuple(sorted(steps, key=lambda row: row.number)),
            tuple(sorted(signals, key=lambda row: row.seq)),
        )

    async def _operate(
        self, caller: Caller, operation: DurableOperation, answered: type[_A]
    ) -> _A | Rejected:
        shard, deadline = shard_of(operation.id, self._shards.count), caller.deadline
        return await on_its_shard(self._shards, shard, operation, answered, deadline=deadline)
