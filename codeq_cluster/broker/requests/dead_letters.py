"""Dead letters: reads the selected dead letters of one queue, page by page."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.browsing import Browser
from codeq_cluster.broker.questions import END, Browse
from codeq_cluster.broker.requests.bulk import PAGE, rows_of
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.error_kinds import error_kind
from codeq_cluster.core.task import State, Task

BULK_MAX = 10_000  # Tasks that one request changes; the answer says if there are more.


class DeadLetterSelection(Struct, frozen=True, kw_only=True):
    """Selects dead letters of a queue.

    Attributes:
        ids: Only these; empty for all.
        error: Only those that died of exactly this error; empty for all.
        kind: Only those that died of an error of this kind; empty for all.
        until_ms: Only those that died up to then, Unix milliseconds; None for all. Each was
            stamped by the leader of its shard.
        limit: At most this many, the newest first.
    """

    queue: str
    ids: tuple[str, ...] = ()
    error: str = ""
    kind: str = ""
    until_ms: int | None = None
    limit: int = BULK_MAX

    def fits(self, task: Task) -> bool:
        """Return whether a dead letter of the queue died of a selected error, and in time."""
        if self.until_ms is not None and task.updated_ms > self.until_ms:
            return False
        return self.error in {"", task.error} and self.kind in {"", error_kind(task.error)}


class DeadLetterReader:
    """Reads dead letters, the newest first."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._browser = Browser(shards)

    async def page(
        self, caller: Caller, wanted: DeadLetterSelection, after: bytes, *, count: int = PAGE
    ) -> tuple[list[Task], bytes]:
        """Return the next selected dead letters, at most `count`, and where to go on, or `END`.

        If ids are named, all of them come in one page.
        """
        if wanted.ids:
            return await self._named(caller, wanted), END
        asked = Browse(
            tenant=caller.tenant,
            queue=wanted.queue,
            places=(QueuePlace.DLQ,),
            after=after,
            count=count,
            error=wanted.error,
        )
        rows, edge = await self._browser.tasks(asked, deadline=caller.deadline)
        return [task for _, task in rows if wanted.fits(task)], edge

    async def _named(self, caller: Caller, wanted: DeadLetterSelection) -> list[Task]:
        """Return those of the named tasks that are dead letters of the queue."""
        ids = tuple(dict.fromkeys(wanted.ids))
        keys = [(each, keyspace.task(each)) for each in ids]
        found: list[Task] = []
        for record in await rows_of(self._shards, keys, caller.deadline):
            task = None if record is None else records.decode_task(record)
            if (
                task is not None
                and task.tenant == caller.tenant
                and task.state is State.DEAD
                and task.dead_queue == wanted.queue
                and wanted.fits(task)
            ):
                found.append(task)
        return found
