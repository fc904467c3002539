"""Bulk: reads of one row per task, and one operation on many tasks over all shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.requests.producer import on_their_shards
from codeq_cluster.core.administering import IDS_MAX
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import Changed, Outcome, Rejected
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.errors import CodeqError, OperationTooLarge, OutcomeUnknown

PAGE = 256  # Tasks or items read in one step of a bulk action.
# Rows in one answer of a shard. A task's record may have 90 KiB, nearly all of it its history.
_ROWS_MAX = 100

Makes = Callable[[tuple[str, ...]], Operation]


async def rows_of(
    shards: Shards, keys: Sequence[tuple[str, bytes]], deadline: float
) -> list[bytes | None]:
    """Return one row per task, with one read per shard for each hundred of them.

    Args:
        keys: n pairs of a task's id and the row's key.
        deadline: Monotonic seconds.

    Returns:
        n values, None for a missing row.
    """
    by_shard: dict[int, list[int]] = {}
    for position, (task_id, _) in enumerate(keys):
        by_shard.setdefault(shard_of(task_id, shards.count), []).append(position)
    values: list[bytes | None] = [None] * len(keys)

    async def read(shard: int, positions: Sequence[int]) -> None:
        for start in range(0, len(positions), _ROWS_MAX):
            part = positions[start : start + _ROWS_MAX]
            wanted = [keys[each][1] for each in part]
            snapshot = await shards.read(shard, wanted, deadline=deadline)
            for position, value in zip(part, snapshot.values, strict=True):
                values[position] = value

    await asyncio.gather(*(read(shard, part) for shard, part in by_shard.items()))
    return values


async def act(
    shards: Shards,
    ids: Sequence[str],
    operation: Makes,
    *,
    deadline: float,
    refused: list[Rejected] | None = None,
) -> int:
    """Run the operation on each shard's part of the ids; return how many tasks changed.

    Args:
        ids: Of tasks, or of deliveries.
        operation: Makes the operation for some of them.
        deadline: Monotonic seconds.
        refused: Gets the refusals.
    """
    by_shard: dict[int, list[str]] = {}
    for item_id in ids:
        # A delivery's id begins with its task's id, which names the shard.
        shard = shard_of(item_id.split(".", 1)[0], shards.count)
        by_shard.setdefault(shard, []).append(item_id)
    parts = [(shard, ids) for shard, part in by_shard.items() for ids in parts_of(part)]
    refused = [] if refused is None else refused
    return await _act_on(shards, parts, operation, deadline=deadline, refused=refused)


async def _act_on(
    shards: Shards,
    parts: Sequence[tuple[int, tuple[str, ...]]],
    operation: Makes,
    *,
    deadline: float,
    refused: list[Rejected],
) -> int:
    """Act on parts; one that is too large for an entry is split."""
    placed = [(shard, operation(ids)) for shard, ids in parts]
    outcomes = await _answers(shards, placed, deadline=deadline)
    refused += [each for each in outcomes if isinstance(each, Rejected)]
    halves = [
        (shard, half)
        for (shard, ids), outcome in zip(parts, outcomes, strict=True)
        if isinstance(outcome, OperationTooLarge) and len(ids) > 1
        for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :])
    ]
    if not halves:
        return _count(outcomes)
    split = {half[0] for _, half in halves}
    count = _count(
        [each for (_, ids), each in zip(parts, outcomes, strict=True) if ids[0] not in split]
    )
    with half_way(count):
        others = _act_on(shards, halves, operation, deadline=deadline, refused=refused)
        return count + await others


def parts_of(ids: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the ids in parts that one operation may name."""
    return (tuple(ids[start : start + IDS_MAX]) for start in range(0, len(ids), IDS_MAX))


async def carry_out(
    shards: Shards,
    placed: Sequence[tuple[int, Operation]],
    *,
    deadline: float,
    refused: list[Rejected],
) -> int:
    """Run operations on their shards; return how many tasks they changed in all.

    `refused` gets the refusals.

    Raises:
        OutcomeUnknown: Some of it is or may be done.
        CodeqError: Nothing was done.
    """
    outcomes = await _answers(shards, placed, deadline=deadline)
    refused += [each for each in outcomes if isinstance(each, Rejected)]
    return _count(outcomes)


async def _answers(
    shards: Shards, placed: Sequence[tuple[int, Operation]], *, deadline: float
) -> list[Outcome | CodeqError]:
    if not placed:
        return []
    left_s = deadline - asyncio.get_running_loop().time()
    return await on_their_shards(shards, placed, timeout_s=left_s)


def _count(outcomes: Sequence[Outcome | CodeqError]) -> int:
    """Return how many tasks were changed; raises as `carry_out`."""
    count = sum(outcome.count for outcome in outcomes if isinstance(outcome, Changed))
    failures = [outcome for outcome in outcomes if isinstance(outcome, CodeqError)]
    # Raise OutcomeUnknown first: another error would claim that nothing was done.
    failures.sort(key=lambda failure: not isinstance(failure, OutcomeUnknown))
    if failures:
        with half_way(count):
            raise failures[0]
    return count


@contextmanager
def half_way(count: int) -> Iterator[None]:
    """Turn an error within into OutcomeUnknown if `count` tasks were changed before it."""
    try:
        yield
    except CodeqError as error:
        if count == 0 or isinstance(error, OutcomeUnknown):
            raise
        raise OutcomeUnknown(f"{count} tasks were acted on, not all: {error}") from error
