"""Fault schedule: the kinds of faults, and their sequence through a run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence

from jepsen_lite.clocks import Clock, Drift
from jepsen_lite.db import Db
from jepsen_lite.history import Args, Out, Recorder
from jepsen_lite.hostile import Hostile
from jepsen_lite.membership import Membership, Wipe
from jepsen_lite.mixes import Mix
from jepsen_lite.nemesis import (
    Away,
    Corrupt,
    DiskError,
    DiskFull,
    DiskSlow,
    Idle,
    Install,
    Kill,
    Links,
    Nemesis,
    Packets,
    Partition,
    Pause,
    PlannedFault,
    Power,
    Reset,
    Restart,
)
from jepsen_lite.sinks import SinkFails
from tests.harness.waiting import ClusterError

# The calm between two faults of one kind of target.
_CALM_S = (3.0, 9.0)
# Creates per second.
FORGETS_FROM_RATE = 60

KINDS: Mapping[str, type[Nemesis]] = {
    kind.name: kind
    for kind in (
        Kill,
        Pause,
        Partition,
        Packets,
        Reset,
        Restart,
        Power,
        Away,
        Install,
        Membership,
        Wipe,
        DiskSlow,
        DiskFull,
        DiskError,
        Corrupt,
        Clock,
        Drift,
        SinkFails,
        Hostile,
        Idle,
    )
}


def has_effect(name: str, mix: Mix) -> bool:
    """Return whether a kind of fault can have an effect in a workload."""
    if KINDS[name].needs_webhooks:
        return mix.webhooks > 0
    # Snapshots are only needed if logs are truncated while a node is away.
    return mix.rate >= FORGETS_FROM_RATE or not KINDS[name].needs_load


class Nemeses:
    """Injects faults for the length of a run, with one sequence of faults per target."""

    def __init__(self, db: Db, recorder: Recorder, kinds: Sequence[str], *, seed: int) -> None:
        links = Links(db)
        self._recorder = recorder
        self._seed = seed
        self._by_target: dict[str, list[Nemesis]] = {}
        for name in kinds:
            nemesis = KINDS[name](db, links)
            self._by_target.setdefault(nemesis.target, []).append(nemesis)

    async def run(self, stop: asyncio.Event) -> None:
        """Inject faults until told to stop, and leave none active."""
        async with asyncio.TaskGroup() as threads:
            for target, nemeses in self._by_target.items():
                rng = random.Random(f"{self._seed}/nemesis/{target}")
                threads.create_task(self._guarding(self._thread(nemeses, rng, stop)))
        for nemeses in self._by_target.values():
            await self._guarding(self._settle(nemeses))

    async def _guarding(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except ClusterError as failed:
            # The chosen node had already ended by itself.
            self._recorder.phase("nemesis", "died", detail=str(failed))

    async def _settle(self, nemeses: Sequence[Nemesis]) -> None:
        for nemesis in nemeses:
            planned = PlannedFault(nodes=tuple(nemesis.left_to_restart))
            if planned.nodes:
                self._record(nemesis, planned, on=True, out=Out())
            remains = await nemesis.settle()
            if planned.nodes:
                self._record(nemesis, planned, on=False, out=Out())
            if remains:
                detail = f"{nemesis.name}: {remains}"
                self._recorder.phase("nemesis", "unsettled", detail=detail)

    async def _thread(
        self, nemeses: Sequence[Nemesis], rng: random.Random, stop: asyncio.Event
    ) -> None:
        turn: list[Nemesis] = []
        while not await _stopped(stop, rng.uniform(*_CALM_S)):
            # Every kind has its turn before any has two; otherwise a short run would lack some.
            turn = turn or rng.sample(nemeses, len(nemeses))
            nemesis = turn.pop()
            planned = await nemesis.plan(rng)
            # The fault is recorded before it begins and after it ended, so that no time under it
            # counts as calm.
            self._record(nemesis, planned, on=True, out=Out())
            nemesis.took_ms = 0
            begun = await nemesis.begin(planned)
            await _stopped(stop, planned.hold_s)
            ended = await nemesis.end(planned)
            out = Out(applied=max(begun, ended), took_ms=nemesis.took_ms)
            self._record(nemesis, planned, on=False, out=out)

    def _record(self, nemesis: Nemesis, planned: PlannedFault, *, on: bool, out: Out) -> None:
        args = Args(
            name=nemesis.name,
            nodes=planned.nodes,
            on=on,
            detail=planned.detail,
            amount_ms=planned.amount_ms,
        )
        self._recorder.fault(args, out)


async def _stopped(stop: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await stop.wait()
    except TimeoutError:
        return False
    return True
