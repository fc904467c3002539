"""Schedules: the clients that put, edit and read schedules, and those that work off the runs."""

from __future__ import annotations

import asyncio
import itertools

from msgspec.structs import replace

from jepsen_lite.asking import Asker, Process
from jepsen_lite.clients import LEASE_S, TRIES, WorkedOff
from jepsen_lite.history import Args, F, Plan, Type

RUN_COMMAND = "run"
OVERLAPS = ("skip", "queueOne", "queue", "allow", "cancel")
# When the clocks of Berlin changed in 2022: a past that any clock of a run has behind it.
NIGHTS = {"spring": 1_648_342_800_000, "autumn": 1_667_091_600_000}
# What is filled back around each: a time that is skipped, or comes twice, and one that goes on.
AROUND = {
    "nightly": (Plan(overlap="allow", cron="30 2 * * *", zone="Europe/Berlin"), 2 * 86_400_000),
    "hourly": (Plan(overlap="allow", cron="*/30 * * * *", zone="Europe/Berlin"), 3 * 3_600_000),
}
# Nobody edits this one: an edit would remind a leader of a schedule that it has forgotten.
QUIET = "quiet"
WORKERS = 4


class Schedules(WorkedOff):
    """The clients of a run's schedules.

    Each schedule is put once and then edited in its note alone, so that its calendar stays. The
    tasks of the runs are worked off outside of the history: a list of them at rest shows all.
    """

    def __init__(self, client: Asker, *, seed: int, rate: float) -> None:
        super().__init__(client, seed=seed, rate=rate)
        self._notes = itertools.count()
        self._plans: dict[str, Plan] = {
            f"every-{overlap}": Plan(overlap=overlap, every="2s" if overlap == "allow" else "1s")
            for overlap in OVERLAPS
        }
        self._plans[QUIET] = Plan(overlap="allow", every="3s")
        self._plans["cron-skip"] = Plan(overlap="skip", cron="*/2 * * * * *")
        self._fills: dict[str, tuple[int, int]] = {}
        for night, changed_ms in NIGHTS.items():
            for kind, (plan, span_ms) in AROUND.items():
                name = f"{kind}-{night}"
                self._plans[name] = plan
                self._fills[name] = changed_ms - span_ms, changed_ms + span_ms

    async def run(self, stop: asyncio.Event) -> None:
        """Put, edit and look until `stop` is set, and let workers go on beside."""
        self._stop = stop
        async with asyncio.TaskGroup() as clients:
            for name, plan in self._plans.items():
                clients.create_task(self._author(name, plan))
            for n in range(WORKERS):
                # Runs take so long that the next instant often finds one.
                clients.create_task(self._work("run-worker", n, (0.0, 0.1, 0.5, 1.5)))

    async def end(self, *, within_s: float) -> bool:
        """Pause all schedules and work off their runs; return whether that succeeded."""
        process = Process("pauser", self._seed)
        for name in self._plans:
            args = Args(schedule=name)
            answer = await self._client.retried(process, F.PAUSE_SCHEDULE, args, tries=TRIES)
            if answer.type is not Type.OK and answer.out.http != 404:
                return False
        return await self._all_worked_off(process, within_s=within_s)

    async def read_all(self, *, silent_s: float) -> bool:
        """Read every schedule and every run at rest; return whether all answered."""
        process = Process("census", self._seed)
        tries = max(2, int(silent_s))
        asked = [(F.SCHEDULE, Args(schedule=name, final=True)) for name in self._plans]
        asked.append((F.RUNS, Args(command=RUN_COMMAND, final=True)))
        answers = [await self._client.retried(process, f, args, tries=tries) for f, args in asked]
        return all(answer.type is Type.OK for answer in answers)

    async def _author(self, name: str, plan: Plan) -> None:
        process = Process(f"author-{name}", self._seed)
        args = Args(schedule=name, plan=plan, command=RUN_COMMAND)
        await self._client.retried(process, F.PUT_SCHEDULE, args, tries=TRIES)
        if name in self._fills:
            from_ms, to_ms = self._fills[name]
            wanted = Args(
                schedule=name, from_ms=from_ms, to_ms=to_ms, idempotency_key=f"fill-{name}"
            )
            await self._client.retried(process, F.BACKFILL, wanted, tries=TRIES)
            return
        while not await self._paused(process.random.uniform(0.5, 1.5) / self._rate):
            if name != QUIET and process.random.random() < 0.5:
                note = str(next(self._notes))
                edit = Args(schedule=name, command=RUN_COMMAND, plan=replace(plan, note=note))
                await self._client.invoke(process, F.PUT_SCHEDULE, edit)
            else:
                await self._client.invoke(process, F.SCHEDULE, Args(schedule=name))

    async def _worked_off(self, process: Process, worker: str, *, wait_s: float) -> bool:
        """Claim a run and end it, outside of the history; return whether there was one."""
        claim = Args(command=RUN_COMMAND, lease_ms=1000 * LEASE_S)
        claimed = await self._asked(process, F.CLAIM, claim, worker)
        if claimed.type is not Type.OK or not claimed.out.task:
            return False
        await self._paused(wait_s)
        failed = process.random.random() < 0.1
        done = Args(
            task=claimed.out.task,
            token=claimed.out.token,
            status="FAILED" if failed else "COMPLETED",
            content="broken" if failed else "{}",
        )
        await self._asked(process, F.RESULT, done, worker)
        return True
