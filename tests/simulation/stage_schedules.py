"""A cluster with schedules: what people and workers do with them, step by step."""

from __future__ import annotations

import asyncio
from random import Random

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.requests.schedules import Timed
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller, NewResult
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Claimed, ScheduleStands
from codeq_cluster.core.schedules import Overlap, Plan, Schedule, Timing, schedule_shard
from codeq_cluster.errors import CodeqError
from codeq_cluster.firing.firer import LOOK_AGAIN_S
from codeq_cluster.schedules.due import next_after
from codeq_cluster.schedules.zones import zone_rules
from tests.simulator.brokers import AnswerLost, NotReached, SimBrokers
from tests.simulator.invariants import Invariant, InvariantBroken

PATIENCE_S = 10.0
TIMEOUT_S = 4.0
SECONDLY = Plan(
    timing=Timing(every="1s"), task=Create(command="render", payload="{}"), overlap=Overlap.ALLOW
)
# Nobody answered, or refused: nothing is known, or nothing was done.
LOST = (AnswerLost, NotReached, TimeoutError, CodeqError)


class Scheduled:
    """What people and workers ask of a cluster."""

    def __init__(self, brokers: SimBrokers) -> None:
        self.brokers = brokers

    async def put(
        self, node_id: str, name: str = "nightly", plan: Plan = SECONDLY
    ) -> ScheduleStands:
        """Create or change a schedule; called on the loop `outside`."""

        async def ask(broker: Broker) -> ScheduleStands:
            stands = await broker.schedules.put(_caller(), name, plan, self._timed(node_id, plan))
            assert isinstance(stands, ScheduleStands)
            return stands

        return await self.brokers.request(node_id, ask, give_up_s=PATIENCE_S)

    async def act(self, node_id: str, what: str, name: str) -> object:
        """Pause, resume, trigger or delete a schedule; called on the loop `outside`."""

        async def ask(broker: Broker) -> object:
            schedules, caller = broker.schedules, _caller()
            match what:
                case "pause":
                    return await schedules.pause(caller, name)
                case "resume":
                    timed = self._timed(node_id, SECONDLY)
                    return await schedules.resume(caller, name, timed, catch_up=True, version=0)
                case "trigger":
                    at_ms = self._wall_ms(node_id)
                    return await schedules.trigger(
                        caller, name, name=f"t.{at_ms}", at_ms=at_ms, overlap=None
                    )
                case _:
                    return await schedules.delete(caller, name)

        return await self.brokers.request(node_id, ask, give_up_s=PATIENCE_S)

    def made(self, node_id: str, name: str = "nightly", plan: Plan = SECONDLY) -> Schedule:
        """Create or change a schedule, and return it."""
        work = self.brokers.outside.create_task(self.put(node_id, name, plan))
        assert self.brokers.run_until(work.done, seconds=PATIENCE_S)
        return work.result().schedule

    def did(self, node_id: str, what: str, name: str = "nightly") -> None:
        """Pause, resume, trigger or delete a schedule."""
        work = self.brokers.outside.create_task(self.act(node_id, what, name))
        assert self.brokers.run_until(work.done, seconds=PATIENCE_S)
        work.result()

    async def work_off(self, node_id: str) -> bool:
        """Work on one task, if there is one; called on the loop `outside`."""

        async def claim(broker: Broker) -> Claimed:
            return await broker.claim(
                "", "ann", commands=("render",), count=1, lease_ms=2000, wait_s=0, timeout_s=4
            )

        got = await self.brokers.request(node_id, claim, give_up_s=PATIENCE_S)
        if not got.tasks:
            return False
        [task] = got.tasks
        new = NewResult(task_id=task.id, status="COMPLETED", body="{}", token=task.lease_token)

        async def submit(broker: Broker) -> object:
            return await broker.submit("", "ann", (new,), timeout_s=4)

        await self.brokers.request(node_id, submit, give_up_s=PATIENCE_S)
        return True

    def worked_off(self, node_id: str) -> bool:
        """Work on one task, and return whether there was one."""
        work = self.brokers.outside.create_task(self.work_off(node_id))
        assert self.brokers.run_until(work.done, seconds=2 * PATIENCE_S)
        return work.result()

    def at(self, name: str = "nightly") -> Schedule:
        """Return a schedule as the log has it."""
        [found] = [each for each in self.brokers.schedules.all if each.id == name]
        return found

    def shard(self, name: str = "nightly") -> int:
        """Return the shard of a schedule."""
        return schedule_shard("", name, self.brokers.settings.shards)

    def instants(self, name: str = "nightly") -> list[int]:
        """Return the seconds since the first whose runs were made."""
        made = [
            run.at_ms // 1000
            for run in self.brokers.schedules.runs
            if run.schedule == name and run.name.isdigit()
        ]
        return [each - made[0] for each in made]

    def calm(self, *, seconds: float = 20.0) -> None:
        """Heal everything, and require that nothing is overdue.

        Raises:
            InvariantBroken: W10, W13.
        """
        brokers = self.brokers
        brokers.cut(set())
        for node_id in brokers.ids:
            if node_id not in brokers.nodes:
                brokers.start(node_id)
        if not brokers.run_until(brokers.converged, seconds=seconds):
            raise InvariantBroken(Invariant.W10, "the replicas do not come together")
        brokers.run(LOOK_AGAIN_S + 1)
        overdue = brokers.schedules.overdue(self._wall_ms(brokers.ids[0]) - 1000)
        if overdue:
            raise InvariantBroken(Invariant.W13, f"{overdue[0]} is overdue")

    def _wall_ms(self, node_id: str) -> int:
        return self.brokers.nodes[node_id].clocks.wall_ms()

    def _timed(self, node_id: str, plan: Plan) -> Timed:
        at_ms = self._wall_ms(node_id)
        coming = next_after(plan.timing, at_ms)
        return Timed(
            at_ms=at_ms, next_ms=coming.ms if coming is not None else 0, zone_rules=zone_rules()
        )


class Crowd:
    """People and workers who ask at random, whatever the nodes live through."""

    def __init__(self, scheduled: Scheduled, random: Random) -> None:
        self._scheduled = scheduled
        self._random = random
        self.answered = 0

    async def meddle(self, until: float) -> None:
        """Put, pause, resume, trigger and delete schedules."""
        brokers, random = self._scheduled.brokers, self._random
        overlaps = {f"s-{overlap}": overlap for overlap in Overlap}
        while brokers.clock.now < until:
            name = random.choice(sorted(overlaps))
            timing = Timing(every=random.choice(("1s", "2s", "3s")))
            task, overlap = SECONDLY.task, overlaps[name]
            plan = Plan(timing=timing, task=task, overlap=overlap, note=str(random.randrange(9)))
            what = random.choice(("put", "put", "pause", "resume", "resume", "trigger", "delete"))
            node_id = random.choice(brokers.ids)
            try:
                if what == "put":
                    await self._scheduled.put(node_id, name, plan)
                else:
                    await self._scheduled.act(node_id, what, name)
                self.answered += 1
            except (*LOST, KeyError):
                pass  # A node that is down has no clock to ask either.
            await asyncio.sleep(random.uniform(0.05, 0.6))

    async def work(self, until: float) -> None:
        """Work off tasks."""
        brokers, random = self._scheduled.brokers, self._random
        while brokers.clock.now < until:
            try:
                found = await self._scheduled.work_off(random.choice(brokers.ids))
            except LOST:
                found = False
            await asyncio.sleep(random.uniform(0.01, 0.1) if found else random.uniform(0.1, 0.5))


def _caller() -> Caller:
    return Caller("", "op", deadline_in(TIMEOUT_S))
