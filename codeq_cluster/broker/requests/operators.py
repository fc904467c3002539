"""Operators: lists of tasks, and actions on many of them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.browsing import Browser, Rows
from codeq_cluster.broker.questions import END, Browse, Explain, ListItems
from codeq_cluster.broker.requests.bulk import PAGE, Makes, act, half_way, rows_of
from codeq_cluster.broker.requests.dead_letters import (
    BULK_MAX,
    DeadLetterReader,
    DeadLetterSelection,
)
from codeq_cluster.broker.values import FoundTask, new_request
from codeq_cluster.codec import keyspace
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.explaining import Explanation
from codeq_cluster.core.items import Item, ItemKind
from codeq_cluster.core.operations import Delete, Operation, Replay, Requeue
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Task

LOOKS_MAX = 10  # Pages read although a filter leaves them empty; then the caller must ask for more.
PAYLOADS_BYTES_MAX = 4 * 2**20  # Of one page, so that one shard's part fits a frame of the link.
ERRORS_MAX = 100  # Distinct errors counted; all others are counted together.
OTHER = "(other)"


class Done(Struct, frozen=True, kw_only=True):
    """The outcome of an action on many tasks.

    Attributes:
        matched: Tasks the selection found.
        changed: How many of them were changed.
        by_error: Counts of the matched tasks by error.
        more: Whether tasks are left unread: ask again.
    """

    matched: int
    changed: int
    by_error: dict[str, int]
    more: bool


class Operators:
    """Operators' actions on many tasks; every change leaves an audit record.

    An action that fails half way ends with OutcomeUnknown: some of the tasks are changed. A page
    may be short or empty although more pages follow.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._browser = Browser(shards)
        self._dead_letters = DeadLetterReader(shards)

    async def tasks(
        self,
        tenant: str,
        *,
        queue: str,
        places: tuple[QueuePlace, ...],
        error: str,
        after: bytes,
        count: int,
        timeout_s: float,
    ) -> tuple[list[FoundTask], bytes]:
        """Return the next tasks of the tenant, and where to go on; empty at the end.

        A page ends early where its payloads would exceed `PAYLOADS_BYTES_MAX`.
        """
        deadline = deadline_in(timeout_s)
        rows: Rows[Task] = []
        for _ in range(LOOKS_MAX):
            asked = Browse(
                tenant=tenant, queue=queue, places=places, after=after, count=count, error=error
            )
            rows, after = await self._browser.tasks(asked, deadline=deadline)
            if rows or after == END:
                break
        sums = accumulate(task.payload_bytes for _, task in rows)
        fits = max(1, sum(bytes_ <= PAYLOADS_BYTES_MAX for bytes_ in sums))
        if fits < len(rows):
            rows, after = rows[:fits], rows[fits - 1][0]
        found = await self._with_payloads([task for _, task in rows], deadline=deadline)
        return found, b"" if after == END else after

    async def items(
        self,
        tenant: str,
        kind: ItemKind,
        *,
        after: bytes,
        count: int,
        timeout_s: float,
        dead_only: bool = False,
    ) -> tuple[list[Item], bytes]:
        """Return the next items of a kind, and where to go on; empty at the end.

        Items are ordered by id; dead deliveries alone, if asked for, by death, the latest first.
        """
        asked = ListItems(tenant=tenant, kind=kind, after=after, count=count, dead_only=dead_only)
        rows, edge = await self._browser.items(asked, deadline=deadline_in(timeout_s))
        return [item for _, item in rows], b"" if edge == END else edge

    async def explain(self, tenant: str, task_id: str, *, timeout_s: float) -> Explanation | None:
        """Return why a task is in its state, or None if it is not the tenant's."""
        shard = shard_of(task_id, self._shards.count)
        asked = Explain(tenant=tenant, id=task_id)
        answer = await self._shards.ask(shard, asked, deadline=deadline_in(timeout_s))
        return answer.explanation

    async def requeue(
        self, tenant: str, wanted: DeadLetterSelection, *, by: str, dry_run: bool, timeout_s: float
    ) -> Done:
        """Make dead letters ready again."""

        def operation(ids: tuple[str, ...]) -> Operation:
            return Requeue(request=new_request(), tenant=tenant, ids=ids, by=by)

        return await self._dead(tenant, wanted, None if dry_run else operation, timeout_s=timeout_s)

    async def delete(
        self, tenant: str, wanted: DeadLetterSelection, *, by: str, dry_run: bool, timeout_s: float
    ) -> Done:
        """Delete dead letters."""

        def operation(ids: tuple[str, ...]) -> Operation:
            return Delete(request=new_request(), tenant=tenant, ids=ids, by=by, dead_only=True)

        return await self._dead(tenant, wanted, None if dry_run else operation, timeout_s=timeout_s)

    async def cleanup(
        self,
        tenant: str,
        *,
        before_ms: int,
        limit: int,
        by: str,
        timeout_s: float,
        retained_until_ms: int = 0,
    ) -> int:
        """Delete at most `limit` tasks that ended before an instant; return how many it deleted.

        Dead letters are never deleted: they have a command of their own. If `retained_until_ms` is
        above 0, tasks retained beyond that instant stay too.
        """
        deadline = deadline_in(timeout_s)
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
                    lambda ids: Delete(request=new_request(), tenant=tenant, ids=ids, by=by),
                    deadline=deadline,
                )
        return deleted

    async def replay(self, tenant: str, ids: Sequence[str], *, by: str, timeout_s: float) -> int:
        """Retry dead deliveries; if none is named, all of them, at most `BULK_MAX`.

        Returns:
            How many are pending again.
        """
        deadline = deadline_in(timeout_s)

        def operation(part: tuple[str, ...]) -> Operation:
            return Replay(request=new_request(), tenant=tenant, ids=part, by=by)

        if ids:
            return await act(self._shards, ids, operation, deadline=deadline)
        replayed = 0
        after = b""
        while after != END and replayed < BULK_MAX:
            asked = ListItems(
                tenant=tenant, kind=ItemKind.DELIVERY, after=after, count=PAGE, dead_only=True
            )
            with half_way(replayed):
                rows, after = await self._browser.items(asked, deadline=deadline)
                found = [item.id for _, item in rows]
                replayed += await act(self._shards, found, operation, deadline=deadline)
        return replayed

    async def _dead(
        self,
        tenant: str,
        wanted: DeadLetterSelection,
        operation: Makes | None,
        *,
        timeout_s: float,
    ) -> Done:
        """Act on the dead letters of a queue, page by page; with no operation, only count them.

        A task that dies again meanwhile becomes the newest, so it sorts before the page and is not
        met a second time.
        """
        deadline = deadline_in(timeout_s)
        matched = changed = 0
        by_error: Counter[str] = Counter()
        after = b""
        more = False
        while after != END and matched < wanted.limit:
            with half_way(changed):
                tasks, after = await self._dead_letters.page(
                    tenant, wanted, after, deadline=deadline
                )
            left = wanted.limit - matched
            more = after != END or len(tasks) > left
            tasks = tasks[:left]
            matched += len(tasks)
            for task in tasks:
                known = task.error in by_error or len(by_error) < ERRORS_MAX
                by_error[task.error if known else OTHER] += 1
            if operation is not None:
                ids = [task.id for task in tasks]
                with half_way(changed):
                    changed += await act(self._shards, ids, operation, deadline=deadline)
        return Done(matched=matched, changed=changed, by_error=dict(by_error), more=more)

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
