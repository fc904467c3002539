"""Mutations: what a batch of changes does to the bytes of the store.

The whole batch is one write, so only each task's first and last state count: what it was in between
leaves no row, no tombstone and no encoding behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from codeq_cluster.codec import keyspace
from codeq_cluster.codec.records import encode_counters, encode_key_row, encode_result, encode_task
from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.task import Counters, Result, State, Task
from codeq_cluster.core.view import KeyRow

_Queue = tuple[str, str]  # The command in lower case, and the tenant.

_NONE = Counters()

_COUNTED = {State.READY: 0, State.DELAYED: 1, State.LEASED: 2, State.DEAD: 3}


@dataclass(slots=True)
class _Net:
    """What a batch makes of one task."""

    before: Task | None
    after: Task | None
    payload: str | None = None
    fingerprint: str = ""
    result: Result | None = None


def mutations(
    changes: Iterable[TaskChange], counters: Callable[[str, str], Counters]
) -> dict[bytes, bytes | None]:
    """Turn changes into one write: the new value of each key, None for a deleted one.

    The row of a queue whose counters change holds the new ones; a queue with none has no row.

    Args:
        changes: In decision order; a task's next change starts from what its last one left.
        counters: Returns a queue's counters before these changes, by queue and tenant.
    """
    nets = _nets(changes)
    rows: dict[bytes, bytes | None] = {}
    deltas: dict[_Queue, list[int]] = {}
    # All that goes, goes first: an idempotency key may pass from a deleted task to a new one.
    for task_id, net in nets.items():
        if net.before is not None:
            _remove(rows, task_id, net.before, net.after)
            _count(deltas, net.before, -1)
    for task_id, net in nets.items():
        if net.after is not None:
            _put(rows, task_id, net, net.after)
            _count(deltas, net.after, 1)
    for (queue, tenant), delta in deltas.items():
        if any(delta):
            now = _sum(counters(queue, tenant), delta)
            empty = now == _NONE
            rows[keyspace.stats(queue, tenant)] = None if empty else encode_counters(now)
    return rows


def _nets(changes: Iterable[TaskChange]) -> dict[str, _Net]:
    nets: dict[str, _Net] = {}
    for change in changes:
        task = change.after or change.before
        assert task is not None
        net = nets.get(task.id)
        if net is None:
            nets[task.id] = _Net(
                change.before, change.after, change.payload, change.fingerprint, change.result
            )
            continue
        assert change.before == net.after
        net.after = change.after
        if change.before is None:
            net.payload, net.fingerprint, net.result = change.payload, change.fingerprint, None
        if change.result is not None:
            net.result = change.result
    return nets


def _remove(
    rows: dict[bytes, bytes | None], task_id: str, before: Task, after: Task | None
) -> None:
    for key in keyspace.index_keys(before):
        rows[key] = None
    if before.has_result and (after is None or not after.has_result):
        rows[keyspace.result(task_id)] = None
    if after is None:
        rows[keyspace.task(task_id)] = None
        rows[keyspace.payload(task_id)] = None
    if before.idempotency_key and (
        after is None or after.idempotency_key != before.idempotency_key
    ):
        rows[keyspace.idempotency(before.tenant, before.idempotency_key)] = None


def _put(rows: dict[bytes, bytes | None], task_id: str, net: _Net, after: Task) -> None:
    rows[keyspace.task(task_id)] = encode_task(after)
    for key in keyspace.index_keys(after):
        if key in rows:
            # The row stands already: what was removed above was this task's own.
            del rows[key]
        else:
            rows[key] = b""
    if net.payload is not None:
        rows[keyspace.payload(task_id)] = net.payload.encode()
    if net.result is not None:
        rows[keyspace.result(task_id)] = encode_result(net.result)
    if after.idempotency_key and net.payload is not None:
        row = KeyRow(task_id, net.fingerprint)
        rows[keyspace.idempotency(after.tenant, after.idempotency_key)] = encode_key_row(row)


def _count(deltas: dict[_Queue, list[int]], task: Task, sign: int) -> None:
    place = _COUNTED.get(task.state)
    if place is None:
        return
    queue = (keyspace.queue_name(task.command), task.tenant)
    delta = deltas.get(queue)
    if delta is None:
        delta = deltas[queue] = [0, 0, 0, 0]
    delta[place] += sign


def _sum(before: Counters, delta: list[int]) -> Counters:
    ready, delayed, leased, dead = delta
    now = Counters(
        before.ready + ready, before.delayed + delayed, before.leased + leased, before.dead + dead
    )
    assert now.ready >= 0
    assert now.delayed >= 0
    assert now.leased >= 0
    assert now.dead >= 0
    return now
