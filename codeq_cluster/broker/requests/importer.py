"""Importer: writes an imported tenant's tasks and policies to their shards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import asdict, replace

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.requests.producer import fingerprint_of
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec.arrivals import Arrivals
from codeq_cluster.core import task_ids
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.dependencies import Dependencies
from codeq_cluster.core.importing import ARRIVALS_MAX
from codeq_cluster.core.items import KIND_OF, Governing
from codeq_cluster.core.lane import KeyRule
from codeq_cluster.core.operations import Import
from codeq_cluster.core.outcomes import Imported
from codeq_cluster.core.placing import placed_again
from codeq_cluster.core.schedules import Schedule, schedule_shard
from codeq_cluster.core.sharding import home_shard, shard_of, shard_of_key
from codeq_cluster.core.task import State
from codeq_cluster.errors import CodeqError, OperationTooLarge, OutcomeUnknown
from codeq_cluster.portions import in_parts

# Bytes of one operation: its entry delays other writes no longer than a full batch does.
OPERATION_BYTES_MAX = 2**19

_Placed = Sequence[tuple[int, Import]]


class Importer:
    """Imports tasks, topics, pauses and subscriptions; an import leaves one audit record."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def take(
        self,
        caller: Caller,
        arrivals: Arrivals,
        *,
        source: str,
        record: str,
        forget_keys: bool,
        dry_run: bool,
    ) -> Imported:
        """Import everything that is not here yet, on all shards at once.

        Args:
            caller: Of the tenant that receives it; the deadline is that of all of it.
            arrivals: Already checked by `faults.fault` and `new_item_fault`.
            record: Id of the audit record that all parts of one import add to.
            forget_keys: Import tasks without their idempotency keys if the keys cannot be kept.
            dry_run: Only return what would happen.

        Raises:
            OutcomeUnknown: Some of it may be done; repeating the call does the rest.
            CodeqError: Nothing was done.
        """
        tenant, deadline = caller.tenant, caller.deadline
        count = self._shards.count
        whole = Import(
            request=record,
            tenant=tenant,
            by=caller.by,
            source=source,
            shards=count,
            forget_keys=forget_keys,
            dry_run=dry_run,
        )
        by_shard: dict[int, list[Arrival]] = {}
        own = [_complete(_kept(tenant, each, count)) for each in arrivals.tasks]
        old = {new.task.id: each.task.id for new, each in zip(own, arrivals.tasks, strict=True)}
        # A holder comes before the task that is next of its unique key.
        for each in sorted(own, key=lambda each: each.task.state is State.HELD):
            by_shard.setdefault(shard_of(each.task.id, count), []).append(each)
        items_by_shard: dict[int, list[Governing]] = {}
        for item in arrivals.items:
            items_by_shard.setdefault(_home(tenant, item, count), []).append(item)
        items = [
            (shard, _part(whole, items=part))
            for shard, some in items_by_shard.items()
            for part in in_parts(some, count_max=ARRIVALS_MAX)
        ]
        tasks = [
            (shard, _part(whole, tasks=part))
            for shard, some in by_shard.items()
            for part in in_parts(
                some, arrival_bytes, size_max=OPERATION_BYTES_MAX, count_max=ARRIVALS_MAX
            )
        ]
        done: list[Imported] = []
        # Policies come first: otherwise workers could claim tasks of a queue that is to be paused.
        for placed in (items, tasks):
            failure = await self._run(placed, done, deadline=deadline)
            if failure is not None and done and not isinstance(failure, OutcomeUnknown):
                raise OutcomeUnknown(f"some of it is done: {failure}") from failure
            if failure is not None:
                raise failure
        outcome = _together(done)
        left_out = (outcome.keys_taken, outcome.keys_apart, outcome.too_large)
        keys_taken, keys_apart, too_large = (tuple(old[id_] for id_ in ids) for ids in left_out)
        return replace(
            outcome,
            keys_taken=keys_taken,
            keys_apart=keys_apart,
            too_large=too_large,
            renamed=sum(new != former for new, former in old.items()),
        )

    async def _run(
        self, placed: _Placed, done: list[Imported], *, deadline: float
    ) -> CodeqError | None:
        """Run operations, add their outcomes to `done`, and return the error, if any.

        Each shard runs one at a time, so that other work gets its turn, and stops at its first
        error.
        """
        by_shard: dict[int, list[Import]] = {}
        for shard, operation in placed:
            by_shard.setdefault(shard, []).append(operation)

        async def on_one(shard: int, operations: Sequence[Import]) -> CodeqError | None:
            for operation in operations:
                failure = await self._one(shard, operation, done, deadline=deadline)
                if failure is not None:
                    return failure
            return None

        found = await asyncio.gather(*(on_one(*each) for each in by_shard.items()))
        failures = [failure for failure in found if failure is not None]
        # Return OutcomeUnknown first: another error would claim that nothing was done.
        failures.sort(key=lambda failure: not isinstance(failure, OutcomeUnknown))
        return failures[0] if failures else None

    async def _one(
        self, shard: int, operation: Import, done: list[Imported], *, deadline: float
    ) -> CodeqError | None:
        """Run one operation, split if it is too large; results as in `_run`."""
        try:
            [outcome] = await self._shards.operate(shard, (operation,), deadline=deadline)
        except OperationTooLarge:
            return await self._in_pieces(shard, operation, done, deadline=deadline)
        except CodeqError as error:
            return error
        assert isinstance(outcome, Imported), "an import is answered with something else"
        done.append(outcome)
        return None

    async def _in_pieces(
        self, shard: int, operation: Import, done: list[Imported], *, deadline: float
    ) -> CodeqError | None:
        """Run an operation too large for one entry as smaller ones; results as in `_run`."""
        if len(operation.tasks) + len(operation.items) > 1:
            return await self._run(_halves(shard, operation), done, deadline=deadline)
        if operation.items:
            [item] = operation.items
            done.append(Imported(items_refused=(f"{KIND_OF[type(item)].value}/{item.id}",)))
            return None
        [arrival] = operation.tasks
        if not arrival.deliveries:
            done.append(Imported(too_large=(arrival.task.id,)))
            return None
        # Import the callbacks first. In the other order, a crash in between would lose them,
        # because a repeated import skips an existing task. In this order, a repetition writes them
        # again with the task.
        ahead = replace(arrival, payload="", result=None)
        callbacks = _part(operation, tasks=(ahead,), callbacks_only=True)
        try:
            await self._shards.operate(shard, (callbacks,), deadline=deadline)
        except OperationTooLarge:
            done.append(Imported(too_large=(arrival.task.id,)))
            return None
        except CodeqError as error:
            return error
        bare = _part(operation, tasks=(replace(arrival, deliveries=()),))
        return await self._one(shard, bare, done, deadline=deadline)


def _kept(tenant: str, arrival: Arrival, shards: int) -> Arrival:
    """Return an arrival under the id that its task has here, in everything that names the task."""
    task, result = arrival.task, arrival.result
    home = placed_again(task, tenant, shards)
    new = task_ids.kept(tenant, task.id, home=home, shards=shards)
    if new == task.id:
        return arrival
    return replace(
        arrival,
        task=replace(task, id=new),
        result=None if result is None else replace(result, task_id=new),
        deliveries=tuple(
            (
                replace(delivery, id=_beside(new, delivery.id), task_id=new),
                replace(body, task_id=new),
            )
            for delivery, body in arrival.deliveries
        ),
        dependencies=None
        if arrival.dependencies is None
        else _kept_row(tenant, arrival.dependencies, new, shards),
        inputs=tuple(replace(each, id=_beside(new, each.id)) for each in arrival.inputs),
        beside=tuple(replace(each, id=_beside(new, each.id)) for each in arrival.beside),
        checkpoint=None if arrival.checkpoint is None else replace(arrival.checkpoint, id=new),
    )


def _beside(new: str, row_id: str) -> str:
    """Return the id that a row beside a task has under the task's new one."""
    return f"{new}.{row_id.rpartition('.')[2]}"


def _kept_row(tenant: str, row: Dependencies, new: str, shards: int) -> Dependencies:
    """Return what a task waits for, under the ids that these have here."""
    of = tuple(
        replace(each, parent=task_ids.kept(tenant, each.parent, home=None, shards=shards))
        for each in row.of
    )
    return replace(row, id=new, of=of)


def _home(tenant: str, item: Governing, shards: int) -> int:
    """Return the shard that an item of the tenant has here."""
    if isinstance(item, Schedule):
        return schedule_shard(tenant, item.id, shards)
    if isinstance(item, KeyRule):
        return shard_of_key(tenant, item.shard_name, shards)
    return home_shard(tenant, shards)


def _complete(arrival: Arrival) -> Arrival:
    """Return an arrival with sizes and fingerprint computed from its texts."""
    result = arrival.result
    size = 0 if result is None else len(result.body.encode()) + len(result.error.encode())
    task = replace(arrival.task, payload_bytes=len(arrival.payload.encode()), result_bytes=size)
    fingerprint = fingerprint_of(task.command, arrival.payload) if task.idempotency_key else ""
    return replace(arrival, task=task, fingerprint=fingerprint)


def arrival_bytes(arrival: Arrival) -> int:
    """Return the estimated size of an arrival in bytes, from its texts."""
    results = [body for _, body in arrival.deliveries]
    if arrival.result is not None:
        results.append(arrival.result)
    texts = len(arrival.payload) + sum(len(each.body) + len(each.error) for each in results)
    texts += sum(each.ended.size for each in arrival.inputs)
    texts += sum(each.size for each in arrival.beside)
    texts += 0 if arrival.checkpoint is None else len(arrival.checkpoint.text)
    rows = 1 + len(arrival.deliveries) + len(arrival.beside)
    return texts + 512 * rows


def _halves(shard: int, operation: Import) -> _Placed:
    tasks, items = operation.tasks, operation.items
    at, of = len(tasks) // 2, len(items) // 2
    halves = ((tasks[:at], items[:of]), (tasks[at:], items[of:]))
    return [(shard, _part(operation, tasks=own, items=beside)) for own, beside in halves]


def _part(
    whole: Import,
    *,
    tasks: tuple[Arrival, ...] = (),
    items: tuple[Governing, ...] = (),
    callbacks_only: bool = False,
) -> Import:
    """Return a part of an import."""
    return replace(whole, tasks=tasks, items=items, callbacks_only=callbacks_only)


def _together(done: Sequence[Imported]) -> Imported:
    """Return the sum of several outcomes."""
    sums = asdict(Imported())
    for outcome in done:
        for name, value in asdict(outcome).items():
            sums[name] = value or sums[name] if name == "limit" else sums[name] + value
    return Imported(**sums)
