"""Importing: takes over a tenant's tasks and items from another cluster, as they were there.

A task comes whole or not at all: with its payload, its result, its idempotency key, its lease and
its outstanding callbacks. Tasks and items that exist here are left alone.
An interrupted import can therefore be run again, for as long as none of the imported tasks has been
deleted.
"""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core import flowing, key_rules, spreading
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.changes import Change, Decision, ItemChange, TaskChange
from codeq_cluster.core.dependencies import arriving as arriving_row
from codeq_cluster.core.durable import Signal
from codeq_cluster.core.items import KIND_OF, Governing, Item, Subscription, Topic
from codeq_cluster.core.lane import KeyRule
from codeq_cluster.core.limit import SHARERS_MAX, Limit, scope_of_limit
from codeq_cluster.core.operations import Import
from codeq_cluster.core.outcomes import Imported
from codeq_cluster.core.placing import is_apart, once_name, without_keys
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import PAUSED_BY_IMPORT, Schedule, held_back
from codeq_cluster.core.scheduling import is_full, tallied
from codeq_cluster.core.sharding import shard_of_queue
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Role, State, Task
from codeq_cluster.core.transitions import released
from codeq_cluster.core.unique import scope_of, unique_of
from codeq_cluster.core.uniques import holder_of, with_role
from codeq_cluster.core.view import View

# Arrivals of one operation: each is about as much work as a create, and no decision may delay the
# others for long.
ARRIVALS_MAX = 64


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
    return Decision(taking.outcome(), () if operation.dry_run else taking.changes())


class _Taking:
    """One operation's decision while it is made."""

    def __init__(self, view: View, operation: Import, rules: LifetimeRules) -> None:
        self._view = view
        self._operation = operation
        self._tenant = operation.tenant
        self._rules = rules
        self._budget = rules.budget_of(operation.tenant)
        self._begun: set[str] = set()
        usage = view.usage(operation.tenant)
        self._waiting = usage.waiting
        self._bytes = usage.stored_bytes
        self._ids: set[str] = set()
        self._keys: set[str] = set()
        self._held: set[str] = set()  # Unique keys, by their scopes.
        self._next: set[str] = set()
        self._items: set[tuple[ItemKind, str]] = set()
        self._changes: list[Change] = []
        self.left = 0
        self._limit = ""
        self._imported = self._present = self._ended = self._forgotten = 0
        self._items_imported = self._items_present = 0
        self._keys_taken: list[str] = []
        self._keys_apart: list[str] = []
        self._items_refused: list[str] = []
        self._ruled = 0  # Topics and limits with rules.
        self._topics_apart: list[str] = []
        self._sharing: set[tuple[str, str]] = set()  # Scopes of limits, and queues.

    def changes(self) -> tuple[Change, ...]:
        """Return what the import changes."""
        changes = list(self._changes)
        for of, tally in ((ItemKind.SCHEDULE, tallied), (ItemKind.KEY_RULE, key_rules.tallied)):
            more = sum(kind is of for kind, _ in self._items)
            if more:
                changes.append(tally(self._view, self._tenant, more))
        return tuple(changes)

    def outcome(self) -> Imported:
        return Imported(
            imported=self._imported,
            present=self._present,
            ended=self._ended,
            forgotten_keys=self._forgotten,
            keys_taken=tuple(self._keys_taken),
            keys_apart=tuple(self._keys_apart),
            left=self.left,
            limit=self._limit,
            items_imported=self._items_imported,
            items_present=self._items_present,
            items_refused=tuple(self._items_refused),
            topics_apart=tuple(self._topics_apart),
        )

    def over(self, task: Task) -> bool:
        """Return whether the tenant has no room for a missing task; notes which budget."""
        if self._view.task(task.id) is not None or task.id in self._ids:
            return False
        budget = self._budget
        waits = not task.state.terminal and task.state is not State.LEASED
        if budget.waiting_max and waits and self._waiting >= budget.waiting_max:
            self._limit = "readyTasks"
        elif budget.bytes_max and self._bytes + task.stored_bytes > budget.bytes_max:
            self._limit = "storedBytes"
        elif self._begins(task) and not self._rules.allows_another_queue(
            self._view.most_queues(self._tenant) + len(self._begun)
        ):
            self._limit = "queuesMax"
        return bool(self._limit)

    def _begins(self, task: Task) -> bool:
        """Return whether the task would begin a queue."""
        queue = _queue(task)
        return queue not in self._begun and not self._view.has_queue(self._tenant, queue)

    def arrival(self, arrival: Arrival) -> None:
        """Take over one task, unless it is here, expired, or its key is another task's."""
        task = arrival.task
        # `task_ids.kept` leaves no id that can be another tenant's.
        if self._view.task(task.id) is not None or task.id in self._ids:
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
            task = without_keys(task)
            self._forgotten += 1
        self._ids.add(task.id)
        if self._begins(task):
            self._begun.add(_queue(task))
        self._keys.add(once_name(task))
        task = self._with_unique(task)
        self._waiting += task.state in (State.READY, State.DELAYED, State.HELD)
        self._bytes += task.stored_bytes
        self._imported += 1
        self._add(arrival, replace(task, tenant=self._tenant))

    def item(self, arrived: Governing) -> None:
        """Take over a policy or a subscription, unless one of this name exists."""
        item = _arriving(arrived, now_ms=self._view.now_ms)
        if item is None:
            return
        kind = KIND_OF[type(item)]
        name = kind, item.id
        if self._view.item(kind, self._tenant, item.id) is not None or name in self._items:
            self._items_present += 1
            return
        more = sum(each is kind for each, _ in self._items)
        if isinstance(item, KeyRule):
            full = key_rules.is_full(self._view, self._tenant, begun=more)
        elif isinstance(item, Schedule):
            item = replace(item, generation=self._view.next_seq())
            full = is_full(self._view, self._tenant, begun=more)
        else:
            most = item.count_max
            full = self._view.count_items(kind, self._tenant, most) + more >= most
        if full or self._rules_full(item):
            self._items_refused.append(f"{kind.value}/{item.id}")
            return
        if isinstance(item, Topic):
            item = self._placed(item)
            if item.limit and not self._may_share(item):
                self._topics_apart.append(f"{item.id}@{item.limit}")
                return
        self._items.add(name)
        self._items_imported += 1
        own = replace(item, tenant=self._tenant)
        if isinstance(own, Topic | Limit):
            # The other cluster's number says nothing here.
            own = replace(own, rule_seq=self._view.next_seq() if own.rule_seq else 0)
            self._ruled += bool(own.rule_seq)
            self._changes += flowing.arrived(self._view, own, self._operation.shards)
        self._changes.append(ItemChange(before=None, after=own))
        if isinstance(own, KeyRule):
            self._changes.append(key_rules.follows(self._view, own))

    def _rules_full(self, item: Governing) -> bool:
        """Return whether a topic or a limit has rules, and the tenant may have no more of them."""
        if not isinstance(item, Topic | Limit) or not item.rule_seq:
            return False
        scope = item.id if isinstance(item, Topic) else scope_of_limit(item.id)
        return spreading.is_full(self._view, self._tenant, scope, begun=self._ruled)

    def _placed(self, topic: Topic) -> Topic:
        """Return a topic whose queue keeps the place that it has here: a pin never ends."""
        here = self._view.flow(self._tenant, topic.id)
        return topic if here is None or not here.pinned else replace(topic, pinned=here.pinned)

    def _may_share(self, topic: Topic) -> bool:
        """Return whether a queue may share the limit that its topic names; if so, it does.

        The limit is here, on the shard of the queue, and has room for it. A dry run changes
        nothing, so the limits of its earlier operations are not here: it leaves that to the import.
        """
        limit, scope = topic.limit, scope_of_limit(topic.limit)
        is_here = (ItemKind.LIMIT, limit) in self._items
        is_here |= self._view.item(ItemKind.LIMIT, self._tenant, limit) is not None
        is_here |= self._operation.dry_run and f"limit/{limit}" not in self._items_refused
        pins = (topic.pinned, scope)
        places = {shard_of_queue(self._tenant, pin, self._operation.shards) for pin in pins}
        queues = set(self._view.sharers.get((self._tenant, scope), ()))
        queues |= {queue for of, queue in self._sharing if of == scope}
        may = is_here and len(places) == 1 and len(queues - {topic.id}) < SHARERS_MAX
        if may:
            self._sharing.add((scope, topic.id))
        return may

    def _refusing(self, task: Task) -> list[str] | None:
        """Return the list for tasks whose keys are refused for this one's reason, or None."""
        if is_apart(replace(task, tenant=self._tenant), self._operation.shards):
            return self._keys_apart
        key = once_name(task)
        taken = bool(key) and (key in self._keys or self._view.keyed(self._tenant, key) is not None)
        return self._keys_taken if taken or self._holds_taken(task) else None

    def _holds_taken(self, task: Task) -> bool:
        """Return whether another task has the place of its unique key that this one had there."""
        unique = unique_of(task)
        if unique is None or unique.role is Role.FREE:
            return False
        scope = scope_of(task)
        row = holder_of(self._view, self._tenant, scope)
        held = scope in self._held or row is not None
        if unique.role is Role.HOLDER:
            return held
        following = scope in self._next or (row is not None and bool(row.next_id))
        return held and following

    def _add(self, arrival: Arrival, task: Task) -> None:
        task = self._with_checkpoint(arrival, self._with_dependencies(arrival, task))
        task = self._with_beside(arrival, task)
        if task.state is State.HELD and not task.waits_for_others:
            task = replace(task, state=State.READY)  # Its key may be free here.
        if task.state is State.READY:
            # Its place in the order is by the time since which it waits, and never a later one.
            task = replace(task, seq=min(task.seq, self._view.next_seq()))
        for delivery, body in arrival.deliveries:
            # A task with the id of a deleted one may find that one's delivery still here.
            left: Item | None = self._view.item(ItemKind.DELIVERY, self._tenant, delivery.id)
            after = replace(delivery, tenant=self._tenant)
            self._changes.append(ItemChange(before=left, after=after, body=body))
        if self._operation.callbacks_only:
            return
        self._changes.append(
            TaskChange(
                before=None,
                after=task,
                payload=arrival.payload,
                fingerprint=arrival.fingerprint if task.idempotency_key else "",
                result=arrival.result,
                imported=True,
            )
        )

    def _with_unique(self, task: Task) -> Task:
        """Note who has which place of a unique key; one that was next may find the key free."""
        unique = unique_of(task)
        if unique is None or unique.role is Role.FREE:
            return task
        scope, now_ms = scope_of(task), self._view.now_ms
        held = scope in self._held or holder_of(self._view, self._tenant, scope) is not None
        if unique.role is Role.NEXT and held:
            self._next.add(scope)
            return task
        self._held.add(scope)
        if unique.role is Role.HOLDER:
            return task
        seq = min(task.seq, self._view.next_seq())
        task = released(task, start_ms=unique.start_ms, seq=seq, now_ms=now_ms)
        return with_role(task, unique, Role.HOLDER, now_ms=now_ms)

    def _with_beside(self, arrival: Arrival, task: Task) -> Task:
        """Take over what its function has recorded, the signals to it, and its log."""
        if not arrival.beside or self._operation.callbacks_only:
            return task
        for row in sorted(
            arrival.beside, key=lambda row: row.seq if isinstance(row, Signal) else 0
        ):
            own = replace(row, tenant=self._tenant)
            if isinstance(own, Signal):
                # They stay in order, and before those to come.
                own = replace(own, seq=min(own.seq, self._view.next_seq()))
            self._changes.append(ItemChange(before=None, after=own))
        return task

    def _with_checkpoint(self, arrival: Arrival, task: Task) -> Task:
        row, more = arrival.checkpoint, task.more
        if more is None or row is None:
            return task if more is None else replace(task, more=replace(more, checkpoint_bytes=0))
        if not self._operation.callbacks_only:
            row = replace(row, tenant=self._tenant)
            self._changes.append(ItemChange(before=None, after=row))
        return task

    def _with_dependencies(self, arrival: Arrival, task: Task) -> Task:
        """Take over what a task waits for; edges to it are made again as others ask for it."""
        more, row = task.more, arrival.dependencies
        if more is None:
            return task
        if not self._operation.callbacks_only and row is not None:
            now_ms = self._view.now_ms
            arrived = arriving_row(row, tenant=self._tenant, now_ms=now_ms)
            rows: list[Item] = [arrived]
            rows += [replace(each, tenant=self._tenant) for each in arrival.inputs]
            self._changes += [ItemChange(before=None, after=each) for each in rows]
        more = replace(more, dependents=0, depends=row is not None)
        if row is None:
            more = replace(more, waits=more.waits and more.unique is not None, input_bytes=0)
        return replace(task, more=more)


def _arriving(item: Governing, *, now_ms: int) -> Governing | None:
    """Return an item of an import as it is to stand here; None if its time is over."""
    if isinstance(item, Schedule):
        # Its runs are the other cluster's.
        alone = replace(item, open=(), queued=(), recent=(), backfill=None, request="")
        return held_back(alone, by=PAUSED_BY_IMPORT, now_ms=now_ms)
    if not isinstance(item, Subscription):
        return item
    if item.expires_ms <= now_ms:
        return None
    # The other cluster's clock may be ahead, but nobody can ask for a longer life.
    return replace(item, expires_ms=min(item.expires_ms, now_ms + item.ttl_ms))


def _queue(task: Task) -> str:
    """Return the queue that counts the task."""
    return task.dead_queue or task.command.lower()
