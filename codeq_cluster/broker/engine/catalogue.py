"""Catalogue: one node's knowledge of every shard: policies, subscriptions and counts.

Every node applies every shard's entries. So the leaders of other shards need no messages to learn a
queue's policy: they read it from their replica of the shard that keeps it. That replica may lag, so
a change of a policy waits until every leader has applied it (`Settle`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Protocol

from codeq_cluster.broker.engine.faults import alone
from codeq_cluster.broker.ports import StateStore
from codeq_cluster.broker.scanning import every_row
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.budget import Usage
from codeq_cluster.core.explaining import SharedLimit
from codeq_cluster.core.gate import Gate, PerQueue
from codeq_cluster.core.gating import shared_limit
from codeq_cluster.core.items import (
    KIND_OF,
    NO_POLICY,
    Item,
    Pause,
    Policy,
    Subscription,
    Topic,
    WebhookKey,
)
from codeq_cluster.core.lane import Flow
from codeq_cluster.core.limit import is_limits, scope_of_limit
from codeq_cluster.core.sharding import shard_of_queue
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Counters
from codeq_cluster.core.view import View
from codeq_cluster.errors import Overloaded

_WAITING_MAX = 1000  # Callers waiting for an entry to be applied here.
_KNOWN = [kind for each, kind in KIND_OF.items() if each.is_known_everywhere]
_ALL = 1_000_000  # More than can wait on a node.
_EVERY = "*"  # Means every queue; no command can have this name.


class ShardTally(Protocol):
    """The applied counts of one shard on this node."""

    counters: dict[tuple[str, str], Counters]

    def usage_here(self, tenant: str) -> Usage:
        """Return the tenant's usage on the shard."""

    def counted_queues(self, tenant: str) -> AbstractSet[str]:
        """Return the tenant's queues on the shard that have any tasks."""


class CountedShard(Protocol):
    """One shard on this node."""

    @property
    def replica(self) -> ShardTally:
        """Return the counts of its applied state."""

    @property
    def view(self) -> View:
        """Return its state, decided changes included."""


class Catalogue:
    """One node's catalogue; follows the entries applied to every shard.

    Args:
        stores: Of all shards, in order; `reload` loads their items.
        failed: Called for each item that cannot be read.

    Attributes:
        applied: Grows with every entry; while it stays, so do the counts of all shards.
    """

    def __init__(
        self, stores: Sequence[StateStore], *, failed: Callable[[], None] = lambda: None
    ) -> None:
        self._failed = failed
        self._policies: dict[tuple[str, str], Policy] = {}
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._subscribers: dict[tuple[str, str], dict[str, Subscription]] = {}
        self._webhook_keys: dict[str, WebhookKey] = {}
        self._stores = stores
        self._shards: list[CountedShard] = []
        self._settling: set[asyncio.Event] = set()
        self._on_open: list[Callable[[str, str, int], None]] = []
        self._told: set[tuple[str, str]] = set()
        self.applied = 0

    def follow(self, shard: CountedShard) -> None:
        """Add the counts of the next shard, in order."""
        self._shards.append(shard)

    def reload(self) -> None:
        """Replace all known items by those the shards keep."""
        before = list(self._policies)
        self._policies.clear()
        self._subscriptions.clear()
        self._subscribers.clear()
        self._webhook_keys.clear()
        self.applied += 1
        for event in self._settling:
            event.set()
        for store in self._stores:
            for kind in _KNOWN:
                start, end = keyspace.prefix_range(keyspace.item_prefix(kind))
                for key, value in every_row(store, start, end):
                    self._take(key, value)
        for tenant, queue in before:
            if not self.policy(tenant, queue).paused:
                self._opened(tenant, queue)

    def on_open(self, call: Callable[[str, str, int], None]) -> None:
        """Call `call` with (tenant, queue, most) when a queue may be claimed from again.

        `most` bounds how many of its tasks may be claimed at once.
        """
        self._on_open.append(call)

    # -- policies and counts of a queue ----------------------------------------------------------

    def policy(self, tenant: str, queue: str) -> Policy:
        """Return the policy of the queue."""
        return self._policies.get((tenant, queue), NO_POLICY)

    def leased_elsewhere(self, shard: int, tenant: str, queue: str) -> int:
        """Return how many tasks of the queue are leased on all shards but this one."""
        counted = self._counted(tenant, queue)
        return sum(counters.leased for other, counters in counted if other != shard)

    def usage_elsewhere(self, own: int, tenant: str) -> Usage:
        """Return the tenant's usage on all shards but this one."""
        usages = [
            shard.replica.usage_here(tenant)
            for other, shard in enumerate(self._shards)
            if other != own
        ]
        return Usage(
            sum(usage.waiting for usage in usages),
            sum(usage.leased for usage in usages),
            sum(usage.stored_bytes for usage in usages),
        )

    def has_queue(self, tenant: str, queue: str) -> bool:
        """Return whether the queue has any tasks on any shard."""
        return any(True for _ in self._counted(tenant, queue))

    def most_queues(self, tenant: str) -> int:
        """Return how many queues the tenant has on the shard where it has most of them."""
        return max((len(shard.replica.counted_queues(tenant)) for shard in self._shards), default=0)

    def ready(self, tenant: str, queue: str) -> int:
        """Return how many tasks of the queue are ready on all shards."""
        return sum(counters.ready for _, counters in self._counted(tenant, queue))

    def is_open(self, tenant: str, queue: str) -> bool:
        """Return whether a task of the queue is ready on some shard, and the queue not paused."""
        policy = self._policies.get((tenant, queue))
        if policy is not None and policy.paused:
            return False
        for shard in self._shards:
            counters = shard.replica.counters.get((queue, tenant))
            if counters is not None and counters.ready:
                return True
        return False

    def claimable(self, tenant: str, queue: str, ready: int) -> int:
        """Return how many of `ready` ready tasks of the queue may be claimed now.

        None of a queue whose gate is shut, wherever it has ready tasks: its opening tells of them.
        """
        limit = self.shared_limit(tenant, queue) if ready else None
        if self._is_shut(tenant, queue, scope_of_limit(limit.name) if limit is not None else ""):
            return 0
        if limit is not None:
            ready = min(ready, _left(limit))
        return self.policy(tenant, queue).claimable(ready, partial(self._leased, tenant, queue))

    def shared_limit(self, tenant: str, queue: str) -> SharedLimit | None:
        """Return the limit that a queue shares with others, as known here; None for none."""
        topic = self.policy(tenant, queue).topic
        if topic is None or not topic.limit:
            return None
        return shared_limit(self._view_of(tenant, scope_of_limit(topic.limit)), tenant, queue)

    def sharers(self, tenant: str, limit: str) -> list[str]:
        """Return the queues that share a limit, as known here, by name."""
        scope = scope_of_limit(limit)
        return sorted(self._view_of(tenant, scope).sharers.get((tenant, scope), ()))

    def newly_claimable(self, tenant: str, queue: str, ready: int) -> int:
        """As `claimable`, but none if the entry that was applied last has opened the queue.

        Whoever waits for it has been told of all its tasks then.
        """
        if (tenant, queue) in self._told:
            return 0
        return self.claimable(tenant, queue, ready)

    def counters(self) -> list[Mapping[tuple[str, str], Counters]]:
        """Return the task counts by (queue, tenant), one mapping a shard."""
        return [shard.replica.counters for shard in self._shards]

    def paused(self, tenant: str) -> set[str]:
        """Return the tenant's paused queues."""
        return {
            queue
            for (owner, queue), policy in self._policies.items()
            if owner == tenant and policy.paused
        }

    def queues(self) -> set[tuple[str, str]]:
        """Return (tenant, queue) of every queue with tasks, on any shard."""
        return {
            (tenant, queue) for shard in self._shards for queue, tenant in shard.replica.counters
        }

    def subscription(self, tenant: str, subscription_id: str) -> Subscription | None:
        """Return the subscription, or None; it may have just expired."""
        return self._subscriptions.get((tenant, subscription_id))

    def subscriptions(self) -> Iterable[Subscription]:
        """Return every tenant's subscriptions; some may have just expired."""
        return self._subscriptions.values()

    def subscribers(self, tenant: str, queue: str) -> Iterable[Subscription]:
        """Yield the subscriptions that name the queue or none; some may have just expired."""
        yield from self._subscribers.get((tenant, queue), {}).values()
        yield from self._subscribers.get((tenant, _EVERY), {}).values()

    def has_subscribers(self, tenant: str, queue: str) -> bool:
        """Return whether `subscribers` would yield any."""
        return (tenant, queue) in self._subscribers or (tenant, _EVERY) in self._subscribers

    def subscriptions_by_queue(self, counts: Callable[[str], bool]) -> dict[str, int]:
        """Return how many subscriptions name each queue, `*` for those that name none.

        Args:
            counts: Returns whether a tenant's subscriptions are counted here.
        """
        totals: dict[str, int] = {}
        for (tenant, queue), found in self._subscribers.items():
            if counts(tenant):
                totals[queue] = totals.get(queue, 0) + len(found)
        return totals

    def webhook_key(self, tenant: str) -> WebhookKey:
        """Return the version of the key that signs the tenant's callbacks."""
        return self._webhook_keys.get(tenant) or WebhookKey(tenant=tenant)

    # -- applied entries --------------------------------------------------------------------------

    async def settled(self, shard: int, index: int) -> None:
        """Wait until the shard's entry `index` is applied on this node; raises Overloaded."""
        if self._stores[shard].applied_index >= index:
            return
        if len(self._settling) >= _WAITING_MAX:
            raise Overloaded("the list of those waiting for an entry")
        event = asyncio.Event()
        self._settling.add(event)
        try:
            while self._stores[shard].applied_index < index:
                event.clear()
                await event.wait()
        finally:
            self._settling.discard(event)

    def rows(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Update the catalogue from an applied entry's rows."""
        for event in self._settling:
            event.set()
        self.applied += 1
        self._told.clear()
        for key, value in rows.items():
            if key.startswith(keyspace.STATS_PREFIX):
                queue, tenant = keyspace.stats_parts(key)
                policy = self._policies.get((tenant, queue))
                if policy is not None:
                    self._place_free(tenant, queue, policy)
                continue
            if not key.startswith(keyspace.ITEM_PREFIX) or not keyspace.knows_kind(key):
                continue
            kind, tenant, item_id = keyspace.item_parts(key)
            if kind is ItemKind.GATE:
                self._gate(tenant, item_id, value)
            elif kind is ItemKind.FLOW:
                self._flow(tenant, item_id, value)
            elif value is not None:
                if kind in _KNOWN:
                    self._take(key, value)
            else:
                self._drop(kind, tenant, item_id)

    def _place_free(self, tenant: str, queue: str, policy: Policy) -> None:
        """Tell that a place may be free: of a queue, on any shard, and of the limit it shares."""
        if policy.max_consumers:
            self._opened(tenant, queue)
        limit = self.shared_limit(tenant, queue)
        if limit is not None and limit.running_max and _left(limit):
            self._scope_opened(tenant, scope_of_limit(limit.name))

    def _take(self, key: bytes, value: bytes) -> None:
        """Take in an item.

        If one cannot be read, a queue keeps the topic that is known, or the broker's defaults. A
        pause is a pause by its key alone.
        """
        kind, tenant, item_id = keyspace.item_parts(key)
        with alone(self._failed, kind=kind.value, tenant=tenant, item=item_id):
            if kind is ItemKind.PAUSE:
                self._put(Pause(tenant=tenant, id=item_id))
            else:
                self._put(records.decode_item(value))

    def _put(self, item: Item) -> None:
        match item:
            case Topic():
                before = self.policy(item.tenant, item.id)
                self._set_policy(item.tenant, item.id, Policy(item, before.paused))
            case Pause():
                before = self.policy(item.tenant, item.id)
                self._set_policy(item.tenant, item.id, Policy(before.topic, paused=True))
            case Subscription():
                self._unsubscribe(item.tenant, item.id)
                self._subscriptions[item.tenant, item.id] = item
                for queue in _queues(item):
                    self._subscribers.setdefault((item.tenant, queue), {})[item.id] = item
            case WebhookKey():
                self._webhook_keys[item.tenant] = item
            case _:
                pass

    def _drop(self, kind: ItemKind, tenant: str, item_id: str) -> None:
        before = self.policy(tenant, item_id)
        if kind is ItemKind.TOPIC:
            self._set_policy(tenant, item_id, Policy(None, before.paused))
        elif kind is ItemKind.PAUSE:
            self._set_policy(tenant, item_id, Policy(before.topic, paused=False))
        elif kind is ItemKind.SUBSCRIPTION:
            self._unsubscribe(tenant, item_id)

    def _unsubscribe(self, tenant: str, item_id: str) -> None:
        before = self._subscriptions.pop((tenant, item_id), None)
        if before is None:
            return
        for queue in _queues(before):
            found = self._subscribers[tenant, queue]
            del found[item_id]
            if not found:
                del self._subscribers[tenant, queue]

    def _set_policy(self, tenant: str, queue: str, policy: Policy) -> None:
        if policy == NO_POLICY:
            self._policies.pop((tenant, queue), None)
        else:
            self._policies[tenant, queue] = policy
        if not policy.paused:
            self._opened(tenant, queue)

    def _leased(self, tenant: str, queue: str) -> int:
        return sum(counters.leased for _, counters in self._counted(tenant, queue))

    def _counted(self, tenant: str, queue: str) -> Iterator[tuple[int, Counters]]:
        """Yield each shard that has tasks of the queue, with its counters."""
        for number, shard in enumerate(self._shards):
            counters = shard.replica.counters.get((queue, tenant))
            if counters is not None:
                yield number, counters

    def _is_shut(self, tenant: str, queue: str, limit: str) -> bool:
        """Return whether each shard with ready tasks of the queue hands out none of them now.

        Args:
            queue: With ready tasks, or not.
            limit: The scope of the limit that it shares; empty for none.
        """
        shut = False
        for shard in self._shards:
            counters = shard.replica.counters.get((queue, tenant))
            if counters is not None and counters.ready:
                gate = shard.view.gates.get((tenant, queue))
                if (gate is None or not gate.shut_until_ms) and limit:
                    gate = shard.view.gates.get((tenant, limit))
                if gate is None or not gate.shut_until_ms:
                    return False
                shut = True
        return shut

    def _flow(self, tenant: str, queue: str, value: bytes | None) -> None:
        """Take in the rules of a queue or a limit: more may be in progress under new ones.

        Those of a queue are new while their walk over the keys has not begun; its steps let nobody
        else go.
        """
        flow = None if value is None else records.decode_item(value)
        if not isinstance(flow, Flow):
            return
        if is_limits(flow.id) or (flow.expires_ms and not flow.walked):
            self._scope_opened(tenant, queue)
            if is_limits(flow.pinned):
                self._scope_opened(tenant, flow.pinned)  # The queue may have left its limit.

    def _gate(self, tenant: str, scope: str, value: bytes | None) -> None:
        """Take in the gate of a queue or a limit: without tokens it is shut, or was open before."""
        gate = None if value is None else records.decode_item(value)
        if isinstance(gate, Gate):
            most = gate.tokens
        else:
            rule = self._rule(tenant, scope)
            most = rule.rate.burst if rule is not None and rule.rate is not None else _ALL
        if most:
            self._scope_opened(tenant, scope, most)

    def _rule(self, tenant: str, scope: str) -> PerQueue | None:
        """Return the rule of a queue or a limit."""
        flow = self._view_of(tenant, scope).flow(tenant, scope)
        return flow.per_queue if flow is not None else None

    def _view_of(self, tenant: str, scope: str) -> View:
        """Return the view of the shard that a queue or a limit places tasks on."""
        return self._shards[shard_of_queue(tenant, scope, len(self._shards))].view

    def _scope_opened(self, tenant: str, scope: str, most: int = _ALL) -> None:
        """Tell that a queue, or each one that shares a limit, may be claimed from again.

        One without ready tasks need not hear it. Each is told of all tokens: who finds none waits.
        """
        if not is_limits(scope):
            self._opened(tenant, scope, most)
            return
        sharers = self._view_of(tenant, scope).sharers.get((tenant, scope), ())
        for queue in filter(partial(self.ready, tenant), sorted(sharers)):
            self._opened(tenant, queue, most)

    def _opened(self, tenant: str, queue: str, most: int = _ALL) -> None:
        self._told.add((tenant, queue))
        for call in self._on_open:
            call(tenant, queue, most)


def _queues(subscription: Subscription) -> set[str]:
    """Return the queues a subscription covers: those of its commands, or every one."""
    named = {keyspace.queue_name(command) for command in subscription.event_types}
    return {_EVERY} if not named or _EVERY in named else named


def _left(limit: SharedLimit) -> int:
    """Return how many more tasks of a limit's queues may be in progress."""
    return max(0, limit.running_max - limit.running) if limit.running_max else _ALL
