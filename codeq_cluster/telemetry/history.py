"""History: the recent events of each queue, in slots of a few seconds, for charts.

The node that led a change counts it, so the flows of the cluster are the sum over its nodes. Depths
are those of this node's replicas at the end of each slot, so every node has all of them. It is kept
in memory and lost with the process.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
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
    """The history of one name: the current slot, and two rings of ended slots.

    Attributes:
        first: Number of the first fine slot that it knows; None until that has ended.
        quiet: Ended slots since its last event, or since its depths last changed.
    """

    __slots__ = ("before", "counts", "depths", "first", "minute", "quiet", "rings")

    def __init__(self, first: int | None = 0) -> None:
        self.first = first
        self.counts = [*_NO_FLOWS]
        self.depths: Sequence[int] = _NO_DEPTHS
        self.before: Sequence[int] = _NO_DEPTHS
        self.minute = [*_NO_FLOWS]
        self.quiet = 0
        self.rings = {step_s: _ring() for step_s in STEPS_S}

    def end_slot(self, slot: int) -> None:
        """Store the fine slot, and the coarse one if both end."""
        if self.first is None:
            self.first = slot
        counts, depths = self.counts, tuple(self.depths)
        self.quiet = 0 if any(counts) or depths != self.before else self.quiet + 1
        self.before = depths
        _write(self.rings[FINE_S], slot, counts, self.depths)
        for flow, count in enumerate(counts):
            self.minute[flow] += count
            counts[flow] = 0
        if slot % _FINE_IN_COARSE == _FINE_IN_COARSE - 1:
            _write(self.rings[COARSE_S], slot // _FINE_IN_COARSE, self.minute, self.depths)
            self.minute = [*_NO_FLOWS]


class _Tracks(dict[_N, _Track]):
    """The tracks of at most `most` names, which busy names take from quiet ones.

    If none is quiet, a busy name takes one from the owner with the most, until its own has as many.

    Args:
        most: Tracks at once.
        owner: Returns whose a name is: who has the most tracks gives one up first.

    Attributes:
        untracked: The events of this slot whose names have no track, by owner.
    """

    def __init__(self, most: int, owner: Callable[[_N], str]) -> None:
        super().__init__()
        self._most = most
        self._owner = owner
        self._spare: list[_N] = []
        self._had: Counter[str] = Counter()
        self._most_of: list[_N] = []  # The names of the owner with the most, the quietest last.
        self.untracked: dict[str, list[int]] = {}

    def follow(self, name: _N, *, has_events: bool) -> _Track | None:
        """Return the track of a name, None if there is no room.

        A name with events takes the track of one that has long been quiet. One that has only depths
        takes it only if that one has none.
        """
        track = self.get(name)
        is_full = len(self) >= self._most
        if track is None and (
            self._make_room(has_events=has_events)
            or (has_events and self._take_from_most(self._owner(name)))
        ):
            # While all tracks are taken, a name without one may have had any depths.
            track = self[name] = _Track(None if is_full else 0)
            self._had[self._owner(name)] += 1
        return track

    def find_quiet(self) -> None:
        """Look for tracks to give up; call it when a slot has ended."""
        had = self._had = Counter(map(self._owner, self))
        self._spare = sorted(
            (name for name, track in self.items() if track.quiet >= SLOTS),
            key=lambda name: (not any(self[name].depths), had[self._owner(name)]),
        )
        most = max(had, key=had.__getitem__, default="")
        self._most_of = sorted(
            (name for name in self if self._owner(name) == most),
            key=lambda name: self[name].quiet,
        )

    def _make_room(self, *, has_events: bool) -> bool:
        while len(self) >= self._most:
            if not self._spare:
                return False
            track = self[self._spare[-1]]
            if not has_events and any(track.depths):
                return False
            name = self._spare.pop()
            if not any(track.counts):
                self._give_up(name)
        return True

    def _take_from_most(self, owner: str) -> bool:
        while self._most_of:
            if self._had[owner] + 1 >= self._had[self._owner(self._most_of[-1])]:
                return False
            name = self._most_of.pop()
            if name in self:
                self._give_up(name)
                return True
        return False

    def _give_up(self, name: _N) -> None:
        owner, counts = self._owner(name), self.pop(name).counts
        self._had[owner] -= 1
        if any(counts):
            _add(self.untracked, owner, counts)


class History:
    """The last slots of every busy queue, of every tenant and of the cluster.

    Args:
        shards: Returns the applied counters of each shard, by (queue, tenant).
        now_s: Unix seconds.

    Attributes:
        current: The number of the first slot of `FINE_S` that has not ended here.
    """

    def __init__(self, shards: Callable[[], Iterable[_Shard]], now_s: Callable[[], float]) -> None:
        self._shards = shards
        self._now_s = now_s
        self._begin(int(now_s()) // FINE_S)

    def _begin(self, slot: int) -> None:
        self.current = self._begun = slot
        self._queues = _Tracks[tuple[str, str]](QUEUES_MAX, lambda name: name[0])
        self._tenants = _Tracks[str](TENANTS_MAX, lambda tenant: tenant)
        self._all = _Track()

    def count(self, tenant: str, queue: str, flow: Flow) -> None:
        """Count an event that has just become durable."""
        track = self._queues.follow((tenant, queue), has_events=True)
        if track is not None:
            track.counts[flow] += 1
        else:
            self._queues.untracked.setdefault(tenant, [*_NO_FLOWS])[flow] += 1

    async def run(self) -> None:
        """End the slots as time passes; runs for ever."""
        while True:
            await asyncio.sleep(FINE_S - self._now_s() % FINE_S)
            await self.end_slots(int(self._now_s()) // FINE_S)

    async def end_slots(self, slot: int) -> None:
        """End every slot before `slot`; begin there if the clock went back by over a minute."""
        if slot < self.current - RATE_SLOTS:
            self._begin(slot)  # Waiting would show old rates for as long as it went back.
        if slot <= self.current:
            return
        await self._look()
        self._sum_up()
        tracks = (*self._queues.values(), *self._tenants.values(), self._all)
        # Events since then belong to the current slot. About later slots nothing is known, for
        # example after the machine slept.
        for each in range(max(self.current, slot - SLOTS), slot):
            for track in tracks:
                track.end_slot(each)
        self.current = slot
        self._queues.find_quiet()
        self._tenants.find_quiet()

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
        end = min(self.current // per, until)
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
        return self.flows(tenant, since=self.current - RATE_SLOTS - 1, until=self.current)

    def flows(self, tenant: str, *, since: int, until: int) -> dict[str, list[int]]:
        """Return the flows between two slots of `FINE_S`, by queue, without queues that had none.

        Args:
            since: Number of the slot before the first one.
            until: Number of the slot after the last one; slots that have not ended do not count.
        """
        last = range(max(since + 1, self.current - SLOTS), min(self.current, until))
        at = [slot % SLOTS for slot in last]
        # No queue is quiet for longer than it has had no event.
        quiet_max = self.current - last.start
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

        Or since the node's start or the queue's first slot, if that is later.
        """
        newest = self.current - 1
        found = {}
        for (owner, queue), track in self._queues.items():
            first = max(self._begun, self.current - SLOTS, track.first or 0)
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
        for (tenant, _), depth in found.items():
            _add(totals, tenant, depth)
        self._all.depths = [sum(depth) for depth in zip(_NO_DEPTHS, *totals.values(), strict=True)]
        _see(self._tenants, totals)
        _see(self._queues, found)

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
        sums, self._queues.untracked = self._queues.untracked, {}
        for (tenant, _), track in self._queues.items():
            if any(track.counts):
                _add(sums, tenant, track.counts)
        # Those with a track come first: none gives it up in the slot in which it has events.
        for tenant in sorted(sums, key=lambda tenant: tenant not in self._tenants):
            own = self._tenants.follow(tenant, has_events=True)
            for counting in (self._all, own) if own else (self._all,):
                for flow, number in enumerate(sums[tenant]):
                    counting.counts[flow] += number

    def _track(self, tenant: str | None, queue: str) -> _Track | None:
        if tenant is None:
            return self._all
        return self._queues.get((tenant, queue)) if queue else self._tenants.get(tenant)


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


def _see(tracks: _Tracks[_N], found: Mapping[_N, Sequence[int]]) -> None:
    """Note the present depths of all names, and follow those that have some."""
    for name, track in tracks.items():
        track.depths = found.get(name, _NO_DEPTHS)
    for name, depths in found.items():
        followed = tracks.follow(name, has_events=False) if any(depths) else None
        if followed is not None:
            followed.depths = depths


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
