"""Simulated schedules: what the routes of schedules do, without HTTP."""

from __future__ import annotations

from codeq_cluster.api.routes.task_views import task_view
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.requests.schedules import Timed
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Rejected, ScheduleStands
from codeq_cluster.core.schedules import Backfill, Overlap, Plan, Schedule, Timing
from codeq_cluster.schedules.due import next_after
from codeq_cluster.schedules.zones import zone_rules
from jepsen_lite.history import Args, Counts, F, Out, Run
from jepsen_lite.taken import taken
from tests.simulator.brokers import SimBrokers

TENANT = ""


class SimSchedules:
    """Operations on the schedules of a simulated cluster."""

    def __init__(self, brokers: SimBrokers, *, timeout_s: float) -> None:
        self._brokers = brokers
        self._timeout_s = timeout_s

    async def serve(self, broker: Broker, f: F, args: Args, node: str) -> Out:
        """Call the node as the route does, and return what a client reads in the answer."""
        caller, schedules = self._caller(), broker.schedules
        match f:
            case F.PUT_SCHEDULE:
                plan = _plan(args)
                timed = self._timed(node, plan.timing)
                return _counted(await schedules.put(caller, args.schedule, plan, timed))
            case F.PAUSE_SCHEDULE:
                return _counted(await schedules.pause(caller, args.schedule))
            case F.BACKFILL:
                walk = Backfill(
                    name=args.idempotency_key,
                    done_ms=args.from_ms - 1,
                    to_ms=args.to_ms,
                    overlap=Overlap.QUEUE,
                )
                return _counted(await schedules.backfill(caller, args.schedule, walk))
            case F.SCHEDULE:
                found = await schedules.get(caller, args.schedule)
                return Out(http=404, absent=True) if found is None else _shown(found)
            case _:
                return Out(http=200, runs=tuple(self._runs(node)))

    def _caller(self) -> Caller:
        return Caller(TENANT, "operator", deadline_in(self._timeout_s))

    def _timed(self, node: str, timing: Timing) -> Timed:
        at_ms = self._brokers.nodes[node].clocks.wall_ms()
        coming = next_after(timing, at_ms)
        return Timed(
            at_ms=at_ms, next_ms=coming.ms if coming is not None else 0, zone_rules=zone_rules()
        )

    def _runs(self, node: str) -> list[Run]:
        """Return the tasks of all runs, as the node has them: it is asked at rest alone."""
        states = self._brokers.nodes[node].states
        prefix = keyspace.prefix_range(keyspace.TASK_PREFIX)
        rows = [row for state in states for row in state.scan(*prefix, 100_000)]
        tasks = [records.decode_task(value) for _, value in rows]
        return [
            Run(
                task=task.id,
                schedule=task.more.run.schedule,
                at_ms=task.more.run.at_ms,
                created_ms=task.created_ms,
                changed_ms=task.updated_ms,
                status=str(task_view(task, "{}", shards=len(states)).status),
                error=task.error,
            )
            for task in tasks
            if task.more is not None and task.more.run is not None
        ]


def _plan(args: Args) -> Plan:
    asked = args.plan
    assert asked is not None
    timing = Timing(cron=asked.cron, every=asked.every, zone=asked.zone)
    task = Create(command=args.command, payload="{}")
    return Plan(timing=timing, task=task, overlap=Overlap(asked.overlap), note=asked.note)


def _counted(outcome: ScheduleStands | Rejected) -> Out:
    return _shown(taken(outcome).schedule)


def _shown(at: Schedule) -> Out:
    coming = next_after(at.plan.timing, at.done_ms)
    counts = Counts(
        next_ms=coming.ms if coming is not None else 0,
        made=at.made,
        missed=at.missed,
        skipped=at.skipped,
        paused=at.paused_by,
        filling=at.backfill is not None,
    )
    return Out(http=200, counts=counts)
