"""Rows: a store in a dictionary, and the content it must have, from tasks and items alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.checkpoint import Checkpoint
from codeq_cluster.core.log_line import LogLine
from codeq_cluster.core.placing import once_name
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Counters, State, Task
from tests.fakes.dict_view import DictView

Rows = dict[bytes, bytes]

COUNTED = {
    State.READY: "ready",
    State.DELAYED: "delayed",
    State.LEASED: "leased",
    State.DEAD: "dead",
    State.DONE: "done",
    State.FAILED: "failed",
    State.HELD: "held",
}


def write(rows: Rows, written: dict[bytes, bytes | None]) -> None:
    """Apply a batch to the rows."""
    for key, value in written.items():
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value


def counters_in(rows: Rows) -> dict[tuple[str, str], Counters]:
    """Return the queues' counters in the rows, by queue and tenant."""
    return {
        keyspace.stats_parts(key): records.decode_counters(value)
        for key, value in rows.items()
        if key.startswith(keyspace.STATS_PREFIX) and value is not None
    }


def recomputed(view: DictView) -> Rows:
    """Return every row that the view's tasks and items must have."""
    rows: Rows = {}
    for task in view.tasks.values():
        rows[keyspace.task(task.id)] = records.encode(task)
        rows[keyspace.payload(task.id)] = view.payload(task.id).encode()
        rows |= dict.fromkeys(keyspace.index_keys(task), b"")
        result = view.result(task.id)
        assert (result is not None) == task.state.terminal == task.has_result
        if result is not None:
            rows[keyspace.result(task.id)] = records.encode(result)
        if task.idempotency_key:
            row = view.keyed(task.tenant, once_name(task))
            assert row is not None
            key = keyspace.idempotency(task.tenant, once_name(task))
            rows[key] = records.encode(row)
    for (kind, tenant, item_id), item in view.items.items():
        rows[keyspace.item(kind, tenant, item_id)] = records.encode(item)
        rows |= dict.fromkeys(keyspace.item_index_keys(item), b"")
        if kind is ItemKind.DELIVERY:
            body = view.bodies[tenant, item_id]
            rows[keyspace.body(tenant, item_id)] = records.encode(body)
    return rows | _recounted(view)


def _recounted(view: DictView) -> Rows:
    counts: dict[tuple[str, str], Counter[str]] = {}
    for task in view.tasks.values():
        own = task.command.lower()
        place = task.dead_queue if task.state is State.DEAD else own
        counts.setdefault((place, task.tenant), Counter())[COUNTED[task.state]] += 1
        counts.setdefault((own, task.tenant), Counter())["stored_bytes"] += _size(view, task)
    return {
        keyspace.stats(queue, tenant): records.encode(Counters(**numbers))
        for (queue, tenant), numbers in counts.items()
    }


def _size(view: DictView, task: Task) -> int:
    """Return a task's stored bytes, computed from the texts themselves and the artifacts' sizes."""
    result = view.result(task.id)
    texts: Iterable[str] = (result.body, result.error) if result is not None else ()
    own = len(view.payload(task.id).encode()) + sum(len(text.encode()) for text in texts)
    left = view.item(ItemKind.CHECKPOINT, task.tenant, task.id)
    own += len(left.text.encode()) if isinstance(left, Checkpoint) else 0
    lines = view.beside(ItemKind.LOG, task.tenant, task.id)
    own += sum(len(line.text.encode()) for line in lines if isinstance(line, LogLine))
    if task.more is not None:
        said = *(text for tag in task.more.tags for text in tag), task.more.metadata
        own += sum(len(text.encode()) for text in said)
    return own + sum(task.upload_bytes)
