"""Ranges: the reads of a view that go over rows in the order of their keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from codeq_cluster.broker.scanning import walk
from codeq_cluster.codec import keyspace, lane_keys
from codeq_cluster.core.groups import Member, member_id
from codeq_cluster.core.items import Item
from codeq_cluster.core.lane import Lane, lane_id
from codeq_cluster.core.selecting import TaskFilter
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import PRIORITY_MAX

_PAGE_MAX = 1024


class Ranges(ABC):
    """What a view reads in order, over the keys that `_live` returns."""

    @abstractmethod
    def item(self, kind: ItemKind, tenant: str, item_id: str) -> Item | None:
        """Return the item of this shard, or None."""

    @abstractmethod
    def _live(self, start: bytes, end: bytes, limit: int) -> tuple[list[bytes], bytes]:
        """Return the first keys of a range as decided; see `window.Read`."""

    def count_items(self, kind: ItemKind, tenant: str, most: int) -> int:
        """Return how many items of a kind the tenant has on this shard, counted up to `most`."""
        ids = self._ids(*keyspace.prefix_range(keyspace.item_prefix(kind, tenant)))
        return sum(1 for _ in islice(ids, most))

    def first_ready(self, tenant: str, queue: str, priority: int) -> int:
        """Return the seq of the first ready task of a queue with this priority; 0 for none."""
        prefix = keyspace.pending_prefix(queue, tenant, priority)
        start, end = keyspace.prefix_range(prefix)
        while start < end:
            keys, start = self._live(start, end, 1)
            if keys:
                return keyspace.pending_parts(keys[0])[1]
        return 0

    def held(self, lane: Lane, *, priority: int = PRIORITY_MAX) -> Iterator[str]:
        """Yield the ids of the HELD tasks of a lane in order, from a priority downwards."""
        return self._ids(*lane_keys.held_range(lane, priority))

    def ready_of(self, lane: Lane) -> Iterator[str]:
        """Yield the ids of the READY tasks of a lane, the highest priority first."""
        return self._ids(*lane_keys.slot_range(lane, ready_only=True))

    def lanes(self, tenant: str, queue: str, *, after: str) -> Iterator[Lane]:
        """Yield the lanes of a queue by name, from the one after `after`."""
        return self._items(ItemKind.LANE, tenant, lane_id(queue, ""), after)

    def members(self, tenant: str, group: str, *, after: str) -> Iterator[Member]:
        """Yield the members of a group by name, from the one after `after`."""
        return self._items(ItemKind.MEMBER, tenant, member_id(group, ""), after)

    def beside(
        self, kind: ItemKind, tenant: str, task_id: str, *, after: str = ""
    ) -> Iterator[Any]:
        """Yield the items of a kind that stand beside a task."""
        return self._items(kind, tenant, f"{task_id}.", after)

    def bulk_jobs(self, tenant: str) -> Iterator[Any]:
        """Yield the tenant's bulk jobs of this shard."""
        return self._items(ItemKind.BULK, tenant, "", "")

    def walk(
        self, tenant: str, tags: Sequence[tuple[str, str]], *, only: TaskFilter, after: bytes
    ) -> Iterator[tuple[bytes, str]]:
        """Yield (position, task id or none) in an order that no change of a task moves."""
        return walk(self._live, tenant, tags, only=only, after=after)

    def claimed_under(self, request: str) -> tuple[str, ...]:
        """Return the ids of the tasks now leased under a claim request."""
        return tuple(self._ids(*keyspace.prefix_range(keyspace.claim_prefix(request))))

    def _items(self, kind: ItemKind, tenant: str, head: str, after: str) -> Iterator[Any]:
        """Yield the items of a kind whose ids begin with `head`, from the one after `after`."""
        prefix = keyspace.item_prefix(kind, tenant) + head.encode()
        start = prefix + after.encode() + b"\0" if after else prefix
        for item_id in self._ids(start, keyspace.prefix_range(prefix)[1]):
            yield self.item(kind, tenant, item_id)

    def _ids(self, start: bytes, end: bytes) -> Iterator[str]:
        """Yield the last part of each key, in pages that grow; most callers want one or two."""
        limit = 2
        while start < end:
            keys, start = self._live(start, end, limit)
            yield from map(keyspace.last_id, keys)
            limit = min(4 * limit, _PAGE_MAX)
