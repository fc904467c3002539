"""Operators: lists of tasks, and actions on many of them at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate

from msgspec.structs import replace

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.browsing import Browser, Rows, every_shards
from codeq_cluster.broker.questions import END, Browse, BrowseTags, Explain, ListItems, ListKeys
from codeq_cluster.broker.requests.bulk import PAGE, act, carry_out, half_way, parts_of, rows_of
from codeq_cluster.broker.requests.dead_letters import BULK_MAX
from codeq_cluster.broker.values import Caller, FoundTask
from codeq_cluster.codec import keyspace
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.explaining import Explanation
from codeq_cluster.core.items import Item
from codeq_cluster.core.lane import Lane, by_work
from codeq_cluster.core.operations import Delete, Replay, Retry
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Task

LOOKS_MAX = 10  # Pages read although a filter leaves them empty; then the caller must ask for more.
TAG_LOOKS_MAX = 40  # A look of a list by tag reads a quarter of what others do.
PAYLOADS_BYTES_MAX = 4 * 2**20  # Of one page, so that one shard's part fits a frame of the link.


class Operators:
    """Operators' actions on many tasks; every change leaves an audit record.

    An action that fails half way ends with OutcomeUnknown: some of the tasks are changed. A page
    may be short or empty although more pages follow.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._browser = Browser(shards)

    async def tasks(
        self, asked: Browse | BrowseTags, *, deadline: float
    ) -> tuple[list[FoundTask], bytes]:
        """Return the next tasks that are asked for, and where to go on; empty at the end.

        A page ends early where its payloads would exceed `PAYLOADS_BYTES_MAX`.
        """
        rows: Rows[Task] = []
        after = asked.after
        for _ in range(TAG_LOOKS_MAX if isinstance(asked, BrowseTags) else LOOKS_MAX):
            rows, after = await self._browser.tasks(replace(asked, after=after), deadline=deadline)
            if rows or after == END:
                break
        sums = accumulate(task.payload_bytes for _, task in rows)
        fits = max(1, sum(bytes_ <= PAYLOADS_BYTES_MAX for bytes_ in sums))
        if fits < len(rows):
            rows, after = rows[:fits], rows[fits - 1][0]
        found = await self._with_payloads([task for _, task in rows], deadline=deadline)
        return found, b"" if after == END else after

    async def items(self, asked: ListItems, *, deadline: float) -> tuple[list[Item], bytes]:
        """Return the next items that are asked for, and where to go on; empty at the end.

        `ListItems` says in which order.
        """
        rows, edge = await self._browser.items(asked, deadline=deadline)
        return [item for _, item in rows], b"" if edge == END else edge

    async def keys(self, caller: Caller, queue: str, *, count: int) -> tuple[list[Lane], bool]:
        """Return the busiest keys of a queue, and whether there may be busier ones."""
        asked = ListKeys(tenant=caller.tenant, queue=queue, count=count)
        pages = await every_shards(self._shards, asked, deadline=caller.deadline)
        lanes = [item for page in pages for _, item in page.rows if isinstance(item, Lane)]
        return sorted(lanes, key=by_work)[:count], any(page.edge != END for page in pages)

    async def explain(self, caller: Caller, task_id: str) -> Explanation | None:
        """Return why a task is in its state, or None if it is not the tenant's."""
        shard = shard_of(task_id, self._shards.count)
        asked = Explain(tenant=caller.tenant, id=task_id)
        answer = await self._shards.ask(shard, asked, deadline=caller.deadline)
        return answer.explanation

    async def cleanup(
        self, caller: Caller, *, before_ms: int, limit: int, retained_until_ms: int = 0
    ) -> int:
        """Delete at most `limit` tasks that ended before an instant; return how many it deleted.

        Dead letters are never deleted: they have a command of their own. If `retained_until_ms` is
        above 0, tasks retained beyond that instant stay too.
        """
        tenant, deadline = caller.tenant, caller.deadline
        deleted = 0
        after = b""
        while deleted < limit and after != END:
            asked = Browse(
                tenant=tenant,
                queue="",
                places=(QueuePlace.DONE, QueuePlace.FAILED),
                after=after,
                count=min(PAGE, limit - deleted),
                ended_before_ms=before_ms,
            )
            with half_way(deleted):
                rows, after = await self._browser.tasks(asked, deadline=deadline)
                deleted += await act(
                    self._shards,
                    [
                        task.id
                        for _, task in rows
                        if not retained_until_ms or task.retain_until_ms <= retained_until_ms
                    ],
                    lambda ids: Delete(**caller.signed(), ids=ids),
                    deadline=deadline,
                )
        return deleted

    async def replay(self, caller: Caller, ids: Sequence[str]) -> int:
        """Retry dead deliveries; if none is named, all of them, at most `BULK_MAX`.

        Returns:
            How many are pending again.
        """

        async def change(part: Sequence[str]) -> int:
            return await act(
                self._shards,
                part,
                lambda ids: Replay(**caller.signed(), ids=ids),
                deadline=caller.deadline,
            )

        tenant = caller.tenant
        dead = ListItems(
            tenant=tenant, kind=ItemKind.DELIVERY, after=b"", count=PAGE, dead_only=True
        )
        return await self._named_or_all(caller, ids, dead, change)

    async def retry(self, caller: Caller, ids: Sequence[str]) -> int:
        """Make due again what is set aside; if none is named, all of it, at most `BULK_MAX`.

        One that fails again is set aside again.

        Returns:
            How many are due again.
        """

        async def change(part: Sequence[str]) -> int:
            placed = [
                (shard, Retry(**caller.signed(), ids=ids))
                for shard in range(self._shards.count)
                for ids in parts_of(part)
            ]
            return await carry_out(self._shards, placed, deadline=caller.deadline, refused=[])

        tenant = caller.tenant
        asides = ListItems(tenant=tenant, kind=ItemKind.ASIDE, after=b"", count=PAGE)
        return await self._named_or_all(caller, ids, asides, change)

    async def _named_or_all(
        self,
        caller: Caller,
        ids: Sequence[str],
        every: ListItems,
        change: Callable[[Sequence[str]], Awaitable[int]],
    ) -> int:
        """Change the named items, or page by page those of the list; return how many changed."""
        if ids:
            return await change(ids)
        changed = 0
        while every.after != END and changed < BULK_MAX:
            with half_way(changed):
                rows, after = await self._browser.items(every, deadline=caller.deadline)
                changed += await change([item.id for _, item in rows])
            every = replace(every, after=after)
        return changed

    async def _with_payloads(self, tasks: Sequence[Task], *, deadline: float) -> list[FoundTask]:
        """Return the tasks with their payloads, without those deleted meanwhile."""
        keys = [(task.id, keyspace.payload(task.id)) for task in tasks]
        return [
            FoundTask(task, payload.decode(), shard_of(task.id, self._shards.count), 0)
            for task, payload in zip(
                tasks, await rows_of(self._shards, keys, deadline), strict=True
            )
            if payload is not None
        ]
