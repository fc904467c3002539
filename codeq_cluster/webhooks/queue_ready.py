"""Queue ready: call subscribers when a queue becomes non-empty.

Every node follows the ready counts of all shards, so it sees a queue become non-empty, whatever
transition caused it. The node that leads the tenant's home shard sends the notice. A new leader
notifies for every queue that is non-empty then, because it cannot know what the last one has sent.

A notice is best effort: one attempt, outside any request, with the ready count at the time of
sending. No notice is sent for a queue that is empty again by then. A subscription notified less
than its interval ago gets one notice when the interval ends, if the queue is non-empty then.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Context
from functools import partial

import msgspec
from msgspec import Struct

from codeq_cluster.broker.earliest_timer import EarliestTimer
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.engine.faults import alone
from codeq_cluster.broker.requests.producer import new_id
from codeq_cluster.codec import keyspace
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.items import Mode, Subscription
from codeq_cluster.core.sharding import home_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.webhooks.notification_queue import Notification, NotificationQueue
from codeq_cluster.webhooks.subscriber_selection import (
    SubscriberGroup,
    Subscribers,
    group_of,
    subscriber_groups,
)

KIND = "queue_ready"
CLAIM_URL = "/v1/codeq/tasks/claim"

# Debounce: at most one round of notices per queue in this time, however many subscribe.
GATHER_S = 0.02
QUEUES_MAX = 10_000  # Queues that one round covers, a share a tenant.
OWED_MAX = 10_000  # Notices that wait for an interval to end, a share a tenant.
# Queues and subscriber groups in one pass of the loop; the rest wait for the next one. A queue may
# have a thousand subscriptions to look at, so a pass ends by the clock too, and others get as much.
PASS_MAX = 256
PASS_S = 0.005

_Place = tuple[str, str]  # The tenant and the queue.
_Debt = tuple[str, str, SubscriberGroup]


class Notice(Struct, rename="camel", kw_only=True):
    """The body of an availability notice.

    Attributes:
        event_type: The command as the subscription names it, or the queue if it names none.
        queue_depth: Ready tasks on all shards.
    """

    event_type: str
    available: bool
    queue_depth: int
    claim_url: str
    sent_at: str
    notification_id: str


class Notices:
    """One node's notices; idle for tenants whose home shard another node leads.

    Args:
        catalogue: The node's catalogue, already loaded.
        engines: Of every shard, in order.
        on_outcome: Called with (queue, outcome) of every notice dropped because too many wait, or
            left out because of a failure of our own.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        engines: Sequence[Engine],
        *,
        notification_queue: NotificationQueue,
        on_outcome: Callable[[str, str], None],
    ) -> None:
        self._catalogue = catalogue
        self._engines = engines
        self._notification_queue = notification_queue
        self._on_outcome = on_outcome
        self._subscribers = Subscribers()
        self._available = {place for place in catalogue.queues() if self._catalogue.is_open(*place)}
        self._gathered: dict[_Place, None] = {}
        self._gathered_room = FairShares(QUEUES_MAX, name="a round of notices")
        self._gathering: asyncio.Handle | None = None
        self._told_s: dict[
            str, float
        ] = {}  # By subscription: its last notice, on the loop's clock.
        self._owed: set[_Debt] = set()
        self._owed_room = FairShares(OWED_MAX, name="the node's delayed notices")
        self._due: list[tuple[float, _Debt]] = []
        self._paying = EarliestTimer(self._pay)
        self._resting = False  # More is due, and is paid after a pause.

    def rows(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Follow the rows of an entry applied on any shard, after the catalogue has."""
        for key, value in rows.items():
            if key.startswith(keyspace.STATS_PREFIX):
                queue, tenant = keyspace.stats_parts(key)
            elif key.startswith(keyspace.ITEM_PREFIX) and keyspace.knows_kind(key):
                kind, tenant, queue = keyspace.item_parts(key)  # A pause has its queue's name.
                if kind is ItemKind.SUBSCRIPTION and value is None:
                    self._told_s.pop(queue, None)
                if kind is not ItemKind.PAUSE:
                    continue
            else:
                continue
            if not self._catalogue.is_open(tenant, queue):
                self._available.discard((tenant, queue))
            elif (tenant, queue) not in self._available:
                self._available.add((tenant, queue))
                self._gather((tenant, queue))

    def reload(self) -> None:
        """Look at every queue after the catalogue has reloaded, which hides single changes."""
        before, self._available = self._available, set()
        for place in self._catalogue.queues():
            if self._catalogue.is_open(*place):
                self._available.add(place)
                if place not in before:
                    self._gather(place)
        known = {each.id for each in self._catalogue.subscriptions()}
        self._told_s = {each: told_s for each, told_s in self._told_s.items() if each in known}

    def led(self, shard: int) -> None:
        """Notify for every non-empty queue at home on the shard, if this node leads it now."""
        if self._engines[shard].leads:
            for place in self._available:
                if home_shard(place[0], len(self._engines)) == shard:
                    self._gather(place)

    def leads_home(self, tenant: str) -> bool:
        """Return whether this node sends the tenant's notices."""
        return self._home(tenant).leads

    def stop(self) -> None:
        """Send no more notices."""
        self._notification_queue.stop()
        self._paying.stop()
        if self._gathering is not None:
            self._gathering.cancel()

    # -- queues that became non-empty -------------------------------------------------------------

    def _gather(self, place: _Place) -> None:
        if not self._catalogue.has_subscribers(*place) or not self.leads_home(place[0]):
            return
        if place not in self._gathered:
            if not self._gathered_room.may_take(place[0]):
                self._on_outcome(place[1], "dropped")
                return
            self._gathered_room.take(place[0])
            self._gathered[place] = None
        if self._gathering is None:
            # Run in a fresh context: an entry is applied in the tracing context of some request.
            self._gathering = asyncio.get_running_loop().call_later(
                GATHER_S, self._tell, context=Context()
            )

    def _tell(self) -> None:
        self._gathering = None
        left, begun_s = PASS_MAX, time.perf_counter()
        while self._gathered and left > 0 and time.perf_counter() - begun_s < PASS_S:
            tenant, queue = place = next(iter(self._gathered))
            del self._gathered[place]
            self._gathered_room.give_back(tenant)
            left -= 1
            with self._alone(tenant, queue):
                for group, members in self._parties(tenant, queue).items():
                    left -= 1
                    with self._alone(tenant, queue):
                        self._tell_one(tenant, queue, group, members)
        if self._gathered:
            pause_s = time.perf_counter() - begun_s
            self._gathering = asyncio.get_running_loop().call_later(pause_s, self._tell)

    # -- receivers --------------------------------------------------------------------------------

    def _parties(self, tenant: str, queue: str) -> dict[SubscriberGroup, list[Subscription]]:
        """Return a queue's subscriber groups; empty if it is empty or led at another node."""
        found = self._catalogue.subscribers(tenant, queue)
        return subscriber_groups(self._heard(tenant, queue, found))

    def _members(self, tenant: str, queue: str, group: SubscriberGroup) -> Sequence[Subscription]:
        """Return the members that `_parties` has of one group, without making the others."""
        found: Iterable[Subscription]
        if group[0] is Mode.FANOUT:
            one = self._catalogue.subscription(tenant, group[1])
            found = () if one is None else (one,)
        else:
            every = self._catalogue.subscribers(tenant, queue)
            found = [each for each in every if group_of(each) == group]
        return subscriber_groups(self._heard(tenant, queue, found)).get(group, ())

    def _heard(
        self, tenant: str, queue: str, found: Iterable[Subscription]
    ) -> Iterator[Subscription]:
        home = self._home(tenant)
        if home.leads and (tenant, queue) in self._available:
            now_ms = home.now_ms
            yield from (each for each in found if each.expires_ms > now_ms)

    def _tell_one(
        self, tenant: str, queue: str, group: SubscriberGroup, members: Sequence[Subscription]
    ) -> None:
        """Notify one member of a group now, or later when an interval allows it."""
        debt = (tenant, queue, group)
        if debt in self._owed:
            return
        heard, wait_s = self._subscribers.pick(tenant, queue, group, members, wait_s=self._wait_s)
        if not wait_s:
            self._send(queue, heard)
        elif not self._owed_room.may_take(tenant):
            self._on_outcome(queue, "dropped")
        else:
            self._owed_room.take(tenant)
            self._owed.add(debt)
            heapq.heappush(self._due, (asyncio.get_running_loop().time() + wait_s, debt))
            if not self._resting:
                self._paying.at(self._due[0][0])

    def _wait_s(self, subscription: Subscription) -> float:
        told_s = self._told_s.get(subscription.id)
        if told_s is None:
            return 0.0
        again_s = told_s + subscription.min_interval_ms / 1000
        return max(0.0, again_s - asyncio.get_running_loop().time())

    def _pay(self) -> None:
        now_s, begun_s = asyncio.get_running_loop().time(), time.perf_counter()
        self._resting = True
        while self._due and self._due[0][0] <= now_s and time.perf_counter() - begun_s < PASS_S:
            _, (tenant, queue, group) = heapq.heappop(self._due)
            self._owed.discard((tenant, queue, group))
            self._owed_room.give_back(tenant)
            with self._alone(tenant, queue):
                members = self._members(tenant, queue, group)
                if members:
                    self._tell_one(tenant, queue, group, members)
        self._resting = bool(self._due) and self._due[0][0] <= now_s
        if self._due:
            pause_s = time.perf_counter() - begun_s if self._resting else 0.0
            self._paying.at(max(self._due[0][0], now_s + pause_s))

    # -- sending ----------------------------------------------------------------------------------

    def _send(self, queue: str, heard: Subscription) -> None:
        self._told_s[heard.id] = asyncio.get_running_loop().time()
        notice_id = new_id()
        self._notification_queue.put(
            Notification(
                id=notice_id,
                key=(heard.tenant, heard.id, queue),
                tenant=heard.tenant,
                queue=queue,
                url=heard.callback_url,
                write=partial(self._write, queue, heard, notice_id),
                unsent=partial(self._unsent, heard.id, self._told_s[heard.id]),
            )
        )

    def _write(self, queue: str, heard: Subscription, notice_id: str) -> bytes | None:
        home = self._home(heard.tenant)
        if not home.leads or (heard.tenant, queue) not in self._available:
            return None
        if self._catalogue.subscription(heard.tenant, heard.id) is None:
            return None
        self._told_s[heard.id] = asyncio.get_running_loop().time()
        return msgspec.json.encode(
            Notice(
                event_type=_as_named(queue, heard),
                available=True,
                queue_depth=self._catalogue.ready(heard.tenant, queue),
                claim_url=CLAIM_URL,
                sent_at=rfc3339(home.now_ms),
                notification_id=notice_id,
            )
        )

    def _unsent(self, subscription_id: str, told_s: float) -> None:
        """Forget that a subscription was notified, unless a later notice to it was sent."""
        if self._told_s.get(subscription_id) == told_s:
            del self._told_s[subscription_id]

    def _alone(self, tenant: str, queue: str) -> AbstractContextManager[None]:
        """Guard the other queues' notices against a failure at one."""
        return alone(partial(self._on_outcome, queue, "failure"), tenant=tenant, queue=queue)

    def _home(self, tenant: str) -> Engine:
        return self._engines[home_shard(tenant, len(self._engines))]


def _as_named(queue: str, subscription: Subscription) -> str:
    for command in subscription.event_types:
        if keyspace.queue_name(command) == queue:
            return command
    return queue
