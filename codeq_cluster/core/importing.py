"""Importing: takes over a tenant's tasks and items from another cluster, as they were there.

A task comes whole or not at all: with its payload, its result, its idempotency key, its lease and
its outstanding callbacks. Tasks and items that exist here are left alone.
An interrupted import can therefore be run again, for as long as none of the imported tasks has been
deleted.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict, replace

from codeq_cluster.core.administering import PAUSES_MAX, TOPICS_MAX
from codeq_cluster.core.changes import Change, Decision, ItemChange, TaskChange
from codeq_cluster.core.fairness import WEIGHT_MAX
from codeq_cluster.core.items import (
    KIND_OF,
    TIER_MAX,
    TIERS_MAX,
    Item,
    ItemKind,
    Pause,
    Subscription,
    Topic,
)
from codeq_cluster.core.operations import Arrival, Import
from codeq_cluster.core.outcomes import Imported
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.subscribing import SUBSCRIPTIONS_MAX
from codeq_cluster.core.task import HISTORY_ATTEMPTS_MAX, PRIORITY_MAX, PRIORITY_MIN, State, Task
from codeq_cluster.core.view import View

# Arrivals of one operation: each is about as much work as a create, and no decision may delay the
# others for long.
ARRIVALS_MAX = 64

# The last millisecond of the year 9999; RFC 3339 has no later instant.
_NUMBER_MAX = 253_402_300_799_999
_SEQ_MAX = 2**63
_ITEMS_MAX = {
    ItemKind.TOPIC: TOPICS_MAX,
    ItemKind.PAUSE: PAUSES_MAX,
    ItemKind.SUBSCRIPTION: SUBSCRIPTIONS_MAX,
}


def take_over(view: View, operation: Import, rules: LifetimeRules) -> Decision:
    """Add what is missing here, within the budgets; the rest is left for the next time."""
    assert len(operation.tasks) + len(operation.items) <= ARRIVALS_MAX
    taking = _Taking(view, operation, rules)
    for item in operation.items:
        taking.item(item)
    for position, arrival in enumerate(operation.tasks):
        if taking.over(arrival.task):
            taking.left = len(operation.tasks) - position
            break
        taking.arrival(arrival)
    return Decision(taking.outcome(), () if operation.dry_run else tuple(taking.changes))


def fault(arrival: Arrival) -> str:
    """Return why no cluster can have this task; empty when one can."""
    task, result = arrival.task, arrival.result
    deliveries = [delivery for delivery, _ in arrival.deliveries]
    if not all(_fits(each) for each in (replace(task, seq=0), *task.history, *deliveries)):
        return "a number is out of range"
    if not PRIORITY_MIN <= task.priority <= PRIORITY_MAX or not 0 <= task.seq < _SEQ_MAX:
        return "a number is out of range"
    if len(task.history) > HISTORY_ATTEMPTS_MAX:
        return "its history is too long"
    if not task.state.terminal == task.has_result == (result is not None):
        return "its state and its result do not belong together"
    if not _has_what_its_state_needs(task):
        return f"it lacks what a task that is {task.state.name} has"
    own = f"{task.id}."
    if not all(each.task_id == task.id and each.id.startswith(own) for each in deliveries):
        return "a callback is another task's"
    return ""


def item_fault(item: Topic | Pause | Subscription) -> str:
    """Return why no cluster can have this item; empty when one can."""
    if not _fits(item):
        return "a number is out of range"
    if isinstance(item, Topic) and not 1 <= item.weight <= WEIGHT_MAX:
        return "its weight is out of range"
    if isinstance(item, Topic) and not _are_tiers(item.priority_tiers):
        return "its priorities are out of range"
    return ""


def _are_tiers(tiers: tuple[int, ...]) -> bool:
    return len(tiers) <= TIERS_MAX and all(0 <= tier <= TIER_MAX for tier in tiers)


def _fits(record: Struct) -> bool:
    """Return whether a broker could have written every number."""
    numbers = [value for value in asdict(record).values() if isinstance(value, int)]
    return all(0 <= number <= _NUMBER_MAX for number in numbers)


def _has_what_its_state_needs(task: Task) -> bool:
    match task.state:
        case State.READY:
            return task.seq > 0
        case State.DELAYED:
            return task.due_ms > 0
        case State.LEASED:
            return bool(task.lease_until_ms and task.lease_token and task.worker and task.claim)
        case State.DONE | State.FAILED:
            return task.retain_until_ms > 0 and not task.dead_queue
        case State.DEAD:
            kept = task.dead_queue and task.dead_queue == task.dead_queue.lower()
            return bool(task.retain_until_ms and kept)


class _Taking:
    """One operation's decision while it is made."""

    def __init__(self, view: View, operation: Import, rules: LifetimeRules) -> None:
        self._view = view
        self._operation = operation
        self._tenant = operation.tenant
        self._budget = rules.budget_of(operation.tenant)
        usage = view.usage(operation.tenant)
        self._waiting = usage.waiting
        self._bytes = usage.stored_bytes
        self._ids: set[str] = set()
        self._keys: set[str] = set()
        self._items: dict[ItemKind, int] = {}
        self.changes: list[Change] = []
        self.left = 0
        self._limit = ""
        self._imported = self._present = self._ended = self._forgotten = 0
        self._items_imported = self._items_present = 0
        self._keys_taken: list[str] = []
        self._keys_apart: list[str] = []
        self._ids_taken: list[str] = []
        self._items_refused: list[str] = []

    def outcome(self) -> Imported:
        return Imported(
            imported=self._imported,
            present=self._present,
            ended=self._ended,
            forgotten_keys=self._forgotten,
            keys_taken=tuple(self._keys_taken),
            keys_apart=tuple(self._keys_apart),
            ids_taken=tuple(self._ids_taken),
            left=self.left,
            limit=self._limit,
            items_imported=self._items_imported,
            items_present=self._items_present,
            items_refused=tuple(self._items_refused),
        )

    def over(self, task: Task) -> bool:
        """Return whether the tenant has no room for a missing task; notes which budget."""
        if self._view.task(task.id) is not None or task.id in self._ids:
            return False
        budget = self._budget
        waits = not task.state.terminal and task.state is not State.LEASED
        if budget.waiting_max and waits and self._waiting >= budget.waiting_max:
            self._limit = "readyTasks"
        elif budget.bytes_max and self._bytes + _size(task) > budget.bytes_max:
            self._limit = "storedBytes"
        return bool(self._limit)

    def arrival(self, arrival: Arrival) -> None:
        """Take over one task, unless it is here, expired, or its id or key is another task's."""
        task = arrival.task
        existing = self._view.task(task.id)
        if existing is not None or task.id in self._ids:
            if existing is not None and existing.tenant != self._tenant:
                self._ids_taken.append(task.id)
            else:
                self._present += 1
            return
        if task.state.terminal and task.retain_until_ms <= self._view.now_ms:
            self._ended += 1
            return
        refused_keys = self._refusing(task)
        if refused_keys is not None:
            if not self._operation.forget_keys:
                refused_keys.append(task.id)
                return
            task = replace(task, idempotency_key="")
            self._forgotten += 1
        self._ids.add(task.id)
        self._keys.add(task.idempotency_key)
        self._waiting += task.state in (State.READY, State.DELAYED)
        self._bytes += _size(task)
        self._imported += 1
        self._add(arrival, replace(task, tenant=self._tenant))

    def item(self, item: Topic | Pause | Subscription) -> None:
        """Take over a policy or a subscription, unless one of this name exists."""
        kind = KIND_OF[type(item)]
        if isinstance(item, Subscription) and item.expires_ms <= self._view.now_ms:
            return
        if self._view.item(kind, self._tenant, item.id) is not None:
            self._items_present += 1
            return
        most, more = _ITEMS_MAX[kind], self._items.get(kind, 0)
        if self._view.count_items(kind, self._tenant, most) + more >= most:
            self._items_refused.append(f"{kind.value}/{item.id}")
            return
        self._items[kind] = more + 1
        self._items_imported += 1
        self.changes.append(ItemChange(before=None, after=replace(item, tenant=self._tenant)))

    def _refusing(self, task: Task) -> list[str] | None:
        """Return the list for tasks whose keys are refused for this one's reason, or None."""
        key, shards = task.idempotency_key, self._operation.shards
        if not key:
            return None
        if shard_of(f"{self._tenant}/{key}", shards) != shard_of(task.id, shards):
            return self._keys_apart
        taken = key in self._keys or self._view.keyed(self._tenant, key) is not None
        return self._keys_taken if taken else None

    def _add(self, arrival: Arrival, task: Task) -> None:
        if task.state is State.READY:
            # Its place in the order is by the time since which it waits, and never a later one.
            task = replace(task, seq=min(task.seq, self._view.next_seq()))
        for delivery, body in arrival.deliveries:
            # A task with the id of a deleted one may find that one's delivery still here.
            left: Item | None = self._view.item(ItemKind.DELIVERY, self._tenant, delivery.id)
            after = replace(delivery, tenant=self._tenant)
            self.changes.append(ItemChange(before=left, after=after, body=body))
        if self._operation.callbacks_only:
            return
        self.changes.append(
            TaskChange(
                before=None,
                after=task,
                payload=arrival.payload,
                fingerprint=arrival.fingerprint if task.idempotency_key else "",
                result=arrival.result,
                imported=True,
            )
        )


def _size(task: Task) -> int:
    return task.payload_bytes + task.result_bytes
