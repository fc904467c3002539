"""Consumer: extends the leases of tasks, takes tasks back and ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.requests.leases import HeldLease, renewal
from codeq_cluster.broker.requests.producer import on_its_shard, on_their_shards
from codeq_cluster.broker.requests.uploads import Uploads, submit_of
from codeq_cluster.broker.values import NewFile, NewResult, new_request
from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.holds import HoldOperation, Nack
from codeq_cluster.core.operations import Abandon, Cancel, Finish, Heartbeat, Submit
from codeq_cluster.core.outcomes import (
    Cancelled,
    Extended,
    Outcome,
    Rejected,
    Rejection,
    Returned,
    Submitted,
)
from codeq_cluster.core.reject import Reject
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.errors import CodeqError

_A = TypeVar("_A")
_OfOneTask = Heartbeat | Report | Abandon | Nack | HoldOperation | Reject | Cancel | AskCancel


class Consumer:
    """Extends leases and ends them."""

    def __init__(self, shards: Shards, uploads: Uploads) -> None:
        self._shards = shards
        self._uploads = uploads

    async def heartbeat(
        self, tenant: str, worker: str, held: HeldLease, *, timeout_s: float
    ) -> Extended | Rejected:
        """Extend a lease and return its new end, or the rejection."""
        return await self._one(renewal(held, tenant=tenant, worker=worker), Extended, timeout_s)

    async def give_back(
        self, asked: Abandon | Nack | HoldOperation | Reject, timeout_s: float
    ) -> Returned | Rejected:
        """End the delivery of a leased task, which returns to its queue or is a dead letter."""
        return await self._one(asked, Returned, timeout_s)

    async def submit(
        self, tenant: str, worker: str, items: Sequence[NewResult], *, timeout_s: float
    ) -> list[Submitted | Rejected | CodeqError]:
        """End leased tasks with results; return one answer per item, in order, errors as values.

        Files among the artifacts are stored first, under a time limit of their own.
        """
        if len(items) == 1 and not items[0].artifacts:
            [item] = items
            shards = self._shards.count
            ended = submit_of(tenant, worker, item, (), shards=shards)
            one = (shard_of(item.task_id, shards), ended)
            [outcome] = await on_their_shards(self._shards, [one], timeout_s=timeout_s)
            assert isinstance(outcome, Submitted | Rejected | CodeqError)
            return [outcome]
        first: dict[str, int] = {}
        for position, item in enumerate(items):
            first.setdefault(item.task_id, position)
        plain: dict[str, tuple[int, Submit | Finish]] = {}
        with_files: list[NewResult] = []
        of_task: dict[str, Outcome | CodeqError] = {}
        for position in first.values():
            item = items[position]
            artifacts = tuple(each for each in item.artifacts if not isinstance(each, NewFile))
            if len(artifacts) < len(item.artifacts):
                with_files.append(item)
                continue
            operation = submit_of(tenant, worker, item, artifacts, shards=self._shards.count)
            plain[item.task_id] = shard_of(item.task_id, self._shards.count), operation

        async def end_plain() -> None:
            placed = tuple(plain.values())
            outcomes = await on_their_shards(self._shards, placed, timeout_s=timeout_s)
            of_task.update(zip(plain, outcomes, strict=True))

        async def end_with_files(item: NewResult) -> None:
            ended = await self._uploads.submit(tenant, worker, item, timeout_s=timeout_s)
            of_task[item.task_id] = ended

        if with_files:
            await asyncio.gather(end_plain(), *map(end_with_files, with_files))
        else:
            await end_plain()
        answers: list[Submitted | Rejected | CodeqError] = []
        for position, item in enumerate(items):
            if first[item.task_id] != position:
                # The request names the task twice: its first item has ended the task.
                answers.append(Rejected(Rejection.NOT_IN_PROGRESS))
                continue
            outcome = of_task[item.task_id]
            assert isinstance(outcome, Submitted | Rejected | CodeqError)
            answers.append(outcome)
        return answers

    async def cancel(
        self,
        tenant: str,
        task_id: str,
        *,
        grace_ms: int = 0,
        reason: str = "",
        dependents: bool = False,
        timeout_s: float,
    ) -> Cancelled | Rejected:
        """End a task that has not ended yet; see `AskCancel`."""
        operation: Cancel | AskCancel = Cancel(request=new_request(), id=task_id, tenant=tenant)
        if grace_ms or reason or dependents:
            # Nodes of every release know a bare cancel.
            operation = AskCancel(
                request=operation.request,
                id=task_id,
                tenant=tenant,
                grace_ms=grace_ms,
                reason=reason,
                dependents=dependents,
            )
        return await self._one(operation, Cancelled, timeout_s)

    async def _one(
        self,
        operation: _OfOneTask,
        answered: type[_A],
        timeout_s: float,
    ) -> _A | Rejected:
        task_id = operation.nack.id if isinstance(operation, HoldOperation) else operation.id
        shard, deadline = shard_of(task_id, self._shards.count), deadline_in(timeout_s)
        return await on_its_shard(self._shards, shard, operation, answered, deadline=deadline)
