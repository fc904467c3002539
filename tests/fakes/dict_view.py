"""DictView: a shard's state in dictionaries, the plainest `View` there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import assert_never

from codeq_cluster.core.budget import Usage
from codeq_cluster.core.bulk import BulkJob
from codeq_cluster.core.changes import Change, ItemChange, TaskChange
from codeq_cluster.core.fairness import Turns
from codeq_cluster.core.gate import Gate
from codeq_cluster.core.groups import Member, member_id
from codeq_cluster.core.items import KIND_OF, Item, Policy, Topic
from codeq_cluster.core.lane import Flow, Lane, lane_of
from codeq_cluster.core.limit import scope_of_limit
from codeq_cluster.core.placing import once_name
from codeq_cluster.core.selecting import TaskFilter, tags_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import PRIORITY_MAX, Result, State, Task
from codeq_cluster.core.turn_order import TurnOrder
from codeq_cluster.core.view import KeyRow


class DictView:
    """Every answer searches all tasks, so that nothing derived can be stale.

    Attributes:
        now_ms: Set by the caller that advances time.
        draw: The leader's random number, in [0, 1).
        tasks: By id.
        items: By kind, tenant and id.
        bodies: The body of each delivery, by tenant and id.
    """

    def __init__(self, *, now_ms: int = 1, draw: float = 0.5, seq: int = 0) -> None:
        self.now_ms = now_ms
        self.draw = draw
        self.tasks: dict[str, Task] = {}
        self.items: dict[tuple[ItemKind, str, str], Item] = {}
        self.bodies: dict[tuple[str, str], Result] = {}
        self._turns: dict[str, Turns] = {}
        self._payloads: dict[str, str] = {}
        self._results: dict[str, Result] = {}
        self._keys: dict[tuple[str, str], KeyRow] = {}
        self._seq = seq

    def advance(self, changes: Sequence[Change]) -> None:
        """Apply a decision's changes; the next decision sees them."""
        for change in changes:
            if isinstance(change, ItemChange):
                self._change_item(change)
                continue
            if change.before is not None:
                assert self.tasks[change.before.id] == change.before
            if change.after is not None:
                self._keep(change.after, change)
            elif change.before is not None:
                self._forget(change.before)

    def task(self, task_id: str) -> Task | None:
        """Return the task, or None."""
        return self.tasks.get(task_id)

    def readable(self, task_id: str) -> Task | None:
        """Return the task; every one can be read."""
        return self.tasks[task_id]

    def payload(self, task_id: str) -> str:
        """Return the JSON text of a task that exists."""
        return self._payloads[task_id]

    def result(self, task_id: str) -> Result | None:
        """Return how the task ended, or None."""
        return self._results.get(task_id)

    def keyed(self, tenant: str, key: str) -> KeyRow | None:
        """Return the value stored under the idempotency key, or None."""
        return self._keys.get((tenant, key))

    def item(self, kind: ItemKind, tenant: str, item_id: str) -> Item | None:
        """Return the item, or None."""
        return self.items.get((kind, tenant, item_id))

    def count_items(self, kind: ItemKind, tenant: str, most: int) -> int:
        """Return how many items of a kind the tenant has, counting up to `most`."""
        return min(most, sum(name[:2] == (kind, tenant) for name in self.items))

    def members(self, tenant: str, group: str, *, after: str) -> Iterator[Member]:
        """Yield the members of a group by name, from the one after `after`."""
        found = [
            item
            for item in self.items.values()
            if isinstance(item, Member)
            and (item.tenant, item.group) == (tenant, group)
            and item.id > member_id(group, after)
        ]
        yield from sorted(found, key=lambda item: item.id)

    def beside(
        self, kind: ItemKind, tenant: str, task_id: str, *, after: str = ""
    ) -> Iterator[Item]:
        """Yield the items of a kind that stand beside a task."""
        names = sorted(name for name in self.items if name[:2] == (kind, tenant))
        rest = {name: name[2].removeprefix(f"{task_id}.") for name in names}
        found = [name for name in names if rest[name] != name[2] and rest[name] > after]
        yield from [self.items[name] for name in found]

    def bulk_jobs(self, tenant: str) -> Iterator[BulkJob]:
        """Yield the tenant's bulk jobs."""
        names = sorted(name for name in self.items if name[:2] == (ItemKind.BULK, tenant))
        return iter([item for name in names if isinstance(item := self.items[name], BulkJob)])

    def walk(
        self, tenant: str, tags: Sequence[tuple[str, str]], *, only: TaskFilter, after: bytes
    ) -> Iterator[tuple[bytes, str]]:
        """Yield (position, task id): by id, or with tags by the time of creation, newest first."""
        found = {task.id.encode(): task for task in self.tasks.values()}
        if tags:
            before_ms = only.created_before_ms or self.now_ms + 1
            found = {
                b"%020d/%b" % (10**20 - 1 - task.created_ms, task.id.encode()): task
                for task in self.tasks.values()
                if task.tenant == tenant
                and set(tags) <= set(tags_of(task))
                and only.created_from_ms <= task.created_ms < before_ms
            }
        yield from [(each, found[each].id) for each in sorted(found) if each > after]

    def policy(self, tenant: str, queue: str) -> Policy:
        """Return the policy of the queue."""
        topic = self.items.get((ItemKind.TOPIC, tenant, queue))
        assert topic is None or isinstance(topic, Topic)
        return Policy(topic, (ItemKind.PAUSE, tenant, queue) in self.items)

    def leased_together(self, tenant: str, scope: str) -> int:
        """Return how many tasks of the queues that share a limit are leased."""
        return sum(self.leased(tenant, queue) for queue in self.sharers.get((tenant, scope), ()))

    def leased(self, tenant: str, queue: str) -> int:
        """Return how many tasks of the queue are leased."""
        return sum(
            task.tenant == tenant and task.command.lower() == queue and task.state is State.LEASED
            for task in self.tasks.values()
        )

    def usage(self, tenant: str) -> Usage:
        """Return the tenant's usage."""
        own = [task for task in self.tasks.values() if task.tenant == tenant]
        return Usage(
            sum(task.state in (State.READY, State.DELAYED, State.HELD) for task in own),
            sum(task.state is State.LEASED for task in own),
            sum(task.stored_bytes for task in own),
        )

    def has_queue(self, tenant: str, queue: str) -> bool:
        """Return whether the queue has any tasks."""
        return queue in self._counted_queues(tenant)

    def most_queues(self, tenant: str) -> int:
        """Return how many queues the tenant has."""
        return len(self._counted_queues(tenant))

    def turns(self, tenant: str) -> Turns:
        """Return the state of the fair turns among the tenant's queues."""
        return self._turns.setdefault(tenant, Turns())

    def lapsed(self, count: int) -> tuple[Item, ...]:
        """Return at most `count` items that have ended, oldest first."""
        ended = [item for item in self.items.values() if 0 < item.end_ms <= self.now_ms]
        ended.sort(key=lambda item: (item.end_ms, KIND_OF[type(item)], item.tenant, item.id))
        return tuple(ended[:count])

    def order(self, tenant: str) -> TurnOrder:
        """Return the order in which the tenant's queues are served."""
        queues = self.queues(tenant)
        order = TurnOrder(self.turns(tenant), queues, partial(self._priority, tenant))
        for queue in queues:
            order.put(queue, PRIORITY_MAX)
        return order

    def queues(self, tenant: str) -> set[str]:
        """Return the tenant's queues that have ready tasks."""
        return {
            task.command.lower()
            for task in self.tasks.values()
            if task.tenant == tenant and task.state is State.READY
        }

    def ready(self, tenant: str, queue: str) -> Iterator[tuple[int, int, str]]:
        """Yield (priority, seq, task id) of one queue in claim order."""
        found = [
            (task.priority, task.seq, task.id)
            for task in self.tasks.values()
            if task.tenant == tenant and task.command.lower() == queue and task.state is State.READY
        ]
        return iter(sorted(found, key=lambda row: (-row[0], row[1])))

    def first_ready(self, tenant: str, queue: str, priority: int) -> int:
        """Return the seq of the first ready task of a queue with this priority; 0 for none."""
        return next((seq for of, seq, _ in self.ready(tenant, queue) if of == priority), 0)

    def held(self, lane: Lane, *, priority: int = PRIORITY_MAX) -> Iterator[str]:
        """Yield the ids of the HELD tasks of a lane in order, from a priority downwards."""
        return iter([each.id for each in self._of(lane, State.HELD) if each.priority <= priority])

    def ready_of(self, lane: Lane) -> Iterator[str]:
        """Yield the ids of the READY tasks of a lane, the highest priority first."""
        return iter([each.id for each in self._of(lane, State.READY)])

    def lanes(self, tenant: str, queue: str, *, after: str) -> Iterator[Lane]:
        """Yield the lanes of a queue by name, from the one after `after`."""
        found = [
            item
            for item in self.items.values()
            if isinstance(item, Lane) and (item.tenant, item.queue) == (tenant, queue)
        ]
        return iter(sorted((each for each in found if each.name > after), key=lambda it: it.name))

    def claimed_under(self, request: str) -> tuple[str, ...]:
        """Return the ids of the tasks leased under a claim request now."""
        return tuple(
            task.id
            for task in self.tasks.values()
            if task.state is State.LEASED and task.claim == request
        )

    @property
    def asides(self) -> set[tuple[str, str]]:
        """Return the tenant and the id of everything set aside."""
        return {(tenant, name) for kind, tenant, name in self.items if kind is ItemKind.ASIDE}

    def flow(self, tenant: str, queue: str) -> Flow | None:
        """Return the rules of a queue and its keys in force on this shard, or None."""
        found = self.item(ItemKind.FLOW, tenant, queue)
        assert found is None or isinstance(found, Flow)
        return found

    @property
    def pins(self) -> dict[tuple[str, str], str]:
        """Return what places each queue that is pinned."""
        return {(flow.tenant, flow.id): flow.pinned for flow in self._flows() if flow.pinned}

    @property
    def ruled(self) -> dict[str, set[str]]:
        """Return the queues and the limits that have rules or had some, by tenant."""
        found: dict[str, set[str]] = {}
        for flow in self._flows():
            found.setdefault(flow.tenant, set()).add(flow.id)
        return found

    @property
    def sharers(self) -> dict[tuple[str, str], set[str]]:
        """Return the queues that share each limit."""
        found: dict[tuple[str, str], set[str]] = {}
        for flow in self._flows():
            if flow.limit:
                found.setdefault((flow.tenant, scope_of_limit(flow.limit)), set()).add(flow.id)
        return found

    def _flows(self) -> Iterator[Flow]:
        return (each for each in self.items.values() if isinstance(each, Flow))

    @property
    def gates(self) -> dict[tuple[str, str], Gate]:
        """Return the gate of each queue or limit that has one."""
        gates = (each for each in self.items.values() if isinstance(each, Gate))
        return {(each.tenant, each.id): each for each in gates}

    def due(self, count: int, *, leases_too: bool) -> tuple[str, ...]:
        """Return at most `count` ids of tasks whose timer is due, oldest first."""
        found = [
            (timer_ms, task.id)
            for task in self.tasks.values()
            if (leases_too or task.state is not State.LEASED)
            and 0 < (timer_ms := _timer_ms(task)) <= self.now_ms
        ]
        return tuple(task_id for _, task_id in sorted(found)[:count])

    def next_seq(self) -> int:
        """Draw the next number of the ready order."""
        self._seq += 1
        return self._seq

    def fraction(self) -> float:
        """Return `draw`."""
        return self.draw

    def _priority(self, tenant: str, queue: str) -> int | None:
        return next((priority for priority, _, _ in self.ready(tenant, queue)), None)

    def _of(self, lane: Lane, state: State) -> list[Task]:
        """Return the tasks of a lane in a state, in the order of their ranks."""
        own = [
            task
            for task in self.tasks.values()
            if task.state is state
            and lane_of(task) == lane.key
            and not task.waits_for_others
            and (task.tenant, task.command.lower()) == (lane.tenant, lane.queue)
        ]
        return sorted(own, key=lambda task: (-task.priority, task.seq, task.id))

    def _change_item(self, change: ItemChange) -> None:
        for item, keep in ((change.before, False), (change.after, True)):
            if item is None:
                continue
            name = KIND_OF[type(item)], item.tenant, item.id
            if keep:
                assert (name in self.items) == (change.before is not None)
                self.items[name] = item
                if change.body is not None:
                    self.bodies[item.tenant, item.id] = change.body
            else:
                assert self.items[name] == item
                if change.after is None:
                    del self.items[name]
                    self.bodies.pop((item.tenant, item.id), None)

    def _forget(self, task: Task) -> None:
        del self.tasks[task.id]
        del self._payloads[task.id]
        self._results.pop(task.id, None)
        if task.idempotency_key:
            del self._keys[task.tenant, once_name(task)]

    def _counted_queues(self, tenant: str) -> set[str]:
        own = (task for task in self.tasks.values() if task.tenant == tenant)
        return {task.dead_queue or task.command.lower() for task in own}

    def _keep(self, task: Task, change: TaskChange) -> None:
        self.tasks[task.id] = task
        if change.payload is not None:
            self._payloads[task.id] = change.payload
            if task.idempotency_key and change.before is None:
                row = KeyRow(task.id, change.fingerprint)
                self._keys[task.tenant, once_name(task)] = row
        if change.result is not None:
            self._results[task.id] = change.result
        if not task.has_result:
            self._results.pop(task.id, None)


def _timer_ms(task: Task) -> int:
    """Return when the task's next timer is due; 0 for never."""
    match task.state:
        case State.READY | State.HELD:
            return task.expires_ms
        case State.DELAYED:
            return min(task.due_ms, task.expires_ms or task.due_ms)
        case State.LEASED:
            return task.lease_until_ms
        case State.DONE | State.FAILED | State.DEAD:
            return task.retain_until_ms
        case _:
            assert_never(task.state)
