"""Logs: the question after the lines of a task's log."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.search import task_of
from codeq_cluster.broker.questions import ListItems
from codeq_cluster.broker.values import Caller
from codeq_cluster.core.log_line import LogLine, position
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stepping import durable_of
from codeq_cluster.core.stored_item import ItemKind


class Logged(Struct, frozen=True, kw_only=True):
    """A part of a task's log.

    Attributes:
        lines: In order.
        written: How many lines the task has got in all: the number of the last one.
        dropped: How many of these are gone.
    """

    lines: tuple[LogLine, ...] = ()
    written: int = 0
    dropped: int = 0


class Logs:
    """Logs of tasks, each on its task's shard."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def of(self, caller: Caller, task_id: str, *, after: int, count: int) -> Logged | None:
        """Return lines of a task's log, or None for no task of the caller's tenant.

        Args:
            after: Only lines with greater numbers.
            count: At most so many; what a page of items holds is more than a whole log.
        """
        task = await task_of(self._shards, caller, task_id)
        if task is None:
            return None
        shard = shard_of(task_id, self._shards.count)
        has = durable_of(task)
        told = Logged(written=has.logged, dropped=has.logged - has.lines)
        if not has.lines or after >= has.logged:
            return told
        asked = ListItems(
            tenant=caller.tenant,
            kind=ItemKind.LOG,
            after=position(after).encode(),
            count=count,
            prefix=f"{task_id}.",
        )
        page = await self._shards.ask(shard, asked, deadline=caller.deadline)
        # Lines that came since the record was read are left to the next question, which names them.
        lines = [row for _, row in page.rows if isinstance(row, LogLine)]
        return Logged(
            lines=tuple(line for line in lines if line.number <= has.logged),
            written=told.written,
            dropped=told.dropped,
        )
