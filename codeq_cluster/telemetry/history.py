"""History: the recent events of each queue, in slots of a few seconds, for charts.

The node that led a change counts it, so the flows of the cluster are the sum over its nodes. Depths
are those of this node's replicas at the end of each slot, so every node has all of them. It is kept
in memory and lost with the process.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

from msgspec import Struct

from codeq_cluster.core.task import Counters

SLOTS = 180
FINE_S = 5  # 180 slots are a quarter of an hour.
COARSE_S = 60  # 180 slots are three hours.
STEPS_S = (FINE_S, COARSE_S)
RATE_SLOTS = 12  # Of FINE_S: rates are those of the last minute.

# Tracked individually; each costs 2 resolutions x 8 series x 180 slots x 4 bytes = 12 KB. A queue
# beyond them counts for its tenant, a tenant for the cluster.
QUEUES_MAX = 500
TENANTS_MAX = 100

_FINE_IN_COARSE = COARSE_S // FINE_S
_AT_ONCE = 500  # Depths read before other work gets its turn: about a millisecond.
_COUNT_MAX = 2**32 - 1

_N = TypeVar("_N")
_Shard = Mapping[tuple[str, str], Counters]


class Flow(IntEnum):
    """Events, counted as they happen."""

    CREATED = 0
    STARTED = 1
    COMPLETED = 2
    FAILED = 3


class Depth(IntEnum):
    """Depths, read when a slot ends."""

    READY = 0
    DELAYED = 1
    IN_PROGRESS = 2
    DEAD = 3


_NO_FLOWS = (0,) * len(Flow)
_NO_DEPTHS = (0,) * len(Depth)


class Slice(Struct, frozen=True, array_like=True):
    """Consecutive slots of one queue, one tenant or the whole cluster.

    Attributes:
        first: Number of the first slot: Unix seconds divided by the step.
        flows: One list a `Flow`, n numbers each.
        depths: One list a `Depth`, n numbers each.
    """

    first: int
    flows: list[list[int]]
    depths: list[list[int]]


class _Track:
    """The history of one name: the current slot, and two rings of ended slots."""

    __slots__ = ("counts", "depths", "minute", "quiet", "rings")

    def __init__(self) -> None:
        self.counts = [*_NO_FLOWS]
        self.depths: Sequence[int] = _NO_DEPTHS
        self.minute = [*_NO_FLOWS]
        self.quiet = 0
        self.rings = {step_s: _ring() for step_s in STEPS_S}

    def end_slot(self, slot: int) -> None:
        """Store the fine slot, and the coarse one if both end."""
        counts = self.counts
        self.quiet = 0 if any(counts) or any(self.depths) else self.quiet + 1
        _write(self.rings[FINE_S], slot, counts, self.depths)
        for flow, count in enumerate(counts):
            self.minute[flow] += count
            counts[flow] = 0
        if slot % _FINE_IN_COARSE == _FINE_IN_COARSE - 1:
            _write(self.rings[COARSE_S], slot // _FINE_IN_COARSE, self.minute, self.depths)
            self.minute = [*_NO_FLOWS]


class History:
    """The last slots of every busy queue, of every tenant and of the cluster.

    Args:
        shards: Returns the applied counters of each shard, by (queue, tenant).
        now_s: Unix seconds.
    """

    def __init__(self, shards: Callable[[], Iterable[_Shard]], now_s: Callable[[], float]) -> None:
        self._shards = shards
        self._now_s = now_s
        self._slot = self._begun = int(now_s()) // FINE_S
        self._queues: dict[tuple[str, str], _Track] = {}
        self._tenants: dict[str, _Track] = {}
        self._all = _Track()
        self._overflow: dict[str, list[int]] = {}
        self._spare: list[tuple[str, str]] = []

    def count(self, tenant: str, queue: str, flow: Flow) -> None:
        """Count an event that has just become durable."""
        name = (tenant, queue)
        track = self._queues.get(name) or self._follow(name)
        if track is not None:
            track.counts[flow] += 1
        else:
            self._overflow.setdefault(tenant, [*_NO_FLOWS])[flow] += 1

    async def run(self) -> None:
        """End the slots as time passes; runs for ever."""
        while True:
            await asyncio.sleep(FINE_S - self._now_s() % FINE_S)
            await self.end_slots(int(self._now_s()) // FINE_S)

    async def end_slots(self, slot: int) -> None:
        """End every slot before `slot`; does nothing if the clock went back."""
        if slot <= self._slot:
            return
        await self._look()
        self._sum_up()
        tracks = (*self._queues.values(), *self._tenants.values(), self._all)
        # Events since then belong to the current slot. About later slots nothing is known, for
        # example after the machine slept.
        for each in range(max(self._slot, slot - SLOTS), slot):
            for track in tracks:
                track.end_slot(each)
        self._slot = slot
        self._spare = [name for name, track in self._queues.items() if track.quiet >= SLOTS]

    @property
    def current(self) -> int:
        """Return the number of the first slot of `FINE_S` that has not ended here."""
        return self._slot

    def slots(
        self, tenant: str | None, queue: str, *, step_s: int, since: int, until: int
    ) -> Slice:
        """Return the ended slots after `since` and before `until`.

        Args:
            tenant: None for the whole cluster.
            queue: Empty for the whole tenant.
            step_s: One of `STEPS_S`.
            since: Number of a slot of that step.
            until: The same.
        """
        per = step_s // FINE_S
        end = min(self._slot // per, until)
        first = max(since + 1, end - SLOTS, -(-self._begun // per))
        track = self._track(tenant, queue)
        if first >= end:
            return Slice(end, [[] for _ in Flow], [[] for _ in Depth])
        rings = _ring() if track is None else track.rings[step_s]
        numbers = [[ring[slot % SLOTS] for slot in range(first, end)] for ring in rings]
        return Slice(first, numbers[: len(Flow)], numbers[len(Flow) :])

    def rates(self, tenant: str) -> dict[str, list[int]]:
        """Return the flows of the last minute, by queue, without queues that had none.

        Each list has one number a `Flow`.
        """
        return self.flows(tenant, since=self._slot - RATE_SLOTS - 1, until=self._slot)

    def flows(self, tenant: str, *, since: int, until: int) -> dict[str, list[int]]:
        """Return the flows between two slots of `FINE_S`, by queue, without queues that had none.

        Args:
            tenant: The queues' tenant.
            since: Number of the slot before the first one.
            until: Number of the slot after the last one; slots that have not ended do not count.
        """
        last = range(max(since + 1, self._slot - SLOTS), min(self._slot, until))
        at = [slot % SLOTS for slot in last]
        # `quiet` counts slots since the queue last wrote anything but zeros.
        quiet_max = self._slot - last.start
        found = {}
        for (owner, queue), track in self._queues.items():
            if owner == tenant and track.quiet < quiet_max:
                fine = track.rings[FINE_S]
                flows = [sum(fine[flow][slot] for slot in at) for flow in Flow]
                if any(flows):
                    found[queue] = flows
        return found

    def died(self, tenant: str) -> dict[str, int]:
        """Return by queue how many dead letters were added since `SLOTS` ago, if any.

        Or since the node's start, if that is later.
        """
        newest = self._slot - 1
        first = max(self._begun, self._slot - SLOTS)
        found = {}
        for (owner, queue), track in self._queues.items():
            dead = track.rings[FINE_S][len(Flow) + Depth.DEAD]
            if owner == tenant and newest > first:
                grown = dead[newest % SLOTS] - dead[first % SLOTS]
                if grown > 0:
                    found[queue] = grown
        return found

    async def _look(self) -> None:
        """Read the present depths."""
        found = await self._depths()
        totals: dict[str, list[int]] = {}
        for (tenant, queue), depth in found.items():
            _add(totals, tenant, depth)
            if (tenant, queue) not in self._queues:
                self._follow((tenant, queue))
        for tenant in totals:
            self._owner(tenant)
        self._all.depths = [sum(depth) for depth in zip(_NO_DEPTHS, *totals.values(), strict=True)]
        for tenant, track in self._tenants.items():
            track.depths = totals.get(tenant, _NO_DEPTHS)
        for name, track in self._queues.items():
            track.depths = found.get(name, _NO_DEPTHS)

    async def _depths(self) -> dict[tuple[str, str], list[int]]:
        """Return the depths of each (tenant, queue), read in portions."""
        found: dict[tuple[str, str], list[int]] = {}
        looked_at = 0
        for shard in self._shards():
            for (queue, tenant), counters in tuple(shard.items()):
                depths = (counters.ready, counters.delayed, counters.leased, counters.dead)
                _add(found, (tenant, queue), depths)
                looked_at += 1
                if looked_at % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        return found

    def _sum_up(self) -> None:
        """Add the queues' counts to their tenants and to the cluster."""
        sums, self._overflow = self._overflow, {}
        for (tenant, _), track in self._queues.items():
            if any(track.counts):
                _add(sums, tenant, track.counts)
        for tenant, flows in sums.items():
            for counts in (self._all.counts, self._owner(tenant).counts):
                for flow, number in enumerate(flows):
                    counts[flow] += number

    def _track(self, tenant: str | None, queue: str) -> _Track | None:
        if tenant is None:
            return self._all
        return self._queues.get((tenant, queue)) if queue else self._tenants.get(tenant)

    def _follow(self, name: tuple[str, str]) -> _Track | None:
        """Start to track a queue; if there are many, in place of a long quiet one."""
        if len(self._queues) >= QUEUES_MAX:
            if not self._spare:
                return None
            del self._queues[self._spare.pop()]
        track = self._queues[name] = _Track()
        return track

    def _owner(self, tenant: str) -> _Track:
        """Return the tenant's track; a temporary one if there are too many tenants."""
        track = self._tenants.get(tenant)
        if track is None:
            track = _Track()
            if len(self._tenants) < TENANTS_MAX:
                self._tenants[tenant] = track
        return track


def merged(slices: Sequence[Slice]) -> Slice:
    """Return the sum of several nodes' flows, with the depths of the first.

    Args:
        slices: At least one, all for the same range; the result has the slots of the first.
    """
    own = slices[0]
    count = len(own.depths[0])
    flows = [[0] * count for _ in Flow]
    for each in slices:
        for total, part in zip(flows, each.flows, strict=True):
            for slot, number in enumerate(part, each.first - own.first):
                if 0 <= slot < count:
                    total[slot] += number
    return Slice(own.first, flows, own.depths)


def _add(totals: dict[_N, list[int]], name: _N, numbers: Sequence[int]) -> None:
    total = totals.get(name)
    if total is None:
        totals[name] = [*numbers]
    else:
        for position, number in enumerate(numbers):
            total[position] += number


def _ring() -> list[array[int]]:
    return [array("I", bytes(4 * SLOTS)) for _ in range(len(Flow) + len(Depth))]


def _write(
    rings: Sequence[array[int]], slot: int, flows: Sequence[int], depths: Sequence[int]
) -> None:
    for ring, number in zip(rings, (*flows, *depths), strict=True):
        ring[slot % SLOTS] = min(number, _COUNT_MAX)
