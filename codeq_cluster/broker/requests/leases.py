"""Leases: renews all that a worker holds in one request, and waits for what ends one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.questions import Watch, Watched
from codeq_cluster.broker.requests.producer import on_their_shards
from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.operations import Heartbeat
from codeq_cluster.core.outcomes import Extended, Outcome, Rejected
from codeq_cluster.core.progress import Progress
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Cancelling
from codeq_cluster.errors import CodeqError
from codeq_cluster.fair_shares import NestedShares
from codeq_cluster.portions import in_parts

# A leader answers a wait when it is over; without more time, no such answer would arrive.
_SLACK_S = 1.0
# Each wait is a call to a shard's leader, and writes need the others of a node's 10,000 calls.
_WAITS_MAX = 2_000

# Each line is two rows of an entry once a log is full, and a leader decides a write in one go.
_LINES_A_WRITE = 200

Kept = Extended | Rejected | CodeqError
_Placed = tuple[int, Heartbeat | Report]  # With its shard.


class HeldLease(Struct, frozen=True, kw_only=True):
    """A lease that a worker says it holds.

    Attributes:
        token: 0 for the lease that the worker's subject holds.
        extend_ms: The new end, from now; 0 to leave the end as it is.
        progress: How far the work is; None to say nothing of it.
        checkpoint: For the next delivery, JSON text; empty to leave it as it is.
        knows_cancel: The worker has heard that the task is to end.
    """

    id: str
    token: int
    extend_ms: int
    progress: Progress | None = None
    checkpoint: str = ""
    log: tuple[str, ...] = ()
    knows_cancel: bool = False


def renewal(held: HeldLease, *, tenant: str, worker: str) -> Heartbeat | Report:
    """Return the operation that renews a lease; nodes of every release know a bare heartbeat."""
    if held.progress is None and not held.checkpoint and not held.log:
        return Heartbeat(
            id=held.id, tenant=tenant, worker=worker, extend_ms=held.extend_ms, token=held.token
        )
    return Report(
        id=held.id,
        tenant=tenant,
        worker=worker,
        extend_ms=held.extend_ms,
        token=held.token,
        progress=held.progress,
        checkpoint=held.checkpoint,
        log=held.log,
    )


class Leases:
    """Renews leases and watches them, on the shards of their tasks alone."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._waits = NestedShares(_WAITS_MAX, name="the calls that watch leases")

    async def renew(
        self, tenant: str, worker: str, leases: Sequence[HeldLease], *, timeout_s: float
    ) -> list[Kept]:
        """Renew leases, in one write a shard; return one answer for each, errors as values.

        Those with many lines for logs are several writes, one after the other. A lease that keeps
        its end is answered with an end of 0; nothing was asked about it.
        """
        renewed = [
            (shard_of(each.id, self._shards.count), renewal(each, tenant=tenant, worker=worker))
            for each in leases
            if each.extend_ms
        ]
        deadline = deadline_in(timeout_s)
        answers: list[Outcome | CodeqError] = []
        for some in in_parts(renewed, _lines, size_max=_LINES_A_WRITE):
            answers += await on_their_shards(self._shards, some, deadline=deadline)
        outcomes = iter(answers)
        kept: list[Kept] = []
        for each in leases:
            outcome = next(outcomes) if each.extend_ms else Extended(0)
            assert isinstance(outcome, Extended | Rejected | CodeqError)
            kept.append(outcome)
        return kept

    async def news(
        self, tenant: str, worker: str, leases: Sequence[HeldLease], *, wait_s: float
    ) -> dict[str, Rejected | Cancelling]:
        """Return the leases that are lost as soon as there is one, by task; none in time.

        A task that is to end is news too, unless the worker knows it.

        A shard without a leader, led by a node of an earlier release, or beyond the bound on waits
        tells nothing: the next renewal does.
        """
        news: dict[str, Rejected | Cancelling] = {}
        known = {held.id for held in leases if held.knows_cancel}
        by_shard: dict[int, dict[str, int]] = {}
        for held in leases:
            by_shard.setdefault(shard_of(held.id, self._shards.count), {})[held.id] = held.token
        # A leader that dies meanwhile hands the question to the next one, with its whole wait.
        deadline = deadline_in(wait_s + _SLACK_S)

        async def watch(shard: int, of: dict[str, int]) -> None:
            asked = Watch(
                tenant=tenant,
                worker=worker,
                leases=tuple(of.items()),
                wait_ms=int(wait_s * 1000),
                known=tuple(known.intersection(of)) if known else (),
            )
            try:
                async with asyncio.timeout_at(deadline):
                    with self._waits.one(tenant, worker):
                        watched: Watched = await self._shards.ask(shard, asked, deadline=deadline)
            except (CodeqError, TimeoutError):
                return
            news.update((task_id, Rejected(why)) for task_id, why in watched.lost)
            news.update(watched.cancelling)

        async with asyncio.TaskGroup() as group:
            silent = {group.create_task(watch(*each)) for each in by_shard.items()}
            while silent and not news:
                _, silent = await asyncio.wait(silent, return_when=asyncio.FIRST_COMPLETED)
            for each in silent:
                each.cancel()
        return news


def _lines(placed: _Placed) -> int:
    operation = placed[1]
    return len(operation.log) if isinstance(operation, Report) else 0
