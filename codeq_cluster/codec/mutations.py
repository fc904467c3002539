"""Mutations: the effect of a batch of changes on the bytes of the store.

The whole batch is one write, so only each task's first and last state count. The states in between
leave no row, no tombstone and no encoding behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import methodcaller

from msgspec import Struct
from msgspec.structs import astuple, replace

from codeq_cluster.codec import keyspace
from codeq_cluster.codec.records import decode_item, encode
from codeq_cluster.core.changes import Change, ItemChange, TaskChange
from codeq_cluster.core.items import KIND_OF, Aside, Audit
from codeq_cluster.core.placing import once_name
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Counters, Result, State, Task
from codeq_cluster.core.view import KeyRow

_Queue = tuple[str, str]  # The command in lower case, and the tenant.

_NONE = Counters()

_COUNTED = {
    State.READY: 0,
    State.DELAYED: 1,
    State.LEASED: 2,
    State.DEAD: 3,
    State.DONE: 4,
    State.FAILED: 5,
    State.HELD: 7,
}
_BYTES = 6
_NOTHING = [0] * 8
_is_audit = methodcaller("startswith", keyspace.item_prefix(ItemKind.AUDIT))


class _Net(Struct):
    """The effect of a batch on one task.

    Attributes:
        is_put: Its rows are written already.
    """

    before: Task | None
    after: Task | None
    payload: str | None = None
    fingerprint: str = ""
    result: Result | None = None
    made: bool = False
    is_put: bool = False


def mutations(
    changes: Iterable[Change], counters: Mapping[tuple[str, str], Counters]
) -> dict[bytes, bytes | None]:
    """Return changes as one write: the new value of each key, None for a deleted one.

    A queue whose counters change gets a row with the new ones; a queue without tasks has no row.

    Args:
        changes: In decision order; a task's next change starts from the result of its last one.
        counters: The counters of queues before these changes, by queue and tenant; a queue without
            tasks has none.
    """
    tasks: list[TaskChange] = []
    items: list[ItemChange] = []
    for change in changes:
        if isinstance(change, TaskChange):
            tasks.append(change)
        else:
            items.append(change)
    rows, asides = _of_items(items) if items else ({}, None)
    nets = _nets(tasks)
    deltas: dict[_Queue, list[int]] = {}
    # Removals come first, because an idempotency key may pass from a deleted task to a new one.
    for net in nets.values():
        if net.before is not None:
            _remove(rows, deltas, net, net.before)
    for task_id, net in nets.items():
        if net.after is not None and not net.is_put:
            _put(rows, task_id, net, net.after)
            _count(deltas, net.after, 1)
    for (queue, tenant), delta in deltas.items():
        if any(delta):
            now = _sum(counters.get((queue, tenant), _NONE), delta)
            empty = now == _NONE
            rows[keyspace.stats(queue, tenant)] = None if empty else encode(now)
    if asides:
        _move_timers(rows, asides)
    return rows


class Recount:
    """Queues' counters computed from their tasks alone, as if each had just been created."""

    def __init__(self) -> None:
        self._deltas: dict[_Queue, list[int]] = {}

    def add(self, task: Task) -> None:
        """Count a task."""
        _count(self._deltas, task, 1)

    def rows(self) -> dict[bytes, bytes]:
        """Return the row of every queue that has one."""
        return {
            keyspace.stats(queue, tenant): encode(_sum(_NONE, delta))
            for (queue, tenant), delta in self._deltas.items()
            if any(delta)
        }


def number_audit_rows(rows: dict[bytes, bytes | None], index: int) -> None:
    """Put the log index of the entry that carries these rows into its audit records.

    The index is unknown before; every replica applies the entry under the same one.
    """
    for key in list(filter(_is_audit, rows)):
        value = rows[key]
        if value is not None:
            record = decode_item(value)
            assert isinstance(record, Audit)
            rows[key] = encode(replace(record, index=index))


def _nets(changes: Iterable[TaskChange]) -> dict[str, _Net]:
    nets: dict[str, _Net] = {}
    for change in changes:
        task = change.after or change.before
        assert task is not None
        net = nets.get(task.id)
        if net is None:
            nets[task.id] = _Net(
                change.before,
                change.after,
                change.payload,
                change.fingerprint,
                change.result,
                made=change.before is None,
            )
            continue
        assert change.before == net.after
        net.after = change.after
        if change.before is None:
            net.fingerprint, net.result, net.made = change.fingerprint, None, True
        if change.payload is not None:
            net.payload = change.payload
        if change.result is not None:
            net.result = change.result
    return nets


def _renewed(rows: dict[bytes, bytes | None], net: _Net, before: Task, after: Task) -> bool:
    """Put the rows of a task if no more than the end of its lease has moved; return whether."""
    until_ms, updated_ms = after.lease_until_ms, after.updated_ms
    if (
        net.made
        or net.payload is not None
        or net.result is not None
        or replace(before, lease_until_ms=until_ms, updated_ms=updated_ms) != after
    ):
        return False
    # All other index rows and all counters depend on what is the same.
    if until_ms != before.lease_until_ms:
        rows[keyspace.lease(before.lease_until_ms, before.id)] = None
        rows[keyspace.lease(until_ms, after.id)] = b""
    rows[keyspace.task(after.id)] = encode(after)
    return True


def _remove(
    rows: dict[bytes, bytes | None], deltas: dict[_Queue, list[int]], net: _Net, before: Task
) -> None:
    task_id, after = before.id, net.after
    # Leases are renewed by the thousand, so whether this is one is asked without a call.
    if before.state is State.LEASED and after is not None and after.state is State.LEASED:
        net.is_put = _renewed(rows, net, before, after)
        if net.is_put:
            return
    _count(deltas, before, -1)
    for key in keyspace.index_keys(before):
        rows[key] = None
    if before.has_result and (after is None or not after.has_result):
        rows[keyspace.result(task_id)] = None
    if after is None:
        rows[keyspace.task(task_id)] = None
        rows[keyspace.payload(task_id)] = None
    if before.idempotency_key and (after is None or once_name(after) != once_name(before)):
        rows[keyspace.idempotency(before.tenant, once_name(before))] = None


def _put(rows: dict[bytes, bytes | None], task_id: str, net: _Net, after: Task) -> None:
    rows[keyspace.task(task_id)] = encode(after)
    for key in keyspace.index_keys(after):
        if key in rows:
            # The row exists already: the removal above concerned this task's own row.
            del rows[key]
        else:
            rows[key] = b""
    if net.payload is not None:
        rows[keyspace.payload(task_id)] = net.payload.encode()
    if net.result is not None and after.has_result:  # The task may have been revived since.
        rows[keyspace.result(task_id)] = encode(net.result)
    if after.idempotency_key and net.made:
        row = KeyRow(task_id, net.fingerprint)
        rows[keyspace.idempotency(after.tenant, once_name(after))] = encode(row)


def _of_items(
    changes: Sequence[ItemChange],
) -> tuple[dict[bytes, bytes | None], list[ItemChange]]:
    """Return the rows of items, by what each was before the batch and is after it.

    Also return the changes of asides, which `_move_timers` wants.
    """
    rows: dict[bytes, bytes | None] = {}
    nets: dict[bytes, ItemChange] = {}
    asides: list[ItemChange] = []
    for change in changes:
        item = change.after if change.after is not None else change.before
        assert item is not None
        key = keyspace.item(KIND_OF[type(item)], item.tenant, item.id)
        first = nets.get(key)
        net = change
        if first is not None:
            body = change.body if change.body is not None else first.body
            net = replace(change, before=first.before, body=body)
        nets[key] = net
        if isinstance(item, Aside):
            asides.append(change)
    for key, net in nets.items():
        _change_item(rows, key, net)
    return rows, asides


def _change_item(rows: dict[bytes, bytes | None], key: bytes, change: ItemChange) -> None:
    """Add an item's rows; those of its indexes that stay as they are stay unwritten."""
    before, after = change.before, change.after
    had = keyspace.item_index_keys(before) if before is not None else ()
    has = keyspace.item_index_keys(after) if after is not None else ()
    for each in had:
        if each not in has:
            rows[each] = None
    if before is not None and after is None:
        rows[key] = None
        if before.has_body:
            rows[keyspace.body(before.tenant, before.id)] = None
    if after is not None:
        for each in has:
            if each not in had:
                rows[each] = b""
        rows[key] = encode(after)
        if change.body is not None:
            rows[keyspace.body(after.tenant, after.id)] = encode(change.body)


def _move_timers(rows: dict[bytes, bytes | None], changes: Iterable[ItemChange]) -> None:
    """Move timers out of the index and back; last, because other changes assume they are there."""
    for change in changes:
        if isinstance(change.after, Aside):
            rows[change.after.timer] = None
        elif isinstance(change.before, Aside):
            timer = change.before.timer
            if rows.get(timer, b"") is None:
                del rows[timer]  # What it belongs to needs it no longer, and it was not there.
            else:
                rows[timer] = b""


def _count(deltas: dict[_Queue, list[int]], task: Task, sign: int) -> None:
    own = task.command.lower(), task.tenant
    delta = deltas.get(own)
    if delta is None:
        delta = deltas[own] = _NOTHING.copy()
    delta[_BYTES] += sign * task.stored_bytes
    if task.state is State.DEAD:
        delta = deltas.setdefault((task.dead_queue, task.tenant), _NOTHING.copy())
    delta[_COUNTED[task.state]] += sign


def _sum(before: Counters, delta: list[int]) -> Counters:
    ready, delayed, leased, dead, done, failed, stored_bytes, held = delta
    now = Counters(
        before.ready + ready,
        before.delayed + delayed,
        before.leased + leased,
        before.dead + dead,
        before.done + done,
        before.failed + failed,
        before.stored_bytes + stored_bytes,
        before.held + held,
    )
    assert min(astuple(now)) >= 0
    return now
