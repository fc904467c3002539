"""Clocks: faults of the nodes' clocks."""

from __future__ import annotations

import random

from jepsen_lite.db import Db
from jepsen_lite.nemesis import Links, Nemesis, PlannedFault
from tests.harness.waiting import soon

CLOCK_SEEN_WITHIN_S = 3.0
# Real clocks drift about ten thousand times less.
DRIFT = 0.1
FAR_S = 0.5
# The longest lease or delay of any workload.
LONGEST_S = 6.0


class Clock(Nemesis):
    """A node's clock jumps forward or back, and later returns."""

    name = "clock"
    target = "clock"

    def __init__(self, db: Db, links: Links) -> None:
        super().__init__(db, links)
        self._shifts: dict[str, float] = {}

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose one node, or all by different amounts."""
        names = self.names if rng.random() < 0.3 else [await self.one(rng)]
        self._shifts = {
            name: rng.choice((-1, 1)) * rng.choice((0.1, 1.0, 30.0, 3600.0)) for name in names
        }
        return PlannedFault(
            nodes=tuple(names),
            detail=", ".join(f"{name} {shift_s:+g} s" for name, shift_s in self._shifts.items()),
            hold_s=rng.uniform(1, 10),
            amount_ms=round(1000 * max(map(abs, self._shifts.values()))),
        )

    async def begin(self, planned: PlannedFault) -> int:
        """Move the clocks; the times that nodes report prove it."""
        for name, shift_s in self._shifts.items():
            self.db.shift_clock(name, shift_s)
        await soon(self._moved, within_s=CLOCK_SEEN_WITHIN_S)
        return sum([await self._has_moved(name) for name in planned.nodes])

    async def _moved(self) -> bool:
        return all([await self._has_moved(name) for name in self._shifts])

    async def _has_moved(self, name: str) -> bool:
        # A node reports whole seconds; a smaller shift cannot be checked and is assumed.
        ahead_s = await self.db.clock_ahead_s(name)
        return ahead_s is not None and abs(ahead_s - self._shifts[name]) < 2

    async def end(self, planned: PlannedFault) -> int:
        """Set the clocks back to the true time."""
        for name in planned.nodes:
            self.db.shift_clock(name, 0)
        return 0


class Drift(Nemesis):
    """All clocks, monotonic ones included, run a tenth too fast or slow, then at true pace again.

    The shift remains afterwards; the next drift of a node that is far off leads back.
    """

    name = "drift"
    target = "clock"

    def __init__(self, db: Db, links: Links) -> None:
        super().__init__(db, links)
        self._gains: dict[str, float] = {}
        self._before: dict[str, int] = {}

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose one node, or all by different amounts."""
        names = self.names if rng.random() < 0.4 else [await self.one(rng)]
        hold_s = rng.uniform(5, 12)
        self._gains = {name: self._gain(name, rng) for name in names}
        ahead = [self._ahead_s(name) for name in names]
        after = [s + self._gains[name] * hold_s for s, name in zip(ahead, names, strict=True)]
        furthest_s = max(abs(s) for s in (*ahead, *after, *map(self._ahead_s, self.db.nodes)))
        return PlannedFault(
            nodes=tuple(names),
            detail=", ".join(f"{name} x{1 + gain:g}" for name, gain in self._gains.items()),
            hold_s=hold_s,
            # A drifting clock also mismeasures each lease by a share of its length.
            amount_ms=round(1000 * (furthest_s + DRIFT * LONGEST_S)),
        )

    def _gain(self, name: str, rng: random.Random) -> float:
        ahead_s = self._ahead_s(name)
        if abs(ahead_s) > FAR_S:
            return -DRIFT if ahead_s > 0 else DRIFT
        return rng.choice((-DRIFT, DRIFT))

    def _ahead_s(self, name: str) -> float:
        return self.db.nodes[name].pace.skew_s

    async def begin(self, planned: PlannedFault) -> int:
        """Make the clocks drift."""
        assert planned
        for name, gain in self._gains.items():
            pace = self.db.nodes[name].pace
            self._before[name] = pace.looks
            pace.set(gain)
        return 0

    async def end(self, planned: PlannedFault) -> int:
        """Make the clocks run at true pace; a node that read a drifting clock counts as struck."""
        struck = 0
        for name in planned.nodes:
            pace = self.db.nodes[name].pace
            pace.set(0)
            struck += pace.looks > self._before[name]
        return struck
