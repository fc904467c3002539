"""A shard that this node leads, with its firer and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from codeq_cluster.broker.background import Background
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.budget import Budget
from codeq_cluster.core.items import Aside
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import ScheduleStands
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import Fire, Missed, Overlap, Plan, PutSchedule, Schedule, Timing
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Task
from codeq_cluster.firing.firer import ScheduleFirer
from codeq_cluster.schedules.due import next_after
from codeq_cluster.schedules.zones import zone_rules
from tests.fakes.memory_store import MemoryShard
from tests.harness.waiting import until
from tests.unit.broker.conftest import START_MS, Shard, TestClock, make_shard

MINUTE_MS = 60_000
FIRST_MS = START_MS // MINUTE_MS * MINUTE_MS + MINUTE_MS
EVERY_MINUTE = Plan(
    timing=Timing(every="1m"),
    task=Create(command="render", payload="{}"),
    overlap=Overlap.ALLOW,
    missed=Missed.ALL,
)
TIGHT = LifetimeRules(budgets={"tight": Budget(waiting_max=2)})


@dataclass
class Stage:
    """A shard that this node leads, and its firer.

    Attributes:
        fired: The operations that moved a schedule on, in order.
        due_ms: When the last run of each of these was due.
        missed: How many instants each of them has missed.
        failed: One for each schedule that was set aside.
        waits_s: By tenant, the answers to its next firings' question when they may create tasks.
    """

    shard: Shard
    firer: ScheduleFirer
    background: Background
    fired: list[Fire] = field(default_factory=list)
    due_ms: list[int] = field(default_factory=list)
    missed: list[int] = field(default_factory=list)
    failed: list[None] = field(default_factory=list)
    waits_s: dict[str, list[float]] = field(default_factory=dict)

    async def ask(self, *operations: Operation) -> list[object]:
        """Have something decided."""
        return list(await self.shard.engine.operate(operations))

    async def put(
        self, name: str, plan: Plan = EVERY_MINUTE, *, tenant: str = "acme", **fields: object
    ) -> Schedule:
        """Create or change a schedule, whose calendar begins with the clock."""
        at_ms = self.shard.clock.wall
        coming = next_after(plan.timing, at_ms)
        operation = PutSchedule(
            request=f"put-{name}-{at_ms}",
            tenant=tenant,
            id=name,
            by="op",
            plan=plan,
            at_ms=at_ms,
            next_ms=coming.ms if coming is not None else 0,
            zone_rules=zone_rules(),
        )
        [outcome] = await self.ask(replace(operation, **fields))
        assert isinstance(outcome, ScheduleStands)
        return outcome.schedule

    def note(self, operation: Fire, due_ms: int, missed: int) -> None:
        """Note that a schedule has fired."""
        self.fired.append(operation)
        self.due_ms.append(due_ms)
        self.missed.append(missed)

    def at(self, name: str, *, tenant: str = "acme") -> Schedule:
        """Return a schedule as it is stored."""
        record = self.shard.store.state.get(keyspace.item(ItemKind.SCHEDULE, tenant, name))
        assert record is not None
        found = records.decode_item(record)
        assert isinstance(found, Schedule)
        return found

    def runs(self) -> list[Task]:
        """Return the tasks of all runs, as they are stored."""
        rows = self.shard.store.state.scan(*keyspace.prefix_range(keyspace.TASK_PREFIX), 10_000)
        return [records.decode_task(value) for _, value in rows]

    def instants(self, name: str) -> list[int]:
        """Return the minutes that a schedule has made runs for, the first is 0."""
        runs = [each.more.run for each in self.runs() if each.more and each.more.run]
        return sorted(
            (each.at_ms - FIRST_MS) // MINUTE_MS for each in runs if each.schedule == name
        )

    def to_minute(self, number: int) -> None:
        """Set the clock to an instant, which no timer notices, and let the firer look."""
        self.shard.clock.pass_ms(FIRST_MS + number * MINUTE_MS - self.shard.clock.wall)
        self.firer.rows({})

    async def until_fired(self, name: str, *minutes: int) -> None:
        """Wait until a schedule has made these runs, and no other."""

        async def has() -> bool:
            return len(self.instants(name)) >= len(minutes)

        await until(has, what=f"runs of {name}")
        assert list(minutes) == self.instants(name)

    def asides(self) -> list[Aside]:
        """Return what is set aside."""
        rows = self.shard.store.state.scan(
            *keyspace.prefix_range(keyspace.item_prefix(ItemKind.ASIDE)), 10
        )
        found = [records.decode_item(value) for _, value in rows]
        return [each for each in found if isinstance(each, Aside)]

    async def until_set_aside(self) -> Aside:
        """Wait until something is set aside."""

        async def has() -> bool:
            return bool(self.asides())

        await until(has, what="what is set aside")
        [aside] = self.asides()
        return aside


def make_stage(
    *, rules: LifetimeRules | None = None, entry_bytes_max: int = 3 * 2**20, leads: bool = True
) -> Stage:
    """Return a stage."""
    shard = make_shard(MemoryShard(), TestClock(), rules=rules, entry_bytes_max=entry_bytes_max)
    shard.log.term = 4
    background = Background()
    fired: list[Fire] = []
    due_ms: list[int] = []
    failed: list[None] = []

    missed: list[int] = []

    def note(operation: Fire, at_ms: int, more: int) -> None:
        fired.append(operation)
        due_ms.append(at_ms)
        missed.append(more)

    waits_s: dict[str, list[float]] = {}
    firer = ScheduleFirer(
        shard.engine,
        shard.store.state,
        wall_ms=shard.clock.wall_ms,
        wait_s=_answering(waits_s),
        background=background,
        fired=note,
        failed=lambda: failed.append(None),
    )
    shard.engine.on_rows(firer.rows, keyspace.Family.FIRE)
    shard.engine.on_leader(firer.look)
    if leads:
        shard.log.lead()
    return Stage(shard, firer, background, fired, due_ms, missed, failed, waits_s)


def make_successor(stage: Stage) -> ScheduleFirer:
    """Return the firer of another node on the same shard."""
    return ScheduleFirer(
        stage.shard.engine,
        stage.shard.store.state,
        wall_ms=stage.shard.clock.wall_ms,
        wait_s=_answering(stage.waits_s),
        background=stage.background,
        fired=stage.note,
        failed=lambda: None,
    )


def _answering(waits_s: dict[str, list[float]]) -> Callable[[str, int], Awaitable[float]]:
    async def wait_s(tenant: str, count: int) -> float:
        assert count > 0
        answers = waits_s.get(tenant)
        return answers.pop(0) if answers else 0.0

    return wait_s


async def ended(stage: Stage) -> None:
    """End everything that a stage has begun."""
    stage.firer.stop()
    await stage.background.stop()
    stage.shard.engine.stop()
