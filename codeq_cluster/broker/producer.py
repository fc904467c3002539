"""Producer: new tasks, each on the shard its id names."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.requests import NewTask
from codeq_cluster.core.operations import Create, Operation
from codeq_cluster.core.outcomes import Created, Outcome, Rejected, Rejection
from codeq_cluster.core.sharding import shard_of, with_shard
from codeq_cluster.errors import CodeqError, LimitExceeded, OperationTooLarge

_O = TypeVar("_O", bound=Operation)

# A queue of so few tasks on one shard is worked off in a moment; longer ones are spread evenly.
AHEAD_MAX = 256
# So many tasks in a row go to one of the shards that a node leads: they share its entries.
TOGETHER = 64


def new_id() -> str:
    """Draw a task id: 128 random bits in the usual 8-4-4-4-12 form."""
    text = os.urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def fingerprint_of(command: str, payload: str) -> str:
    """Return what tells a replay of an idempotency key from another task with it."""
    return blake2b(f"{command}\0{payload}".encode(), digest_size=16).hexdigest()


class Producer:
    """Creates tasks."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._placed = 0

    async def create(
        self, tenant: str, items: Sequence[NewTask], *, timeout_s: float
    ) -> list[Created | Rejected | CodeqError]:
        """Create tasks; one answer an item, order kept, `Created.payload` always filled."""
        near: dict[str, int | None] = {}
        placed = [self._place(tenant, item, near) for item in items]
        self._placed += len(items)
        outcomes = await on_their_shards(self._shards, placed, timeout_s=timeout_s)
        return [_answer(outcome, item) for outcome, item in zip(outcomes, items, strict=True)]

    def _place(self, tenant: str, item: NewTask, near: dict[str, int | None]) -> tuple[int, Create]:
        """Draw the id and find the shard: a key's own shard, so that one log decides about it.

        Args:
            tenant: Whose task it is.
            item: The task.
            near: Where tasks of one request go, by command; filled in.
        """
        task_id = new_id()
        fingerprint = ""
        count = self._shards.count
        if item.idempotency_key:
            shard: int | None = shard_of(f"{tenant}/{item.idempotency_key}", count)
            fingerprint = fingerprint_of(item.command, item.payload)
        else:
            queue = item.command.lower()
            shard = near[queue] = near[queue] if queue in near else self._near(tenant, queue)
        if shard is None:
            shard = shard_of(task_id, count)
        else:
            task_id = with_shard(task_id, shards=count, wanted=(shard,))
        return shard, Create(
            id=task_id,
            tenant=tenant,
            command=item.command,
            payload=item.payload,
            priority=item.priority,
            max_attempts=item.max_attempts,
            webhook=item.webhook,
            idempotency_key=item.idempotency_key,
            fingerprint=fingerprint,
            run_at_ms=item.run_at_ms,
            delay_ms=item.delay_ms,
            ttl_ms=item.ttl_ms,
            trace_parent=item.trace_parent,
            trace_state=item.trace_state,
        )

    def _near(self, tenant: str, queue: str) -> int | None:
        """Return the shard on which a task saves a way to another node; None: any will do.

        It is one of those that this node leads, as long as its queue is not longer by more than
        `AHEAD_MAX` tasks than the shortest: producers that all ask one node fill no shard alone.
        Of several, each has its turn for `TOGETHER` tasks.
        """
        replicas = [self._shards.local(shard) for shard in range(self._shards.count)]
        led = [shard for shard, replica in enumerate(replicas) if replica.leads]
        if len(led) > 1 or 0 < len(led) < len(replicas):
            ready = [replica.ready(tenant, queue) for replica in replicas]
            most = min(ready) + AHEAD_MAX
            led = [shard for shard in led if ready[shard] <= most]
        return led[self._placed // TOGETHER % len(led)] if led else None


def _answer(outcome: Outcome | CodeqError, item: NewTask) -> Created | Rejected | CodeqError:
    if isinstance(outcome, Created):
        return Created(outcome.task, outcome.replay, outcome.payload or item.payload)
    if isinstance(outcome, Rejected) and outcome.rejection is Rejection.BUDGET_EXCEEDED:
        return over_budget(outcome, "create_task")
    assert isinstance(outcome, Rejected | CodeqError), "a create is answered with something else"
    return outcome


def over_budget(rejected: Rejected, operation: str) -> LimitExceeded:
    """Return the error for a tenant that has used up a budget."""
    return LimitExceeded(
        scope=rejected.limit,
        operation=operation,
        retry_after_s=1,
        text=f"tenant budget exceeded: {rejected.limit}",
        code=rejected.rejection.value,
    )


async def on_their_shards(
    shards: Shards, placed: Sequence[tuple[int, _O]], *, timeout_s: float
) -> list[Outcome | CodeqError]:
    """Run operations on several shards at once, in order within each; errors become values.

    Args:
        shards: All of them.
        placed: n operations, each with its shard.
        timeout_s: For all of them together.
    """
    deadline = deadline_in(timeout_s)
    by_shard: dict[int, list[int]] = {}
    for position, (shard, _) in enumerate(placed):
        by_shard.setdefault(shard, []).append(position)
    answers: dict[int, Outcome | CodeqError] = {}

    async def on_one(shard: int, positions: list[int]) -> None:
        try:
            outcomes: Sequence[Outcome | CodeqError] = await shards.operate(
                shard, [placed[position][1] for position in positions], deadline=deadline
            )
        except OperationTooLarge as error:
            if len(positions) > 1:
                # One of them is, and others may be done. Each names itself, so each is asked alone.
                for position in positions:
                    await on_one(shard, [position])
                return
            outcomes = [error]
        except CodeqError as error:
            outcomes = [error] * len(positions)
        answers.update(zip(positions, outcomes, strict=True))

    if len(by_shard) == 1:
        [(shard, positions)] = by_shard.items()
        await on_one(shard, positions)
    else:
        async with asyncio.TaskGroup() as group:
            for shard, positions in by_shard.items():
                group.create_task(on_one(shard, positions))
    return [answers[position] for position in range(len(placed))]
