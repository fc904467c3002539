"""Producer: creates tasks, each on the shard of its id."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.ports import Clock, Shards
from codeq_cluster.broker.requests.placement import Placement
from codeq_cluster.broker.values import RequestedTask
from codeq_cluster.core.operations import Create, Operation
from codeq_cluster.core.outcomes import Created, Outcome, Rejected, Rejection
from codeq_cluster.core.sharding import shard_of, with_shard
from codeq_cluster.errors import CodeqError, LimitExceeded, OperationTooLarge

_O = TypeVar("_O", bound=Operation)


def new_id() -> str:
    """Return a new task id: 128 random bits in the usual 8-4-4-4-12 form."""
    text = os.urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def fingerprint_of(command: str, payload: str) -> str:
    """Return a hash that tells a repeated create from another task with the same key."""
    return blake2b(f"{command}\0{payload}".encode(), digest_size=16).hexdigest()


class Producer:
    """Creates tasks."""

    def __init__(self, shards: Shards, clock: Clock) -> None:
        self._shards = shards
        self._placement = Placement(shards, clock)

    async def create(
        self, tenant: str, items: Sequence[RequestedTask], *, timeout_s: float
    ) -> list[Created | Rejected | CodeqError]:
        """Create tasks; one answer per item, order kept, `Created.payload` always set."""
        with self._placement.under_way(items):
            chosen: dict[str, int | None] = {}
            placed = [self._place(tenant, item, chosen) for item in items]
            outcomes = await on_their_shards(self._shards, placed, timeout_s=timeout_s)
        return [_answer(outcome, item) for outcome, item in zip(outcomes, items, strict=True)]

    def _place(
        self, tenant: str, item: RequestedTask, chosen: dict[str, int | None]
    ) -> tuple[int, Create]:
        """Choose the id and the shard; an idempotency key has one shard, so one log decides on it.

        Args:
            tenant: The task's tenant.
            item: The task.
            chosen: By command, the shard of this request's tasks; filled in.
        """
        task_id = new_id()
        fingerprint = ""
        count = self._shards.count
        if item.idempotency_key:
            shard: int | None = shard_of(f"{tenant}/{item.idempotency_key}", count)
            fingerprint = fingerprint_of(item.command, item.payload)
        else:
            if item.command not in chosen:
                chosen[item.command] = self._placement.shard(tenant, item)
            shard = chosen[item.command]
        if shard is None:
            shard = shard_of(task_id, count)
        else:
            task_id = with_shard(task_id, shards=count, wanted=shard)
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


def _answer(outcome: Outcome | CodeqError, item: RequestedTask) -> Created | Rejected | CodeqError:
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
    """Run operations on several shards at once, in order on each; return errors as values.

    Args:
        shards: All shards.
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
                # One operation is too large, and others may have been carried out. Retry each one:
                # it carries its request's id, so a repetition has no effect.
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
