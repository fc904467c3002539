"""Gating: which tasks of a queue the limit of the whole queue lets a claim take."""

from __future__ import annotations

from collections.abc import Iterator

from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.gate import Gate
from codeq_cluster.core.lane import Flow, cost_of
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.task import Task
from codeq_cluster.core.view import View


def room(view: View, tenant: str, queue: str, wanted: int) -> int:
    """Return how many of the wanted tasks of a queue its own limit lets a claim take now.

    The tokens of its rate say so only when there is none; with some, they are asked for each task.
    """
    flow = view.pins.get((tenant, queue))
    if flow is None or flow.per_queue is None:
        return wanted
    gate = view.gates.get((tenant, queue))
    if gate is not None and gate.shut_until_ms > view.now_ms:
        return 0
    most = flow.per_queue.max_running
    return max(0, min(wanted, most - view.leased(tenant, queue))) if most else wanted


def changed(view: View, flow: Flow) -> Iterator[ItemChange]:
    """Yield what opens a queue's gate because the rule of the queue changes.

    The end of the rule ends a hold, too.
    """
    gate, rule = view.gates.get((flow.tenant, flow.id)), flow.per_queue
    if gate is not None:
        after = gate.opened(rule.rate, now_ms=view.now_ms) if rule is not None else None
        yield ItemChange(before=gate, after=after)


def held(view: View, task: Task, until_ms: int) -> ItemChange | None:
    """Return the change by which nothing of a task's queue goes until then.

    None if the queue has no limit of its own, or the task is from before it had one: then its log
    does not decide about the queue.
    """
    place = task.tenant, task.command.lower()
    flow = view.pins.get(place)
    if flow is None or flow.per_queue is None or task.more is None or not task.more.pinned:
        return None
    before = view.gates.get(place)
    gate = before or Gate(tenant=task.tenant, id=place[1], spent_us=0)
    return ItemChange(before=before, after=gate.held(until_ms))


def elapsed(view: View, gate: Gate) -> ItemChange:
    """Return the change of a gate whose instant has come."""
    rate = _rate(view, gate.tenant, gate.id)
    return ItemChange(before=gate, after=gate.opened(rate, now_ms=view.now_ms))


class Gates:
    """The gates of a tenant's queues while one claim is decided."""

    def __init__(self, view: View, tenant: str) -> None:
        self._view = view
        self._tenant = tenant
        self._now: dict[str, Gate] = {}

    def lets(self, task: Task) -> bool:
        """Return whether there are the tokens for a task; if not, its gate shuts until then."""
        queue = task.command.lower()
        rate = _rate(self._view, self._tenant, queue)
        if rate is None:
            return True
        gate = self._gate(queue)
        free_ms = rate.free_ms(gate.spent_us, cost_of(task))
        if free_ms <= self._view.now_ms:
            return True
        self._now[queue] = gate.shut(free_ms)
        return False

    def took(self, task: Task) -> bool:
        """Spend the tokens of a task that is taken; return whether there is one left."""
        queue = task.command.lower()
        rate = _rate(self._view, self._tenant, queue)
        if rate is None:
            return True
        spent = self._gate(queue).spent(rate, cost_of(task), now_ms=self._view.now_ms)
        self._now[queue] = spent
        return not spent.opens_ms

    def changes(self) -> Iterator[ItemChange]:
        """Yield the gates' changes."""
        for queue, gate in self._now.items():
            before = self._view.gates.get((self._tenant, queue))
            if gate != before:
                yield ItemChange(before=before, after=gate)

    def _gate(self, queue: str) -> Gate:
        found = self._now.get(queue) or self._view.gates.get((self._tenant, queue))
        return found or Gate(tenant=self._tenant, id=queue, spent_us=0)


def _rate(view: View, tenant: str, queue: str) -> Rate | None:
    flow = view.pins.get((tenant, queue))
    return flow.per_queue.rate if flow is not None and flow.per_queue is not None else None
