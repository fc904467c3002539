"""Claiming: which ready tasks a claim gets, in which order, and their leases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from codeq_cluster.core.changes import Change, Decision, TaskChange
from codeq_cluster.core.gating import Gates, room
from codeq_cluster.core.items import Policy
from codeq_cluster.core.operations import Claim
from codeq_cluster.core.outcomes import Claimed, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import State, Task, beside_bytes
from codeq_cluster.core.transitions import leased
from codeq_cluster.core.view import View

# Tasks past their time to live that one claim may skip. The clock buries them, so longer runs only
# exist while that work is behind. The claim then comes back empty early instead of delaying the
# shard (1000 x about 1 us).
CLAIM_SKIPS_MAX = 1000

# Bound on the payloads and records of one claim, so that its answer fits a frame between nodes. A
# task that does not fit stays ready for the next claim. The first task always fits.
CLAIM_PAYLOAD_BYTES_MAX = 8 * 2**20
_RECORD_BYTES = 2 * 2**10  # Names, trace context, key: everything but the webhook and the history.
_ATTEMPT_BYTES = 600  # A worker, a request, two instants.


def claim(view: View, operation: Claim, rules: LifetimeRules) -> Decision:
    """Lease up to `operation.count` ready tasks to the worker, perhaps none.

    Skips paused queues, and queues with as many tasks in progress, or as many claimed lately, as
    their topic allows.

    A retry that finds tasks leased under its request gets those and no others, the best priority
    first. It does not get back tasks that it lost since. Only a retry that finds none claims other
    tasks.
    """
    assert operation.count >= 1
    assert operation.lease_ms >= 1
    assert operation.request
    if operation.retry:
        held = _held(view, operation)
        if held:
            return Decision(Claimed(held))
    count = operation.count
    leased_max = rules.budget_of(operation.tenant).leased_max
    if leased_max:
        count = min(count, leased_max - view.usage(operation.tenant).leased)
        if count < 1:
            return Decision(Rejected(Rejection.BUDGET_EXCEEDED, "inFlight"))
    line = _line(view, operation)
    try:
        return _leased_from(line, view, operation, count)
    finally:
        line.leave()


def _leased_from(line: _Named | _Any, view: View, operation: Claim, count: int) -> Decision:
    """Lease up to `count` tasks from the front of a line."""
    now_ms = view.now_ms
    changes: list[Change] = []
    gates = Gates(view, operation.tenant) if view.pins else None
    tasks: list[Task] = []
    skips = 0
    payload_bytes = 0
    for task_id in line:
        ready = view.task(task_id)
        assert ready is not None
        if 0 < ready.expires_ms <= now_ms:
            skips += 1
            if skips > CLAIM_SKIPS_MAX:
                break
            continue
        if gates is not None and not gates.lets(ready):
            line.shut()
            continue
        payload_bytes += ready.payload_bytes + _record_bytes(ready)
        if tasks and payload_bytes > CLAIM_PAYLOAD_BYTES_MAX:
            break
        task = leased(ready, operation, now_ms=now_ms)
        tasks.append(task)
        changes.append(TaskChange(before=ready, after=task))
        line.took()
        if gates is not None and not gates.took(ready):
            line.shut()
        if len(tasks) == count:
            break
    if gates is not None:
        changes += gates.changes()
    return Decision(Claimed(tuple(tasks)), tuple(changes))


def _line(view: View, operation: Claim) -> _Named | _Any:
    if not operation.commands:
        return _Any(view, operation)
    # Queues ignore case: two spellings of a queue must not make the claim read it twice.
    queues = dict.fromkeys(map(str.lower, operation.commands))
    return _Named(view, operation, tuple(queues))


def _held(view: View, operation: Claim) -> tuple[Task, ...]:
    """Return the tasks that the request leased before and its worker still holds."""
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


def _record_bytes(task: Task) -> int:
    """Return an upper estimate of the task's own bytes in an answer, with inputs and checkpoint."""
    record_bytes = _RECORD_BYTES + len(task.webhook)
    if task.more is not None:
        record_bytes += beside_bytes(task.more)
    for attempt in task.history:
        record_bytes += _ATTEMPT_BYTES + 4 * len(attempt.error)
    return record_bytes


class _Named:
    """The ready tasks of the queues that a claim names, in the order in which it takes them.

    Priority goes first. Among queues with work at the best priority, the turns decide. A queue that
    may not be served, or no longer, is left out.
    """

    def __init__(self, view: View, operation: Claim, queues: tuple[str, ...]) -> None:
        self._view = view
        self._tenant = operation.tenant
        self._count = operation.count
        self._queues = queues
        self._turns = view.turns(operation.tenant) if len(queues) > 1 else None
        self._policies: dict[str, Policy] = {}
        self._left: dict[str, int] = {}
        self._serving = ""

    def __iter__(self) -> Iterator[str]:
        view, tenant = self._view, self._tenant
        busy = view.queues(tenant)
        heads: dict[str, _Head] = {}
        for queue in self._queues:
            if queue not in busy:
                continue
            policy = self._policies[queue] = view.policy(tenant, queue)
            left = policy.claimable(self._count, partial(view.leased, tenant, queue))
            self._left[queue] = room(view, tenant, queue, left) if view.pins else left
            if self._left[queue] > 0:
                head = _next_of(view.ready(tenant, queue))
                if head is not None:
                    heads[queue] = head
        while heads:
            queue = self._next(heads)
            head = heads.pop(queue)
            self._serving = queue
            yield head.task_id
            if self._left[queue] > 0:
                following = _next_of(head.rows)
                if following is not None:
                    heads[queue] = following

    def took(self) -> None:
        """Note that the task yielded last is taken."""
        queue = self._serving
        self._left[queue] -= 1
        if self._turns is not None:
            self._turns.served(queue, weight=self._policies[queue].weight)

    def shut(self) -> None:
        """Leave out the queue of the task yielded last: it has no token for another one."""
        self._left[self._serving] = 0

    def leave(self) -> None:
        """End the claim."""

    def _next(self, heads: Mapping[str, _Head]) -> str:
        if self._turns is None:
            return next(iter(heads))
        best = max(head.priority for head in heads.values())
        # In the order of the claim, which decides between queues with equal turns.
        return self._turns.due(
            queue for queue in self._queues if queue in heads and heads[queue].priority == best
        )


class _Any:
    """The ready tasks of all the tenant's queues, in the order a claim of any command takes them.

    The order is as if the claim named every queue with work, by name. But it only reads those
    queues whose turn comes.
    """

    def __init__(self, view: View, operation: Claim) -> None:
        self._view = view
        self._tenant = operation.tenant
        self._count = operation.count
        self._order = view.order(operation.tenant)
        # A tenant's only queue with work needs no turns.
        has_turns = len(view.queues(operation.tenant)) > 1
        self._turns = view.turns(operation.tenant) if has_turns else None
        self._left: dict[str, int] = {}
        self._heads: dict[str, _Head | None] = {}  # The next task of each queue served.
        self._served: dict[str, int] = {}  # The priority at which each queue was first served.
        self._serving = ""

    def __iter__(self) -> Iterator[str]:
        while (queue := self._order.first(self._look)) is not None:
            head = self._heads.get(queue)
            if head is None:
                head = _next_of(self._view.ready(self._tenant, queue))
                assert head is not None, "a queue without work has a turn"
                self._served[queue] = head.priority
            self._serving = queue
            yield head.task_id
            self._heads[queue] = _next_of(head.rows) if self._left[queue] > 0 else None

    def took(self) -> None:
        """Note that the task yielded last is taken."""
        queue = self._serving
        self._left[queue] -= 1
        if self._turns is not None:
            weight = self._view.policy(self._tenant, queue).weight
            self._turns.served(queue, weight=weight)

    def shut(self) -> None:
        """Leave out the queue of the task yielded last: it has no token for another one."""
        self._left[self._serving] = 0

    def leave(self) -> None:
        """End the claim; the view has none of its changes yet, and may never get them."""
        for queue, priority in self._served.items():
            self._order.put(queue, priority)

    def _look(self, queue: str) -> int | None:
        """Return the priority of the queue's next task for this claim; see `TurnOrder.first`."""
        if queue in self._heads:
            head = self._heads[queue]
            return None if head is None else head.priority
        if queue not in self._left:
            view, tenant = self._view, self._tenant
            policy = view.policy(tenant, queue)
            left = policy.claimable(self._count, partial(view.leased, tenant, queue))
            if view.pins:
                left = room(view, tenant, queue, left)
            if left <= 0:
                self._order.park(queue)
                return None
            self._left[queue] = left
        return self._order.priority(queue)


class _Head(NamedTuple):
    """A queue's first task that is not handed out yet, and the tasks behind it."""

    priority: int
    task_id: str
    rows: Iterator[tuple[int, int, str]]


def _next_of(rows: Iterator[tuple[int, int, str]]) -> _Head | None:
    for priority, _, task_id in rows:
        return _Head(priority, task_id, rows)
    return None
