"""Events: what an entry of a shard's log did to tasks, and which of it a watcher sees.

An event says where a task stands after the entry; states that it had within the entry are merged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.entries import Entry
from codeq_cluster.core.explaining import was_cancelled
from codeq_cluster.core.selecting import group_of, tags_of
from codeq_cluster.core.task import State, Task

log = logging.getLogger(__name__)


class EventKind(StrEnum):
    """What has become of a task.

    UPDATED is a change within a state: a longer lease, progress, other tags. DELETED says nothing
    more of the task than its id and the queue that it was in.
    """

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


_KIND_OF = {
    State.READY: EventKind.READY,
    State.DELAYED: EventKind.DELAYED,
    State.HELD: EventKind.HELD,
    State.LEASED: EventKind.CLAIMED,
    State.DONE: EventKind.COMPLETED,
    State.FAILED: EventKind.FAILED,
    State.DEAD: EventKind.DEAD,
}


class Event(Struct, kw_only=True):
    """One task after one entry.

    Attributes:
        queue: In lower case; of a deleted dead letter the one that kept it.
        at_ms: When the task changed, Unix milliseconds.
        task: None if it is deleted.
        shown: The event as callers get it, made once for all of them; empty until then.
    """

    shard: int
    index: int
    kind: EventKind
    task_id: str
    tenant: str
    queue: str
    at_ms: int
    task: Task | None = None
    shown: bytes = b""


class EventFilter(Struct, frozen=True, kw_only=True):
    """Selects the events that a watcher sees.

    Attributes:
        queues: In lower case; None for all.
        task_id, group: Empty for all.
        tags: (name, value), which the task must have, all of them.
        kinds: Empty for all.
    """

    tenant: str
    queues: frozenset[str] | None = None
    task_id: str = ""
    group: str = ""
    tags: frozenset[tuple[str, str]] = frozenset()
    kinds: frozenset[EventKind] = frozenset()

    def fits(self, event: Event) -> bool:
        """Return whether an event is selected; a deleted task has no tags and no group."""
        if event.tenant != self.tenant:
            return False
        if self.queues is not None and event.queue not in self.queues:
            return False
        if self.task_id and event.task_id != self.task_id:
            return False
        if self.kinds and event.kind not in self.kinds:
            return False
        if not self.tags and not self.group:
            return True
        task = event.task
        return (
            task is not None
            and self.tags <= set(tags_of(task))
            and self.group in ("", group_of(task))
        )


def events_of(
    entry: Entry, *, shard: int, index: int, failed: Callable[[], None]
) -> tuple[Event, ...]:
    """Return an event for each task that an entry has changed, in the order of its rows.

    Args:
        entry: In force, so not a fenced one.
        failed: Called for a row that cannot be read; it has no event.
    """
    tasks: dict[bytes, bytes | None] = {}
    # A task that has come to a place has another state than before; one that is gone has left one.
    came: set[bytes] = set()
    left: dict[bytes, bytes] = {}
    for key, value in entry.mutations.items():
        code = key[keyspace.CODE]
        if code == _TASK:
            tasks[key.removeprefix(keyspace.TASK_PREFIX)] = value
        elif code == keyspace.QUEUE_CODE:
            task_id = key[key.rindex(b"/") + 1 :]
            if value is None:
                left[task_id] = key
            else:
                came.add(task_id)
    found = []
    for task_id, value in tasks.items():
        if value is not None:
            try:
                task = records.decode_task(value)
            except records.RecordInvalid:
                extra = {"shard": shard, "index": index, "task_id": task_id.decode()}
                log.exception("a task cannot be shown to watchers", extra=extra)
                failed()
                continue
            found.append(_changed(task, shard=shard, index=index, moved=task_id in came))
        elif task_id in left:
            queue, tenant = keyspace.queue_of(left[task_id])
            found.append(
                Event(
                    shard=shard,
                    index=index,
                    kind=EventKind.DELETED,
                    task_id=task_id.decode(),
                    tenant=tenant,
                    queue=queue,
                    at_ms=entry.clock_ms,
                )
            )
    return tuple(found)


_TASK = keyspace.TASK_PREFIX[keyspace.CODE]


def _changed(task: Task, *, shard: int, index: int, moved: bool) -> Event:
    kind = _KIND_OF[task.state] if moved else EventKind.UPDATED
    if kind is EventKind.FAILED and was_cancelled(task):
        kind = EventKind.CANCELLED
    return Event(
        shard=shard,
        index=index,
        kind=kind,
        task_id=task.id,
        tenant=task.tenant,
        queue=task.command.lower(),
        at_ms=task.updated_ms,
        task=task,
    )
