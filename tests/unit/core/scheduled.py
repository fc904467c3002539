"""A shard with a schedule, and the operations with which most of its stories go on."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Cancel, Submit
from codeq_cluster.core.outcomes import Changed, Outcome, Rejected, ScheduleStands
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import (
    Backfill,
    BackfillSchedule,
    Due,
    FillBack,
    Fire,
    Overlap,
    Plan,
    PutSchedule,
    RunRow,
    Schedule,
    Timing,
    TriggerSchedule,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import Tally
from codeq_cluster.core.task import State, Task

from .shard import NOW_MS, RULES, Shard

NAME = "nightly"
MINUTE_MS = 60_000
TEMPLATE = Create(command="render", payload="{}", max_attempts=1)
PLAN = Plan(timing=Timing(every="1m"), task=TEMPLATE)


class Scheduled(Shard):
    """A shard whose one schedule has an instant every minute after `NOW_MS`."""

    def __init__(self, rules: LifetimeRules = RULES, **plan: object) -> None:
        super().__init__(rules)
        self.put(**plan)

    @property
    def at(self) -> Schedule:
        """Return the schedule."""
        found = self.view.item(ItemKind.SCHEDULE, "acme", NAME)
        assert isinstance(found, Schedule)
        return found

    @property
    def tally(self) -> int:
        """Return how many schedules the shard says that the tenant has."""
        found = self.view.item(ItemKind.TALLY, "acme", "schedules")
        assert found is None or isinstance(found, Tally)
        return found.count if found is not None else 0

    def put(self, *, name: str = NAME, at_ms: int = NOW_MS, **plan: object) -> Outcome:
        """Create or change a schedule."""
        return self.ask(put(name=name, at_ms=at_ms, plan=replace(PLAN, **plan)))

    def stands(self, outcome: Outcome) -> Schedule:
        """Return the schedule of an answer, which is that of the shard."""
        assert isinstance(outcome, ScheduleStands)
        assert outcome.schedule == self.at
        return outcome.schedule

    def fire(self, *minutes: int, missed: int = 0, late: bool = False) -> Outcome:
        """Fire the instants of some minutes, in order; `missed` come behind them."""
        return self.ask(self.firing(*minutes, missed=missed, late=late))

    def firing(self, *minutes: int, missed: int = 0, late: bool = False) -> Fire:
        """Return the leader's operation for some minutes."""
        last = (minutes[-1] if minutes else 0) + missed
        at = self.at
        return Fire(
            tenant="acme",
            id=NAME,
            generation=at.generation,
            version=at.version,
            from_ms=at.done_ms,
            runs=tuple(Due(minute(each), f"minute {each}", 0, late) for each in minutes),
            missed=missed,
            done_ms=minute(last),
            next_ms=minute(last + 1),
            zone_rules="2026b",
        )

    def trigger(self, name: str, overlap: Overlap | None = None) -> Outcome:
        """Ask for a run."""
        return self.ask(
            TriggerSchedule(
                request=f"request-{name}",
                tenant="acme",
                id=NAME,
                by="ops",
                name=name,
                at_ms=self.view.now_ms,
                overlap=overlap,
            )
        )

    def backfill(self, to: int, **fields: object) -> Outcome:
        """Begin a backfill of the minutes from 1 on."""
        walk = Backfill(name="b", done_ms=NOW_MS, to_ms=minute(to), overlap=Overlap.QUEUE)
        return self.ask(
            BackfillSchedule(
                request="backfill",
                tenant="acme",
                id=NAME,
                by="ops",
                backfill=replace(walk, **fields),
            )
        )

    def fill(self, *minutes: int, done: int = 0) -> Outcome:
        """Take a step of the backfill."""
        return self.ask(self.filling(*minutes, done=done))

    def filling(self, *minutes: int, done: int = 0) -> FillBack:
        """Return the leader's operation for a step."""
        walk = self.at.backfill
        return FillBack(
            tenant="acme",
            id=NAME,
            generation=self.at.generation,
            from_ms=walk.done_ms if walk is not None else 0,
            runs=tuple(Due(minute(each), "", 0, True) for each in minutes),
            done_ms=minute(done or minutes[-1]),
        )

    def run(self, name: str | int) -> Task:
        """Return the task of a run, by the minute of its instant or by its name."""
        wanted = str(minute(name)) if isinstance(name, int) else name
        [task] = [task for task in self.runs() if task.more.run.name == wanted]  # type: ignore[union-attr]
        return task

    def runs(self) -> list[Task]:
        """Return the tasks of all runs, in the order in which they were made."""
        return [task for task in self.view.tasks.values() if task.more and task.more.run]

    def end(self, name: str | int, *, status: str = "COMPLETED") -> None:
        """Let a run end: its worker says so, or somebody cancels it."""
        task = self.run(name)
        if status == "CANCELLED":
            self.ask(Cancel(request=f"cancel-{task.id}", id=task.id, tenant="acme"))
            return
        while task.state is not State.LEASED:
            self.claim(request=f"claim-{task.id}-{len(self.view.tasks)}-{task.updated_ms}")
            task = self.run(name)
        self.ask(
            Submit(
                request=f"submit-{task.id}",
                id=task.id,
                tenant="acme",
                worker="ann",
                status=status,
                body="{}" if status == "COMPLETED" else "",
                error="" if status == "COMPLETED" else "broken",
            )
        )

    def open(self) -> list[int]:
        """Return the minutes of the runs that are open."""
        return minutes_of(self.at.open)

    def queued(self) -> list[int]:
        """Return the minutes of the runs that wait for these."""
        return minutes_of(self.at.queued)


def put(
    *, name: str = NAME, at_ms: int = NOW_MS, plan: Plan = PLAN, **fields: object
) -> PutSchedule:
    """Return a plan that begins at an instant, under a request of its own."""
    made = PutSchedule(
        request=f"put-{at_ms}-{hash(plan)}",
        tenant="acme",
        id=name,
        by="ops",
        plan=plan,
        at_ms=at_ms,
        next_ms=at_ms + MINUTE_MS,
        zone_rules="2026a",
    )
    return replace(made, **fields)


def minute(number: int) -> int:
    """Return an instant of the schedule."""
    return NOW_MS + number * MINUTE_MS


def minutes_of(rows: tuple[RunRow, ...]) -> list[int]:
    """Return the minutes that runs stand for."""
    return [(row.at_ms - NOW_MS) // MINUTE_MS for row in rows]


def row(number: int, **fields: object) -> RunRow:
    """Return an open run of a minute."""
    made = RunRow(name=str(minute(number)), at_ms=minute(number), task_id=f"task-{number}")
    return replace(made, **fields)


def given(shard: Scheduled, **fields: object) -> None:
    """Put the schedule into a state."""
    shard.view.items[ItemKind.SCHEDULE, "acme", NAME] = replace(shard.at, **fields)


def refused(outcome: Outcome) -> tuple[str, str]:
    """Return why something was refused."""
    assert isinstance(outcome, Rejected)
    return outcome.rejection.value, outcome.limit


NOTHING = Changed(0)
DONE = Changed(1)
