"""Claiming: which ready tasks a claim gets, in which order, and what the lease makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace

from codeq_cluster.core.changes import Decision, TaskChange
from codeq_cluster.core.operations import Claim
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.core.task import State, Task
from codeq_cluster.core.transitions import leased
from codeq_cluster.core.view import View

# Tasks past their time to live that one claim may step over. They are buried by the clock, so a
# longer run of them is only met while that work is behind; the claim then comes back empty early
# rather than holding up the shard (1000 x about 1 us).
CLAIM_SKIPS_MAX = 1000

# Payloads one claim hands out, so that its answer fits a frame between nodes; a task that does not
# fit stays ready for the next claim. The first task always fits.
CLAIM_PAYLOAD_BYTES_MAX = 8 * 2**20


def claim(view: View, operation: Claim) -> Decision:
    """Lease up to `operation.count` ready tasks to the worker; none is an answer too.

    A retry that finds tasks leased under its request gets those and no others, the best priority
    first; tasks it got and lost since are gone for it. Only a retry that finds none claims anew.
    """
    assert operation.count >= 1
    assert operation.lease_ms >= 1
    assert operation.request
    if operation.retry:
        held = _held(view, operation)
        if held:
            return Decision(Claimed(held))
    now_ms = view.now_ms
    changes: list[TaskChange] = []
    tasks: list[Task] = []
    skips = 0
    payload_bytes = 0
    for task_id in _ready(view, operation):
        ready = view.task(task_id)
        assert ready is not None
        if 0 < ready.expires_ms <= now_ms:
            skips += 1
            if skips > CLAIM_SKIPS_MAX:
                break
            continue
        payload_bytes += ready.payload_bytes
        if tasks and payload_bytes > CLAIM_PAYLOAD_BYTES_MAX:
            break
        task = leased(
            ready,
            worker=operation.worker,
            request=operation.request,
            lease_until_ms=now_ms + operation.lease_ms,
            now_ms=now_ms,
        )
        tasks.append(task)
        changes.append(TaskChange(before=ready, after=task))
        if len(tasks) == operation.count:
            break
    return Decision(Claimed(tuple(tasks)), tuple(changes))


def _held(view: View, operation: Claim) -> tuple[Task, ...]:
    """Return what the request has leased before and its worker still holds."""
    found = (view.task(task_id) for task_id in view.claimed_under(operation.request))
    held = [
        task
        for task in found
        if task is not None
        and task.state is State.LEASED
        and task.claim == operation.request
        and task.worker == operation.worker
        and task.tenant == operation.tenant
    ]
    held.sort(key=lambda task: (-task.priority, task.ready_ms, task.id))
    return tuple(held)


def _ready(view: View, operation: Claim) -> Iterator[str]:
    """Yield ids of ready tasks in the order the claim takes them."""
    if len(operation.commands) == 1:
        queue = operation.commands[0].lower()
        return (task_id for _, _, task_id in view.ready(operation.tenant, queue))
    if operation.commands:
        # Queues ignore case, so two spellings are one queue and must not be read twice.
        queues = dict.fromkeys(command.lower() for command in operation.commands)
        return _merged(view, operation.tenant, tuple(queues), by_position=True)
    queues_ready = tuple(view.queues(operation.tenant))
    return _merged(view, operation.tenant, queues_ready, by_position=False)


def _merged(
    view: View, tenant: str, queues: tuple[str, ...], *, by_position: bool
) -> Iterator[str]:
    """Yield ids over several queues: priority first, then the queue's position or the sequence."""
    heads: list[tuple[int, int, int, str, Iterator[tuple[int, int, str]]]] = []
    for position, queue in enumerate(queues):
        rows = view.ready(tenant, queue)
        for priority, seq, task_id in rows:
            heads.append((-priority, position if by_position else 0, seq, task_id, rows))
            break
    heapify(heads)
    while heads:
        _, position, _, head_id, rows = heads[0]
        yield head_id
        for priority, seq, task_id in rows:
            # Sequence numbers are unique in a shard, so no comparison gets as far as the iterator.
            heapreplace(heads, (-priority, position, seq, task_id, rows))
            break
        else:
            heappop(heads)
