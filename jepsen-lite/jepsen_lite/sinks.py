"""Sinks: faults of the receivers that nodes call."""

from __future__ import annotations

import random

from jepsen_lite.db import Db
from jepsen_lite.nemesis import Links, Nemesis, PlannedFault
from jepsen_lite.sink import Sink, SinkFault


class SinkFails(Nemesis):
    """The receiver of webhooks refuses, hangs, resets, answers with 500, or answers late.

    The workload must create tasks with webhooks, because a node without pending calls is not
    struck.
    """

    name = "sink"
    target = "sink"
    needs_webhooks = True

    def __init__(self, db: Db, links: Links) -> None:
        super().__init__(db, links)
        self._shapes: list[SinkFault] = []
        self._before = 0
        self._failed = 0

    @property
    def _sink(self) -> Sink:
        assert self.db.sink is not None, "a run has one"
        return self.db.sink

    async def plan(self, rng: random.Random) -> PlannedFault:
        """Choose how it fails; every way has its turn before one has two."""
        if not self._shapes:
            shapes = [shape for shape in SinkFault if shape is not SinkFault.NONE]
            self._shapes = rng.sample(shapes, len(shapes))
        return PlannedFault(nodes=("sink",), detail=self._shapes.pop(), hold_s=rng.uniform(3, 9))

    async def begin(self, planned: PlannedFault) -> int:
        """Make it fail."""
        self._before = self._sink.struck
        self._failed = await self.db.undelivered()
        await self._sink.begin(SinkFault(planned.detail))
        return 0

    async def end(self, planned: PlannedFault) -> int:
        """Mend it. The nodes count failed calls, because a refusing sink sees none."""
        failed = await self.db.undelivered() - self._failed
        struck = self._sink.struck - self._before
        await self._sink.end()
        return int(struck > 0 or (planned.detail == SinkFault.REFUSE and failed > 0))
