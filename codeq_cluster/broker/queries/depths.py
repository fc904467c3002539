"""Depths: queue counts by this node's replicas.

No other node is asked, so the counts are cheap and need no majority. They lag behind the leaders by
the entries not applied here yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import add

from msgspec import Struct
from msgspec.structs import astuple

from codeq_cluster.broker.engine.answers import oldest_ready_ms
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.ports import StateStore
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.gate import Gate
from codeq_cluster.core.items import Pause
from codeq_cluster.core.sharding import home_shard, shard_of_queue
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Counters
from codeq_cluster.portions import in_portions

DEAD_MAX = 100  # A longer count needs the list of deliveries.

_NOTHING = Counters()
_AT_ONCE = 200  # Queues looked at before other work gets its turn: two milliseconds.


class TenantLoad(Struct, frozen=True, kw_only=True):
    """One tenant's total over its queues.

    Attributes:
        queues: The number of queues with tasks.
    """

    tenant: str
    queues: int
    counters: Counters


class LocalDepths:
    """The queues of every tenant."""

    def __init__(self, *, stores: Sequence[StateStore], catalogue: Catalogue) -> None:
        self._stores = stores
        self._catalogue = catalogue
        self.policy = catalogue.policy
        self.paused = catalogue.paused
        self.shared_limit = catalogue.shared_limit
        self.sharers = catalogue.sharers

    async def queues(self, tenant: str) -> dict[str, Counters]:
        """Return the counters of each of the tenant's queues."""
        sums: dict[str, Counters] = {}
        async for (queue, owner), counters in in_portions(await self._rows()):
            if owner == tenant:
                before = sums.get(queue)
                sums[queue] = counters if before is None else plus(before, counters)
        return sums

    async def tenants(self) -> list[TenantLoad]:
        """Return every tenant that has tasks, by name."""
        queues: dict[str, set[str]] = {}
        sums: dict[str, Counters] = {}
        async for (queue, tenant), counters in in_portions(await self._rows()):
            queues.setdefault(tenant, set()).add(queue)
            sums[tenant] = plus(sums.get(tenant, _NOTHING), counters)
        return [
            TenantLoad(tenant=tenant, queues=len(queues[tenant]), counters=sums[tenant])
            for tenant in sorted(queues)
        ]

    async def oldest_ready_ms(self, tenant: str, queues: Sequence[str]) -> dict[str, int]:
        """Return when the longest-waiting ready task of each queue became ready.

        Unix milliseconds; queues without a ready task are missing.
        """
        found: dict[str, int] = {}
        for number, queue in enumerate(queues, 1):
            known = [oldest_ready_ms(store, queue, tenant) for store in self._stores]
            if any(known):
                found[queue] = min(ms for ms in known if ms)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    def pause(self, tenant: str, queue: str) -> Pause | None:
        """Return who has paused a queue and when, or None."""
        store = self._stores[home_shard(tenant, len(self._stores))]
        return records.item_in(store.get(keyspace.item(ItemKind.PAUSE, tenant, queue)), Pause)

    def held_until_ms(self, tenant: str, queue: str) -> int:
        """Return until when a worker holds a queue, Unix milliseconds; 0 if none does."""
        topic = self.policy(tenant, queue).topic
        place = (topic.pinned if topic is not None else "") or queue
        store = self._stores[shard_of_queue(tenant, place, len(self._stores))]
        gate = records.item_in(store.get(keyspace.item(ItemKind.GATE, tenant, queue)), Gate)
        return gate.held_until_ms if gate is not None else 0

    def dead_deliveries(self, tenant: str) -> int:
        """Return the number of dead deliveries, counted up to `DEAD_MAX` a shard."""
        start, end = keyspace.prefix_range(keyspace.dead_prefix(tenant))
        return sum(len(store.scan(start, end, DEAD_MAX)) for store in self._stores)

    def asides(self, tenant: str) -> int:
        """Return how many tasks and items are set aside, counted up to `DEAD_MAX` a shard."""
        start, end = keyspace.prefix_range(keyspace.item_prefix(ItemKind.ASIDE, tenant))
        return sum(len(store.scan(start, end, DEAD_MAX)) for store in self._stores)

    async def _rows(self) -> list[tuple[tuple[str, str], Counters]]:
        rows: list[tuple[tuple[str, str], Counters]] = []
        for shard in self._catalogue.counters():
            rows += shard.items()
            await asyncio.sleep(0)
        return rows


def plus(one: Counters, other: Counters) -> Counters:
    """Return the sum of two counters."""
    return Counters(*map(add, astuple(one), astuple(other)))
