"""Search: finds a tenant's tasks by their fields, without payloads, in pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from msgspec.structs import replace

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.browsing import Browser, Rows
from codeq_cluster.broker.questions import (
    END,
    Browse,
    BrowseDelayed,
    BrowseIds,
    BrowseTags,
    ListItems,
)
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.items import KIND_OF
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import StoredItem
from codeq_cluster.core.task import Task

_I = TypeVar("_I", bound=StoredItem)

# Pages read although a filter leaves them short; then the caller must ask for more. For each page,
# a shard's leader reads at most a thousand tasks, or fewer large ones; a quarter of that for a list
# by tag. For one of delayed tasks it reads the head of every queue as well.
LOOKS_MAX = {Browse: 5, BrowseDelayed: 1, BrowseTags: 20}
IDS_MAX = 10  # Ids shown for a prefix that several tasks have.


class Search:
    """Finds tasks; a page may be short or empty although more pages follow."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._browser = Browser(shards)

    async def task(self, caller: Caller, task_id: str) -> Task | None:
        """Return the tenant's task, or None."""
        return await task_of(self._shards, caller, task_id)

    async def ids(self, caller: Caller, prefix: str) -> tuple[list[str], bool]:
        """Return the first ids that begin with the prefix, and whether there may be more."""
        asked = BrowseIds(tenant=caller.tenant, prefix=prefix, count=IDS_MAX)
        rows, edge = await self._browser.tasks(asked, deadline=caller.deadline)
        return [task.id for _, task in rows], edge != END

    async def found(
        self, asked: Browse | BrowseDelayed | BrowseTags, *, deadline: float
    ) -> tuple[list[Task], bytes]:
        """Return the next tasks that are asked for, and where to go on; empty at the end."""
        rows: Rows[Task] = []
        after = asked.after
        for _ in range(LOOKS_MAX[type(asked)]):
            missing = replace(asked, after=after, count=asked.count - len(rows))
            found, after = await self._browser.tasks(missing, deadline=deadline)
            rows += found
            if len(rows) >= asked.count or after == END:
                break
        return [task for _, task in rows], b"" if after == END else after


async def item_of(
    shards: Shards, shard: int, kind: type[_I], caller: Caller, item_id: str
) -> _I | None:
    """Return an item of the caller's tenant as of now, or None."""
    keys = (keyspace.item(KIND_OF[kind], caller.tenant, item_id),)
    [record] = (await shards.read(shard, keys, deadline=caller.deadline)).values
    return records.item_in(record, kind)


async def items_of(
    shards: Shards, shard: int, kind: type[_I], caller: Caller, *, count: int, prefix: str = ""
) -> AsyncIterator[_I]:
    """Yield a shard's items of the caller's tenant, `count` in one request, in their order."""
    asked = ListItems(
        tenant=caller.tenant, kind=KIND_OF[kind], after=b"", count=count, prefix=prefix
    )
    while asked.after != END:
        page = await shards.ask(shard, asked, deadline=caller.deadline)
        for _, item in page.rows:
            if isinstance(item, kind):
                yield item
        asked = replace(asked, after=page.edge)


async def task_of(shards: Shards, caller: Caller, task_id: str) -> Task | None:
    """Return a task as of now, or None for no task of the caller's tenant."""
    shard, keys = shard_of(task_id, shards.count), (keyspace.task(task_id),)
    [record] = (await shards.read(shard, keys, deadline=caller.deadline)).values
    task = None if record is None else records.decode_task(record)
    return task if task is not None and task.tenant == caller.tenant else None
