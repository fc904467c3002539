"""Bulk jobs: requests for jobs over all tasks of a selection, which have a part on each shard."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from codeq_cluster.broker.ports import Clock, Shards
from codeq_cluster.broker.queries.search import item_of, items_of
from codeq_cluster.broker.questions import END, CountSelected
from codeq_cluster.broker.requests.producer import on_their_shards
from codeq_cluster.broker.values import Caller, count_error, new_request
from codeq_cluster.core.bulk import (
    JOBS_MAX,
    LIVE_JOBS,
    LIVE_MAX,
    RESUMED_MS,
    BulkAction,
    BulkJob,
    StartBulk,
    StopBulk,
)
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import BulkStands, Rejected, Rejection
from codeq_cluster.core.selecting import Selection
from codeq_cluster.core.sharding import shard_of_key
from codeq_cluster.errors import CodeqError, OutcomeUnknown

# Looks of one count at each shard, at most 250 rows each: about a second and a half of its leader.
LOOKS_MAX = 400

_T = TypeVar("_T")


class Job(Struct, frozen=True):
    """A job: its parts, in the order of their shards.

    Attributes:
        shards: How many parts it is to have; one that was refused half way has fewer.
    """

    parts: Sequence[BulkJob]
    shards: int

    @property
    def is_live(self) -> bool:
        """Return whether it goes on anywhere."""
        return any(not part.ended_ms for part in self.parts)

    @property
    def begun_ms(self) -> int:
        """Return when its first part began, Unix milliseconds."""
        return min(part.until_ms for part in self.parts)


class Counts(Struct, frozen=True, kw_only=True):
    """What a selection is about now.

    Attributes:
        changes: How many of these the action would change, as far as each alone can say.
        more: Not all rows were read.
    """

    selected: int
    changes: int
    by_state: Counter[int]
    by_error: Counter[str]
    more: bool


class BulkJobs:
    """Counts, begins, shows and stops jobs."""

    def __init__(self, shards: Shards, clock: Clock) -> None:
        self._shards = shards
        self._clock = clock

    async def count(self, caller: Caller, select: Selection, action: BulkAction) -> Counts:
        """Count the tasks that a job would be about, without changing one."""
        parts = await self._each(lambda shard: self._counted(caller, select, action, shard))
        by_error: Counter[str] = Counter()
        for part in parts:
            for error, number in part.by_error.items():
                count_error(by_error, error, number)
        return Counts(
            selected=sum(part.selected for part in parts),
            changes=sum(part.changes for part in parts),
            by_state=sum((part.by_state for part in parts), Counter()),
            by_error=by_error,
            more=any(part.more for part in parts),
        )

    async def start(
        self, caller: Caller, job_id: str, select: Selection, action: BulkAction
    ) -> Job | Rejected:
        """Begin a job on every shard; a repeated request begins it where that is missing.

        One that is repeated later than `RESUMED_MS` begins it nowhere, and answers what is there.

        Raises:
            OutcomeUnknown: It has begun on some shards, and not or perhaps on others.
            CodeqError: Nothing was begun.
        """
        jobs = await self.all(caller)
        found = next((job for job in jobs if job.parts[0].id == job_id), None)
        if found is None:
            # Asked before any shard is, so that none begins a job that others refuse.
            if sum(job.is_live for job in jobs) >= LIVE_MAX:
                return Rejected(Rejection.TOO_MANY, LIVE_JOBS)
        elif any((part.select, part.action) != (select, action) for part in found.parts):
            return Rejected(Rejection.IDEMPOTENCY_CONFLICT)
        elif found.begun_ms + RESUMED_MS <= self._clock.wall_ms():
            return found
        lead = shard_of_key(caller.tenant, f"bulk/{job_id}", self._shards.count)

        def begin(shard: int) -> Operation:
            return StartBulk(
                request=new_request(),
                tenant=caller.tenant,
                id=job_id,
                by=caller.by,
                select=select,
                action=action,
                leads=shard == lead,
            )

        return await self._operate(caller, begin)

    async def stop(self, caller: Caller, job_id: str) -> Job | Rejected:
        """Stop a job on every shard; one that has ended stays as it is."""

        def end(_: int) -> Operation:
            return StopBulk(request=new_request(), tenant=caller.tenant, id=job_id, by=caller.by)

        return await self._operate(caller, end)

    async def get(self, caller: Caller, job_id: str) -> Job | None:
        """Return a job, or None."""
        found = await self._each(
            lambda shard: item_of(self._shards, shard, BulkJob, caller, job_id)
        )
        parts = [part for part in found if part is not None]
        return Job(parts, self._shards.count) if parts else None

    async def all(self, caller: Caller) -> list[Job]:
        """Return every job that is kept, the newest first."""
        pages = await self._each(lambda shard: self._listed(caller, shard))
        by_id: dict[str, list[BulkJob]] = {}
        for page in pages:
            for part in page:
                by_id.setdefault(part.id, []).append(part)
        jobs = [Job(parts, self._shards.count) for parts in by_id.values()]
        return sorted(jobs, key=lambda job: job.begun_ms, reverse=True)

    async def _counted(
        self, caller: Caller, select: Selection, action: BulkAction, shard: int
    ) -> Counts:
        states: Counter[int] = Counter()
        errors: Counter[str] = Counter()
        changes, after = 0, b""
        for _ in range(LOOKS_MAX):
            asked = CountSelected(tenant=caller.tenant, select=select, action=action, after=after)
            answer = await self._shards.ask(shard, asked, deadline=caller.deadline)
            states.update(answer.by_state)
            for error, number in answer.by_error.items():
                count_error(errors, error, number)
            changes, after = changes + answer.changes, answer.edge
            if after == END:
                break
        return Counts(
            selected=states.total(),
            changes=changes,
            by_state=states,
            by_error=errors,
            more=after != END,
        )

    async def _listed(self, caller: Caller, shard: int) -> list[BulkJob]:
        parts = items_of(self._shards, shard, BulkJob, caller, count=JOBS_MAX)
        return [part async for part in parts]

    async def _operate(
        self, caller: Caller, operation: Callable[[int], Operation]
    ) -> Job | Rejected:
        placed = [(shard, operation(shard)) for shard in range(self._shards.count)]
        outcomes = await on_their_shards(self._shards, placed, deadline=caller.deadline)
        parts = [each.job for each in outcomes if isinstance(each, BulkStands)]
        failures = [each for each in outcomes if isinstance(each, CodeqError)]
        refused = [each for each in outcomes if isinstance(each, Rejected)]
        others = [each for each in refused if each.rejection is not Rejection.NOT_FOUND]
        if parts and (failures or others):
            done = f"{len(parts)} of {len(placed)} shards have done it: repeat it under its id"
            raise OutcomeUnknown(f"{done} ({[*failures, *others][0]})")
        if failures:
            raise next((each for each in failures if isinstance(each, OutcomeUnknown)), failures[0])
        return Job(parts, self._shards.count) if parts else refused[0]

    async def _each(self, of: Callable[[int], Awaitable[_T]]) -> list[_T]:
        return await asyncio.gather(*map(of, range(self._shards.count)))
