"""Search: finds a tenant's tasks by their fields, without payloads, in pages."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.browsing import Browser, Rows
from codeq_cluster.broker.questions import (
    ALL_TASKS,
    END,
    Browse,
    BrowseDelayed,
    BrowseIds,
    TaskFilter,
)
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Task

# Pages read although a filter leaves them short; then the caller must ask for more. For each page,
# a shard's leader reads at most a thousand tasks.
LOOKS_MAX = 5
IDS_MAX = 10  # Ids shown for a prefix that several tasks have.


class Search:
    """Finds tasks; a page may be short or empty although more pages follow."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._browser = Browser(shards)

    async def task(self, tenant: str, task_id: str, *, timeout_s: float) -> Task | None:
        """Return the tenant's task, or None."""
        shard = shard_of(task_id, self._shards.count)
        keys = (keyspace.task(task_id),)
        rows = await self._shards.read(shard, keys, deadline=deadline_in(timeout_s))
        [record] = rows.values
        task = None if record is None else records.decode_task(record)
        return task if task is not None and task.tenant == tenant else None

    async def ids(self, tenant: str, prefix: str, *, timeout_s: float) -> tuple[list[str], bool]:
        """Return the first ids that begin with the prefix, and whether there may be more."""
        asked = BrowseIds(tenant=tenant, prefix=prefix, count=IDS_MAX)
        rows, edge = await self._browser.tasks(asked, deadline=deadline_in(timeout_s))
        return [task.id for _, task in rows], edge != END

    async def tasks(
        self,
        tenant: str,
        *,
        queue: str,
        places: tuple[QueuePlace, ...],
        after: bytes,
        count: int,
        timeout_s: float,
        only: TaskFilter = ALL_TASKS,
    ) -> tuple[list[Task], bytes]:
        """Return the next tasks by queue and place, and where to go on; empty at the end."""
        asked = Browse(
            tenant=tenant, queue=queue, places=places, after=after, count=count, only=only
        )
        return await self._found(asked, timeout_s=timeout_s)

    async def delayed(
        self,
        tenant: str,
        *,
        queue: str,
        after: bytes,
        count: int,
        timeout_s: float,
        only: TaskFilter = ALL_TASKS,
    ) -> tuple[list[Task], bytes]:
        """Return the next delayed tasks, the earliest due first, and where to go on."""
        asked = BrowseDelayed(tenant=tenant, queue=queue, after=after, count=count, only=only)
        return await self._found(asked, timeout_s=timeout_s)

    async def _found(
        self, asked: Browse | BrowseDelayed, *, timeout_s: float
    ) -> tuple[list[Task], bytes]:
        deadline = deadline_in(timeout_s)
        rows: Rows[Task] = []
        after = asked.after
        for _ in range(LOOKS_MAX):
            missing = replace(asked, after=after, count=asked.count - len(rows))
            found, after = await self._browser.tasks(missing, deadline=deadline)
            rows += found
            if len(rows) >= asked.count or after == END:
                break
        return [task for _, task in rows], b"" if after == END else after
