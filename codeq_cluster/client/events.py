"""Events: what happens to a tenant's tasks, followed over the failures of nodes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

from codeq_cluster.client.connection import BASE, Connection, query, read_as
from codeq_cluster.client.records import ProgressRecord
from codeq_cluster.client.refusals import Refused, Unreachable
from codeq_cluster.client.retrying import may_succeed, pause_s
from codeq_cluster.client.transport import Request

_SILENT_S: Final = 40.0  # A node says something each 15 s.
_ENDED_PAUSE_S: Final = 0.1  # After a stream that its node has ended in order.
_PATH: Final = f"{BASE}/events"

log = logging.getLogger(__name__)


class EventKind(StrEnum):
    """What has become of a task; a later release may know more kinds."""

    READY = "ready"
    DELAYED = "delayed"
    HELD = "held"
    CLAIMED = "claimed"
    UPDATED = "updated"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD = "dead"
    DELETED = "deleted"


ENDS: Final = frozenset((
    EventKind.COMPLETED,
    EventKind.FAILED,
    EventKind.CANCELLED,
    EventKind.DEAD,
))  # fmt: skip


class TaskEvent(Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Where a task stood after a change.

    Attributes:
        kind: One of `EventKind`.
        command: Of a deleted task the queue, in lower case.
        status: Empty for a deleted task.
        attempts: How often it was handed out.
        endings: How often it has ended; more than once if it was requeued.
        worker_id: The holder of the lease.
        error: Its beginning.
        index: Of the entry in the log of its `shard`: events of a shard come in this order.
        cursor: Where to go on once this event is handled, also after a restart of the program: what
            is not handled comes again, and perhaps some of what is.
    """

    kind: str
    task_id: str
    command: str
    at: datetime
    status: str = ""
    attempts: int = 0
    endings: int = 0
    worker_id: str = ""
    error: str = ""
    group_id: str = ""
    tags: dict[str, str] = {}
    progress: ProgressRecord | None = None
    shard: int
    index: int
    cursor: str = ""

    @property
    def is_end(self) -> bool:
        """Return whether the task has ended: completed, failed, cancelled or dead."""
        return self.kind in ENDS


class _Page(Struct):
    cursor: str


class _Ending(Struct):
    error: str
    code: str
    retryable: bool = False


_read_ending = msgspec.json.Decoder(_Ending).decode


class Events(Connection):
    """The requests for events; each raises as `Connection._call` does."""

    async def events_cursor(self) -> str:
        """Return the cursor of this moment: `events` after it misses nothing that follows."""
        return (await self._read(_PATH, _Page)).cursor

    async def events(
        self,
        *,
        command: str = "",
        tags: Mapping[str, str] | None = None,
        task_id: str = "",
        group_id: str = "",
        kinds: Sequence[str] = (),
        after: str = "",
        within_s: float | None = None,
    ) -> AsyncGenerator[TaskEvent, None]:
        """Yield what happens to tasks, for ever.

        When a node stops, fails or falls silent, the next one goes on where it was: each event
        comes at least once, and those of a shard in order. End it with `aclose`, or by leaving
        `contextlib.aclosing`.

        Args:
            command: Only tasks of this queue.
            tags: Only tasks with all of these.
            task_id: Only this task.
            group_id: Only members of this group.
            kinds: Only these.
            after: A cursor to go on after; empty begins when the first event is asked for.
            within_s: How long to look for a node that serves them, in place of the connection's
                deadline.

        Raises:
            Refused: With the code `cursor-expired`, nothing after the cursor can be had any more;
                with `other-history`, it is of another cluster. Read what you follow once more, and
                begin without a cursor.
            Unreachable: No node has served them for so long.
        """
        path = _PATH + query(
            command=command,
            tag=[f"{name}:{value}" for name, value in (tags or {}).items()],
            task=task_id,
            group=group_id,
            kinds=",".join(kinds),
        )
        patience_s = self._deadline_s if within_s is None else within_s
        failures, failing_s = 0, 0.0
        while True:
            url = self._nodes.order()[0]
            pause = _ENDED_PAUSE_S
            try:
                async with aclosing(self._streamed(url, path, after)) as stream:
                    async for cursor, event in stream:
                        failures = 0
                        if event is not None:
                            event.cursor = cursor
                            yield event
                        after = cursor
                        self._nodes.answered(url)
            except (Unreachable, Refused) as error:
                now_s = time.monotonic()
                if not failures:
                    failing_s = now_s
                failures += 1
                all_failed = failures >= len(self.nodes)
                if not may_succeed(error) or (all_failed and now_s - failing_s >= patience_s):
                    raise
                log.warning("%s: no more events from %s: %s", path, url, error)
                pause = pause_s(failures, error) if all_failed else 0.0
            self._nodes.failed(url)
            await asyncio.sleep(pause)

    async def _streamed(
        self, url: str, path: str, after: str
    ) -> AsyncGenerator[tuple[str, TaskEvent | None], None]:
        """Yield the events of one node's stream, each with the cursor after it.

        Raises:
            Unreachable: The node takes no connection.
            Refused: It refuses the stream, or ends it with an error, or is silent.
        """
        self._learn_soon()
        request = Request(method="GET", path=path)
        name, data = "", b""
        cursor = after
        async with self._transport.streamed(url, request, after=after, silent_s=_SILENT_S) as lines:
            async for line in lines:
                field, _, value = line.partition(b": ")
                if field == b"id":
                    cursor = value.decode()
                elif field == b"event":
                    name = value.decode()
                elif field == b"data":
                    data = value
                elif not line:
                    if name == "error":
                        raise _refusal(data)
                    yield cursor, read_as(data, TaskEvent, request) if data else None
                    name, data = "", b""


def _refusal(data: bytes) -> Refused:
    ending = _read_ending(data)
    status = 503 if ending.retryable else 410
    return Refused(ending.error, status=status, code=ending.code, retryable=ending.retryable)
