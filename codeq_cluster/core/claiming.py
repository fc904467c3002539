"""Claiming: which ready tasks a claim gets, in which order, and what the lease makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from codeq_cluster.core.changes import Decision, TaskChange
from codeq_cluster.core.items import Policy
from codeq_cluster.core.operations import Claim
from codeq_cluster.core.outcomes import Claimed, Rejected, Rejection
from codeq_cluster.core.rules import Rules
from codeq_cluster.core.task import State, Task
from codeq_cluster.core.transitions import leased
from codeq_cluster.core.view import View

# Tasks past their time to live that one claim may step over. They are buried by the clock, so a
# longer run of them is only met while that work is behind; the claim then comes back empty early
# rather than holding up the shard (1000 x about 1 us).
CLAIM_SKIPS_MAX = 1000

# Payloads and records one claim hands out, so that its answer fits a frame between nodes; a task
# that does not fit stays ready for the next claim. The first task always fits.
CLAIM_PAYLOAD_BYTES_MAX = 8 * 2**20
_RECORD_BYTES = 2 * 2**10  # Names, trace context, key: all but the webhook and the history.
_ATTEMPT_BYTES = 600  # A worker, a request, two instants.


def claim(view: View, operation: Claim, rules: Rules) -> Decision:
    """Lease up to `operation.count` ready tasks to the worker; none is an answer too.

    Paused queues are passed over, and those with as many tasks in progress as their topic allows.

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
    count = operation.count
    leased_max = rules.budget_of(operation.tenant).leased_max
    if leased_max:
        count = min(count, leased_max - view.usage(operation.tenant).leased)
        if count < 1:
            return Decision(Rejected(Rejection.BUDGET_EXCEEDED, "inFlight"))
    now_ms = view.now_ms
    changes: list[TaskChange] = []
    tasks: list[Task] = []
    skips = 0
    payload_bytes = 0
    line = _Line(view, operation)
    for task_id in line:
        ready = view.task(task_id)
        assert ready is not None
        if 0 < ready.expires_ms <= now_ms:
            skips += 1
            if skips > CLAIM_SKIPS_MAX:
                break
            continue
        payload_bytes += ready.payload_bytes + _record_bytes(ready)
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
        line.took()
        if len(tasks) == count:
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


def _record_bytes(task: Task) -> int:
    """Return about what the task itself takes in an answer, never less."""
    errors = sum(len(attempt.error) for attempt in task.history)
    return _RECORD_BYTES + len(task.webhook) + _ATTEMPT_BYTES * len(task.history) + 4 * errors


class _Line:
    """The ready tasks a claim may take, in the order it takes them.

    Priority goes first. Among queues that have work at the best priority the turns decide; a queue
    that may not be served, or no more, is left out.
    """

    def __init__(self, view: View, operation: Claim) -> None:
        self._view = view
        self._tenant = operation.tenant
        self._count = operation.count
        # Queues ignore case, so two spellings are one queue and must not be read twice.
        queues = dict.fromkeys(command.lower() for command in operation.commands)
        self._queues = tuple(queues) or tuple(sorted(view.queues(operation.tenant)))
        self._turns = view.turns(operation.tenant) if len(self._queues) > 1 else None
        self._policies: dict[str, Policy] = {}
        self._left: dict[str, int] = {}
        self._serving = ""

    def __iter__(self) -> Iterator[str]:
        view, tenant = self._view, self._tenant
        heads: dict[str, tuple[int, str, Iterator[tuple[int, int, str]]]] = {}
        for queue in self._queues:
            policy = self._policies[queue] = view.policy(tenant, queue)
            self._left[queue] = policy.claimable(self._count, partial(view.leased, tenant, queue))
            if self._left[queue] > 0:
                rows = view.ready(tenant, queue)
                for priority, _, task_id in rows:
                    heads[queue] = priority, task_id, rows
                    break
        while heads:
            queue = self._next(heads)
            _, task_id, rows = heads[queue]
            self._serving = queue
            yield task_id
            del heads[queue]
            if self._left[queue] > 0:
                for priority, _, following_id in rows:
                    heads[queue] = priority, following_id, rows
                    break

    def took(self) -> None:
        """Take note that the task yielded last is taken."""
        queue = self._serving
        self._left[queue] -= 1
        if self._turns is not None:
            self._turns.served(queue, weight=self._policies[queue].weight)

    def _next(self, heads: Mapping[str, tuple[int, str, Iterator[tuple[int, int, str]]]]) -> str:
        if self._turns is None:
            return next(iter(heads))
        best = max(priority for priority, _, _ in heads.values())
        # In the order asked for, which decides among those whose turn it equally is.
        return self._turns.due(
            queue for queue in self._queues if queue in heads and heads[queue][0] == best
        )
