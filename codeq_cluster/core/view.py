"""View: the state that a decision reads, declared by the core and provided by the broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from msgspec import Struct

from codeq_cluster.core.budget import Usage
from codeq_cluster.core.bulk import BulkJob
from codeq_cluster.core.fairness import Turns
from codeq_cluster.core.gate import Gate
from codeq_cluster.core.groups import Member
from codeq_cluster.core.items import Item, Policy
from codeq_cluster.core.lane import Flow, Lane
from codeq_cluster.core.selecting import TaskFilter
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import PRIORITY_MAX, Result, Task
from codeq_cluster.core.turn_order import TurnOrder


class KeyRow(Struct, frozen=True, array_like=True):
    """The row of an idempotency key."""

    task_id: str
    fingerprint: str


class View(Protocol):
    """One shard's state, including changes decided and not yet committed.

    Attributes:
        now_ms: The decision's instant: Unix milliseconds, never smaller than an earlier decision's.
    """

    now_ms: int

    @property
    def asides(self) -> AbstractSet[tuple[str, str]]:
        """Return the tenant and the id of every `Aside` of the shard."""

    @property
    def pins(self) -> Mapping[tuple[str, str], str]:
        """Return the `Flow.pinned` of each queue, by tenant, that is pinned."""

    @property
    def ruled(self) -> Mapping[str, AbstractSet[str]]:
        """Return the queues and the limits that have a `Flow`, by tenant."""

    @property
    def sharers(self) -> Mapping[tuple[str, str], AbstractSet[str]]:
        """Return the queues that share each limit, by tenant and scope."""

    @property
    def gates(self) -> Mapping[tuple[str, str], Gate]:
        """Return the `Gate` of each queue or limit that has one, by tenant and scope."""

    def flow(self, tenant: str, queue: str) -> Flow | None:
        """Return the rules of a queue and its keys, or of a limit, in force here, or None."""

    def task(self, task_id: str) -> Task | None:
        """Return the task, or None."""

    def readable(self, task_id: str) -> Task | None:
        """Return a task that exists, or None if its record cannot be read."""

    def payload(self, task_id: str) -> str:
        """Return the JSON text of a task that exists."""

    def result(self, task_id: str) -> Result | None:
        """Return the task's result, or None."""

    def keyed(self, tenant: str, key: str) -> KeyRow | None:
        """Return the row of the idempotency key, or None."""

    def queues(self, tenant: str) -> AbstractSet[str]:
        """Return the tenant's queues (commands in lower case) that have ready tasks."""

    def order(self, tenant: str) -> TurnOrder:
        """Return the order in which the tenant's queues are served; the view owns it."""

    def ready(self, tenant: str, queue: str) -> Iterator[tuple[int, int, str]]:
        """Yield (priority, seq, task id) of one queue in claim order: priority 9 first, then seq.

        The view must not change while the iterator is in use.
        """

    def first_ready(self, tenant: str, queue: str, priority: int) -> int:
        """Return the seq of the first ready task of a queue with this priority; 0 for none."""

    def item(self, kind: ItemKind, tenant: str, item_id: str) -> Item | None:
        """Return the item of this shard, or None."""

    def count_items(self, kind: ItemKind, tenant: str, most: int) -> int:
        """Return how many items of a kind the tenant has on this shard, counted up to `most`."""

    def members(self, tenant: str, group: str, *, after: str) -> Iterator[Member]:
        """Yield the members of a group by name, from the one after `after`."""

    def beside(
        self, kind: ItemKind, tenant: str, task_id: str, *, after: str = ""
    ) -> Iterator[Item]:
        """Yield the items of a kind that stand beside a task: their ids are `<task>.<rest>`.

        Args:
            kind: Whose ids begin so.
            after: Only those whose rest is greater.
        """

    def bulk_jobs(self, tenant: str) -> Iterator[BulkJob]:
        """Yield the tenant's bulk jobs of this shard, those that have ended included."""

    def walk(
        self, tenant: str, tags: Sequence[tuple[str, str]], *, only: TaskFilter, after: bytes
    ) -> Iterator[tuple[bytes, str]]:
        """Yield steps (position, task id) in an order that no change of a task moves.

        A step that only passes rows over has no id.

        Args:
            tags: Only tasks with all of them, the newest first; none for the tasks of all tenants.
            only: Its instants of creation bound a walk by tags.
            after: Position after which to begin; empty for the start.
        """

    def policy(self, tenant: str, queue: str) -> Policy:
        """Return the queue's policy, wherever it is kept; another shard's may be out of date."""

    def leased(self, tenant: str, queue: str) -> int:
        """Return how many tasks of the queue are leased on all shards; as exact as `Usage`."""

    def usage(self, tenant: str) -> Usage:
        """Return the tenant's usage on all shards."""

    def leased_together(self, tenant: str, scope: str) -> int:
        """Return the number of leased tasks of all queues that share a limit, as `leased`."""

    def has_queue(self, tenant: str, queue: str) -> bool:
        """Return whether the queue has any tasks, ended ones included, on any shard."""

    def most_queues(self, tenant: str) -> int:
        """Return how many queues the tenant has on the shard where it has most of them."""

    def turns(self, tenant: str) -> Turns:
        """Return the turns of the tenant's queues; the view owns them."""

    def lapsed(self, count: int) -> tuple[Item, ...]:
        """Return at most `count` items whose end is at or before `now_ms`, oldest first."""

    def held(self, lane: Lane, *, priority: int = PRIORITY_MAX) -> Iterator[str]:
        """Yield the ids of the HELD tasks of a lane in order, from a priority downwards."""

    def ready_of(self, lane: Lane) -> Iterator[str]:
        """Yield the ids of the READY tasks of a lane, the highest priority first."""

    def lanes(self, tenant: str, queue: str, *, after: str) -> Iterator[Lane]:
        """Yield the lanes of a queue by name, from the one after `after`."""

    def claimed_under(self, request: str) -> tuple[str, ...]:
        """Return the ids of the tasks leased under a claim request now."""

    def due(self, count: int, *, leases_too: bool) -> tuple[str, ...]:
        """Return at most `count` ids of tasks whose timer is at or before `now_ms`, oldest first.

        Args:
            count: Bound of the work.
            leases_too: False leaves leases alone, in a new leader's grace period.
        """

    def next_seq(self) -> int:
        """Return the next number of the shard's ready order; it grows and never repeats."""

    def fraction(self) -> float:
        """Return a random number in [0, 1), drawn by the leader, for jitter."""
