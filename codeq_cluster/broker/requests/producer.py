"""Producer: creates tasks, each on the shard of its id."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping, Sequence
from hashlib import blake2b
from itertools import repeat
from typing import Any, TypeVar

from msgspec.structs import replace

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.ports import Clock, Shards
from codeq_cluster.broker.requests.pins import Pins
from codeq_cluster.broker.requests.placement import Placement
from codeq_cluster.core import task_ids
from codeq_cluster.core.new_task import Create, CreateKeyed, CreateTagged, CreateUnique
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import Created, Outcome, Rejected, Rejection, Tagged
from codeq_cluster.core.placing import placed_by_key
from codeq_cluster.core.sharding import shard_of, with_shard
from codeq_cluster.core.tags import ChangeTags
from codeq_cluster.errors import CodeqError, LimitExceeded, OperationTooLarge, TooMany

_A = TypeVar("_A")
_O = TypeVar("_O", bound=Operation)
_NO_PINS: Mapping[tuple[str, str], str] = {}
_FEWER_QUEUES = (
    "use a queue that the tenant has, or wait until one has no tasks, ended ones included; the "
    "operator sets limits.queuesMax"
)


def new_id() -> str:
    """Return a new id for anything but a task: 128 random bits in the usual 8-4-4-4-12 form."""
    return task_ids.grouped(os.urandom(16).hex())


def fingerprint_of(command: str, payload: str) -> str:
    """Return a hash that tells a repeated create from another task with the same key."""
    return blake2b(f"{command}\0{payload}".encode(), digest_size=16).hexdigest()


class Producer:
    """Creates tasks."""

    def __init__(self, shards: Shards, clock: Clock, pins: Pins) -> None:
        self._shards = shards
        self._count = shards.count
        self._pins = pins
        self._placement = Placement(shards, clock)

    async def create(
        self, tenant: str, items: Sequence[Create], *, timeout_s: float
    ) -> list[Created | Rejected | CodeqError]:
        """Create tasks; one answer per item, order kept, `Created.payload` always set."""
        count = len(items)
        self._placement.begin(count)
        try:
            chosen: dict[str, int | None] = {}
            placed = list(map(self._place, repeat(tenant), items, repeat(chosen)))
            deadline = deadline_in(timeout_s)
            outcomes = await on_their_shards(self._shards, placed, deadline=deadline)
            for outcome in outcomes:
                if outcome.__class__ is Rejected and outcome.rejection is Rejection.MISPLACED:
                    outcomes = await self._placed_again(tenant, items, outcomes, deadline)
                    break
        finally:
            self._placement.end(count)
        return list(map(_answer, outcomes, items))

    async def change_tags(self, operation: ChangeTags, *, timeout_s: float) -> Tagged | Rejected:
        """Give a task other tags."""
        shard, deadline = shard_of(operation.id, self._count), deadline_in(timeout_s)
        return await on_its_shard(self._shards, shard, operation, Tagged, deadline=deadline)

    def _place(
        self,
        tenant: str,
        item: Create,
        chosen: dict[str, int | None],
        pins: Mapping[tuple[str, str], str] = _NO_PINS,
    ) -> tuple[int, Create | CreateKeyed | CreateTagged | CreateUnique]:
        """Choose the id and the shard; a key has one shard, so one log decides on it.

        The shard that an idempotency key or a unique key had before its queue was pinned knows
        what the key made there; so it is asked first.

        Args:
            chosen: By command, the shard of this request's tasks; filled in.
            pins: Queues whose shards have said what they know.
        """
        task_id = task_ids.task_id(tenant, os.urandom(16))
        fingerprint = ""
        count = self._count
        shard = None
        if not pins and not item.idempotency_key and item.unique is None:
            pins = self._pins.known
        if pins or item.key or item.idempotency_key or item.unique is not None:
            shard = placed_by_key(item, tenant, count, pins)
        if item.idempotency_key:
            fingerprint = fingerprint_of(item.command, item.payload)
        if shard is None:
            if item.command not in chosen:
                chosen[item.command] = self._placement.shard(tenant, item)
            shard = chosen[item.command]
        if shard is None:
            shard = shard_of(task_id, count)
        else:
            task_id = with_shard(task_id, shards=count, wanted=shard)
        create = replace(item, id=task_id, tenant=tenant, fingerprint=fingerprint)
        if item.unique is not None:
            return shard, CreateUnique(create)
        if item.key:
            return shard, CreateKeyed(create)
        return shard, CreateTagged(create) if item.tags or item.metadata else create

    async def _placed_again(
        self,
        tenant: str,
        items: Sequence[Create],
        outcomes: list[Outcome | CodeqError],
        deadline: float,
    ) -> list[Outcome | CodeqError]:
        """Create those that belong on the shard of their queue."""
        again: list[int] = []
        pins: dict[tuple[str, str], str] = {}
        for position, outcome in enumerate(outcomes):
            if isinstance(outcome, Rejected) and outcome.rejection is Rejection.MISPLACED:
                again.append(position)
                queue = tenant, items[position].command.lower()
                pins[queue] = self._pins.told(tenant, outcome)[queue]
        placed = [self._place(tenant, items[each], {}, pins) for each in again]
        answers = await on_their_shards(self._shards, placed, deadline=deadline)
        for position, answer in zip(again, answers, strict=True):
            outcomes[position] = answer
        return outcomes


def _answer(outcome: Outcome | CodeqError, item: Create) -> Created | Rejected | CodeqError:
    if isinstance(outcome, Created):
        payload = outcome.payload or item.payload
        return Created(outcome.task, outcome.replay, payload, outcome.unique)
    if isinstance(outcome, Rejected) and outcome.rejection is Rejection.BUDGET_EXCEEDED:
        return over_budget(outcome, "create_task")
    if isinstance(outcome, Rejected) and outcome.rejection is Rejection.TOO_MANY:
        return too_many_queues(int(outcome.limit))
    assert isinstance(outcome, Rejected | CodeqError), "a create is answered with something else"
    return outcome


def too_many_queues(most: int) -> TooMany:
    """Return the error for a create that would begin one queue too many."""
    return TooMany("queues with tasks", most, advice=_FEWER_QUEUES)


def over_budget(rejected: Rejected, operation: str) -> LimitExceeded:
    """Return the error for a tenant that has used up a budget."""
    return LimitExceeded(
        scope=rejected.limit,
        operation=operation,
        retry_after_s=1,
        text=f"tenant budget exceeded: {rejected.limit}",
        code=rejected.rejection.value,
    )


async def on_its_shard(
    shards: Shards, shard: int, operation: Operation, answered: type[_A], *, deadline: float
) -> _A | Rejected:
    """Run one operation; return its outcome, which is of this type, or the rejection."""
    [outcome] = await shards.operate(shard, [operation], deadline=deadline)
    assert isinstance(outcome, answered | Rejected)
    return outcome


def on_their_shards(
    shards: Shards,
    placed: Sequence[tuple[int, _O]],
    *,
    timeout_s: float = 0,
    deadline: float | None = None,
) -> Coroutine[Any, Any, list[Outcome | CodeqError]]:
    """Run operations on several shards at once, in order on each; return errors as values.

    Args:
        placed: n operations, each with its shard.
        timeout_s: For all of them together, from now on.
        deadline: The loop's time, in its place.
    """
    if deadline is None:
        deadline = deadline_in(timeout_s)
    if len(placed) == 1:
        return _alone(shards, *placed[0], deadline=deadline)
    return _together(shards, placed, deadline=deadline)


async def _alone(
    shards: Shards, shard: int, operation: Operation, *, deadline: float
) -> list[Outcome | CodeqError]:
    try:
        return [*await shards.operate(shard, [operation], deadline=deadline)]
    except CodeqError as error:
        return [error]


async def _together(
    shards: Shards, placed: Sequence[tuple[int, _O]], *, deadline: float
) -> list[Outcome | CodeqError]:
    by_shard: dict[int, list[int]] = {}
    for position, (shard, _) in enumerate(placed):
        by_shard.setdefault(shard, []).append(position)
    answers: dict[int, Outcome | CodeqError] = {}

    async def on_one(shard: int, positions: list[int]) -> None:
        operations = [placed[position][1] for position in positions]
        outcomes: list[Outcome | CodeqError] = []
        try:
            outcomes += await shards.operate(shard, operations, deadline=deadline)
        except OperationTooLarge:
            # One operation is too large, and others may have been carried out. Retry each one: it
            # carries its request's id, so a repetition has no effect.
            for each in operations:
                outcomes += await _alone(shards, shard, each, deadline=deadline)
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
