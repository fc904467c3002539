"""Gating: which tasks a claim may take by the limit of their queue, and by one that it shares."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.explaining import SharedLimit
from codeq_cluster.core.gate import Gate, PerQueue
from codeq_cluster.core.lane import Flow, FlowRule, cost_of
from codeq_cluster.core.limit import is_limits, scope_of_limit
from codeq_cluster.core.task import Task
from codeq_cluster.core.view import View


def room(view: View, tenant: str, queue: str, wanted: int) -> int:
    """Return how many of the wanted tasks of a queue its limits let a claim take now.

    The tokens of a rate say so only when there is none; with some, they are asked for each task.
    """
    for scope, rule in _rules(view, tenant, queue):
        gate = view.gates.get((tenant, scope))
        if gate is not None and gate.shut_until_ms > view.now_ms:
            return 0
        if rule.max_running:
            wanted = min(wanted, rule.max_running - running(view, tenant, scope))
    return max(0, wanted)


def running(view: View, tenant: str, scope: str) -> int:
    """Return how many tasks of a queue, or of the queues that share a limit, are in progress."""
    return (view.leased_together if is_limits(scope) else view.leased)(tenant, scope)


def changed(view: View, flow: Flow) -> Iterator[ItemChange]:
    """Yield what opens the gate of a queue or a limit because its rule changes.

    The end of the rule ends a hold, too.
    """
    gate, rule = view.gates.get((flow.tenant, flow.id)), flow.per_queue
    if gate is not None:
        after = gate.opened(rule.rate, now_ms=view.now_ms) if rule is not None else None
        yield ItemChange(before=gate, after=after)


def in_force(view: View, rule: FlowRule) -> list[ItemChange]:
    """Return the changes by which rules are in force here, unless they or newer ones are.

    The lanes that exist then follow it in steps, by time.
    """
    found = view.flow(rule.tenant, rule.queue)
    if rule.seq <= (found.seq if found is not None else 0):
        return []
    after = Flow(
        tenant=rule.tenant,
        id=rule.queue,
        seq=rule.seq,
        per_key=rule.per_key,
        expires_ms=0 if is_limits(rule.queue) and rule.per_queue else view.now_ms,
        per_queue=rule.per_queue,
        pinned=(found.pinned if found is not None else "") or rule.pinned,
        limit=rule.limit,
    )
    return [ItemChange(before=found, after=after), *changed(view, after)]


def queue_held(view: View, task: Task, until_ms: int) -> ItemChange | None:
    """Return the change by which nothing of a task's queue goes until then.

    None if the queue has no limit of its own, or the task is from before it had one: then its log
    does not decide about the queue.
    """
    return _held(view, task, task.command.lower(), until_ms)


def limit_held(view: View, task: Task, until_ms: int) -> ItemChange | None:
    """Return the change by which nothing of the limit goes that a task's queue shares; or None."""
    return _held(view, task, _limit_of(view, task), until_ms)


def sharers(view: View, task: Task) -> AbstractSet[str]:
    """Return the queues that share the limit of a task's queue; at least that queue."""
    shared = view.sharers.get((task.tenant, _limit_of(view, task)), frozenset())
    return {task.command.lower(), *shared}


def shared_limit(view: View, tenant: str, queue: str) -> SharedLimit | None:
    """Return the limit that a queue shares with others, as it is now."""
    flow = view.flow(tenant, queue)
    if flow is None or not flow.limit:
        return None
    scope = scope_of_limit(flow.limit)
    shared, gate = view.flow(tenant, scope), view.gates.get((tenant, scope))
    rule = shared.per_queue if shared is not None else None
    return SharedLimit(
        name=flow.limit,
        running=running(view, tenant, scope),
        running_max=rule.max_running if rule is not None else 0,
        held_until_ms=gate.held_until_ms if gate is not None else 0,
        limited_until_ms=gate.opens_ms if gate is not None else 0,
    )


def elapsed(view: View, gate: Gate) -> ItemChange:
    """Return the change of a gate whose instant has come."""
    flow = view.flow(gate.tenant, gate.id)
    rule = flow.per_queue if flow is not None else None
    rate = rule.rate if rule is not None else None
    return ItemChange(before=gate, after=gate.opened(rate, now_ms=view.now_ms))


class Gates:
    """The gates of a tenant's queues and limits while one claim is decided."""

    def __init__(self, view: View, tenant: str) -> None:
        self._view = view
        self._tenant = tenant
        self._now: dict[str, Gate] = {}
        self._left: dict[str, int] = {}  # By limit, how many tasks more may be in progress.

    def lets(self, task: Task) -> bool:
        """Return whether there are the tokens for a task; if not, its gate shuts until then.

        Queues that share a limit share what it has left for this claim, too.
        """
        now_ms = self._view.now_ms
        for scope, rule in _rules(self._view, self._tenant, task.command.lower()):
            if is_limits(scope) and rule.max_running and self._room(scope, rule) < 1:
                return False
            if rule.rate is None:
                continue
            gate = self._gate(scope)
            if gate.opens_ms > now_ms:
                return False  # This claim has shut it for a task whose turn was before.
            free_ms = rule.rate.free_ms(gate.spent_us, cost_of(task))
            if free_ms > now_ms:
                self._now[scope] = gate.shut(free_ms)
                return False
        return True

    def took(self, task: Task) -> bool:
        """Spend the tokens of a task that is taken; return whether there is one left."""
        is_open = True
        for scope, rule in _rules(self._view, self._tenant, task.command.lower()):
            if is_limits(scope) and rule.max_running:
                self._left[scope] = self._room(scope, rule) - 1
            if rule.rate is not None:
                gate = self._gate(scope)
                spent = gate.spent(rule.rate, cost_of(task), now_ms=self._view.now_ms)
                self._now[scope] = spent
                is_open = is_open and not spent.opens_ms
        return is_open

    def changes(self) -> Iterator[ItemChange]:
        """Yield the gates' changes."""
        for scope, gate in self._now.items():
            before = self._view.gates.get((self._tenant, scope))
            if gate != before:
                yield ItemChange(before=before, after=gate)

    def _room(self, scope: str, rule: PerQueue) -> int:
        if scope not in self._left:
            self._left[scope] = rule.max_running - running(self._view, self._tenant, scope)
        return self._left[scope]

    def _gate(self, scope: str) -> Gate:
        found = self._now.get(scope) or self._view.gates.get((self._tenant, scope))
        return found or Gate(tenant=self._tenant, id=scope, spent_us=0)


def _rules(view: View, tenant: str, queue: str) -> Iterator[tuple[str, PerQueue]]:
    """Yield the scopes in which a queue's tasks are counted, its own first, with their rules."""
    # No other queue has such a rule, and this asks nothing of the store.
    flow = view.flow(tenant, queue) if (tenant, queue) in view.pins else None
    if flow is None:
        return
    if flow.per_queue is not None:
        yield queue, flow.per_queue
    if flow.limit:
        scope = scope_of_limit(flow.limit)
        shared = view.flow(tenant, scope)
        if shared is not None and shared.per_queue is not None:
            yield scope, shared.per_queue


def _limit_of(view: View, task: Task) -> str:
    """Return the scope of the limit that a task's queue shares, or ""."""
    flow = view.flow(task.tenant, task.command.lower())
    return scope_of_limit(flow.limit) if flow is not None and flow.limit else ""


def _held(view: View, task: Task, scope: str, until_ms: int) -> ItemChange | None:
    place = task.tenant, task.command.lower()
    has_rule = any(each == scope for each, _ in _rules(view, *place))
    is_here = task.more is not None and task.more.pinned == view.pins.get(place)
    if not has_rule or not is_here:
        return None
    before = view.gates.get((task.tenant, scope))
    gate = before or Gate(tenant=task.tenant, id=scope, spent_us=0)
    return ItemChange(before=before, after=gate.held(until_ms))
