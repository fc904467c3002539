"""Schedule rules: what people do with schedules, what leaders decide, and how runs end."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from msgspec.structs import replace

from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Cancel, Claim, Operation, Submit
from codeq_cluster.core.relays import Relayed, TakeRelays
from codeq_cluster.core.schedules import (
    Backfill,
    BackfillSchedule,
    DeleteSchedule,
    Due,
    FillBack,
    Fire,
    Overlap,
    PauseSchedule,
    Plan,
    PutSchedule,
    ResumeSchedule,
    RunEnded,
    Schedule,
    Timing,
    TriggerSchedule,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import SCHEDULES, Tally
from codeq_cluster.core.task import Run, Task

from .machine import Machine, commands, indexes, tenants
from .work_rules import hooks

STEP_MS = 10  # From one instant to the next, in all calendars.
ORIGIN = 7  # A shard that relays nothing but ends of runs.

names = st.sampled_from(["nightly", "nightly", "hourly"])
overlaps = st.sampled_from(Overlap)
plans = st.builds(
    Plan,
    timing=st.sampled_from([Timing(every="1m"), Timing(every="2m"), Timing(cron="* * * * *")]),
    task=st.builds(
        Create,
        command=commands,
        payload=st.sampled_from(['"one"', '"more"']),
        priority=st.sampled_from([0, 5, 9]),
        max_attempts=st.sampled_from([0, 1]),
        ttl_ms=st.sampled_from([0, 0, 10]),
        webhook=hooks,
    ),
    overlap=overlaps,
    max_runs=st.sampled_from([0, 0, 0, 3]),
    pause_after=st.sampled_from([0, 0, 0, 2]),
    owner=st.sampled_from(["", "", "reports"]),
)
instants = st.lists(st.tuples(st.booleans(), st.sampled_from([0, 0, 0, 2])), min_size=0, max_size=3)


class Scheduling(Machine):
    """Schedules, with an account of each that only the operations' answers are needed for."""

    def __init__(self) -> None:
        super().__init__()
        self.fired: set[tuple[str, str, int, str]] = set()  # Runs that instants have made.
        self.elsewhere: set[Run] = set()  # Runs whose end another shard has told.
        self.decided: Counter[int] = Counter()  # Instants, by generation.
        self.filled: Counter[int] = Counter()  # Those of them that backfills have skipped.
        self.done_ms: dict[int, int] = {}
        self.ends_sent = 0

    @invariant()
    def open_runs_are_those_that_have_not_ended(self) -> None:
        """Of the schedule's generation; a run that was revived has ended before."""
        for at in self.schedules():
            alive = {
                run.name
                for task in self.view.tasks.values()
                if (run := _run_of(task)) is not None
                and (task.tenant, run.schedule, run.generation) == (at.tenant, at.id, at.generation)
                and not task.endings
                and run not in self.elsewhere
            }

            assert alive == {row.name for row in at.open}
            assert len(at.open) == len(alive)
            assert at.open or not at.queued or at.holds_queue

    @invariant()
    def the_counts_agree_with_a_recount(self) -> None:
        """Each decided instant has made a run, was skipped or was missed."""
        for at in self.schedules():
            skipped = at.skipped - self.filled[at.generation]

            assert at.made + skipped + at.missed == self.decided[at.generation]

    @invariant()
    def what_is_decided_stays_decided(self) -> None:
        """And the next instant is behind it."""
        for at in self.schedules():
            assert at.done_ms >= self.done_ms.get(at.generation, 0)
            assert not at.next_ms or at.next_ms > at.done_ms
            self.done_ms[at.generation] = at.done_ms

    @invariant()
    def the_tally_is_the_number_of_schedules(self) -> None:
        """Of each tenant that has any."""
        tallies = self.items_of(ItemKind.TALLY)

        assert Counter(at.tenant for at in self.schedules()) == {
            each.tenant: each.count
            for each in tallies
            if isinstance(each, Tally) and each.id == SCHEDULES
        }

    def schedules(self) -> list[Schedule]:
        """Return all schedules."""
        return [each for each in self.items_of(ItemKind.SCHEDULE) if isinstance(each, Schedule)]

    def ask(self, operation: Operation) -> None:
        """Keep the account."""
        before = {at.generation: at for at in self.schedules()}
        known = set(self.view.tasks)
        super().ask(operation)
        if not isinstance(operation, Fire | FillBack):
            return
        at = self.view.item(ItemKind.SCHEDULE, operation.tenant, operation.id)
        if isinstance(at, Schedule) and at.generation in before:
            was = before[at.generation]
            if isinstance(operation, Fire):
                self._account(was, at, operation, known)
            else:
                self.filled[at.generation] += at.skipped - was.skipped

    def _account(self, was: Schedule, at: Schedule, operation: Fire, known: set[str]) -> None:
        left = at.plan.max_runs - was.made if at.plan.max_runs else 99
        taken = [due for due in operation.runs if was.done_ms < due.at_ms <= at.done_ms]
        if at.done_ms == was.done_ms:
            return
        made = at.made - was.made
        if made >= left:
            # It is over: what comes behind its last run is not counted.
            taken = [due for due in taken if due.at_ms <= at.last_ms]
        self.decided[at.generation] += len(taken) + sum(due.missed for due in taken)
        if at.done_ms == operation.done_ms and at.next_ms == operation.next_ms:
            self.decided[at.generation] += operation.missed
        for task_id in set(self.view.tasks) - known:
            run = _run_of(self.view.tasks[task_id])
            if run is not None and run.name in {str(due.at_ms) for due in taken}:
                name = at.tenant, at.id, at.generation, run.name

                assert name not in self.fired
                self.fired.add(name)

    # People.

    @initialize(plan=plans)
    def begin_with_a_schedule(self, plan: Plan) -> None:
        """Have one from the start, so that histories get far."""
        self._put("acme", "nightly", plan)

    @rule(
        tenant=tenants,
        name=names,
        plan=plans,
        behind_ms=st.sampled_from([0, 0, 0, 25]),
        ended=st.sampled_from([False, False, False, True]),
        revision=st.sampled_from([0, 0, 0, 1, 2]),
        own=st.booleans(),
    )
    def put_schedule(
        self,
        *,
        tenant: str,
        name: str,
        plan: Plan,
        behind_ms: int,
        ended: bool,
        revision: int,
        own: bool,
    ) -> None:
        """Create or change a schedule, perhaps by a clock that is behind."""
        at_ms = max(0, self.view.now_ms - behind_ms)
        next_ms = 0 if ended else at_ms + STEP_MS
        self._put(tenant, name, plan, at_ms=at_ms, next_ms=next_ms, revision=revision, own=own)

    def _put(self, tenant: str, name: str, plan: Plan, **fields: object) -> None:
        operation = PutSchedule(
            request=self.request(),
            tenant=tenant,
            id=name,
            by="op",
            plan=plan,
            at_ms=self.view.now_ms,
            next_ms=self.view.now_ms + STEP_MS,
            zone_rules="2026a",
        )
        self.ask(replace(operation, **fields))

    @precondition(lambda self: self.schedules())
    @rule(index=indexes, revision=st.sampled_from([0, 0, 1]), rare=st.integers(0, 2))
    def delete_schedule(self, index: int, revision: int, rare: int) -> None:
        """Delete a schedule; one that is not there is deleted as well."""
        at = self._pick(index)
        name = at.id if rare else "nobody"
        request = self.request()
        self.ask(
            DeleteSchedule(request=request, tenant=at.tenant, id=name, by="op", revision=revision)
        )

    @precondition(lambda self: self.schedules())
    @rule(index=indexes)
    def pause_schedule(self, index: int) -> None:
        """Pause a schedule, which may be paused."""
        at = self._pick(index)
        self.ask(PauseSchedule(request=self.request(), tenant=at.tenant, id=at.id, by="op"))

    @precondition(lambda self: self.schedules())
    @rule(index=indexes, catch_up=st.booleans())
    def resume_schedule(self, index: int, catch_up: bool) -> None:
        """Resume a schedule, a paused one if there is any."""
        paused = [at for at in self.schedules() if at.paused_ms] or self.schedules()
        at, now_ms = paused[index % len(paused)], self.view.now_ms
        self.ask(
            ResumeSchedule(
                request=self.request(),
                tenant=at.tenant,
                id=at.id,
                by="op",
                catch_up=catch_up,
                at_ms=now_ms,
                next_ms=now_ms + STEP_MS,
                zone_rules="2026b",
            )
        )

    @precondition(lambda self: self.schedules())
    @rule(index=indexes, name=st.integers(0, 5), overlap=st.one_of(st.none(), overlaps))
    def trigger_schedule(self, index: int, name: int, overlap: Overlap | None) -> None:
        """Ask for a run, perhaps again."""
        at = self._pick(index)
        self.ask(
            TriggerSchedule(
                request=self.request(),
                tenant=at.tenant,
                id=at.id,
                by="op",
                name=f"t.{name}",
                at_ms=self.view.now_ms,
                overlap=overlap,
            )
        )

    @precondition(lambda self: self.schedules())
    @rule(
        index=indexes,
        name=st.sampled_from(["b", "c"]),
        steps=st.integers(1, 4),
        overlap=overlaps,
        force=st.booleans(),
    )
    def backfill_schedule(
        self, *, index: int, name: str, steps: int, overlap: Overlap, force: bool
    ) -> None:
        """Begin a walk over instants that are decided."""
        at = self._pick(index)
        walk = Backfill(
            name=name,
            done_ms=max(1, at.done_ms - steps * STEP_MS),
            to_ms=max(1, at.done_ms),
            overlap=overlap,
            force=force,
        )
        self.ask(
            BackfillSchedule(
                request=self.request(), tenant=at.tenant, id=at.id, by="op", backfill=walk
            )
        )

    # Leaders.

    @precondition(lambda self: self.schedules())
    @rule(index=indexes, late=st.booleans(), most=st.integers(1, 3))
    def fire_in_a_row(self, index: int, late: bool, most: int) -> None:
        """Decide the next instants, none of which is missed."""
        self.fire(index=index, instants=[(late, 0)] * most, missed=0, last=False, skew="")

    @precondition(lambda self: self.schedules())
    @rule(
        index=indexes,
        instants=instants,
        missed=st.sampled_from([0, 0, 3]),
        last=st.sampled_from([False, False, False, True]),
        skew=st.sampled_from(["", "", "", "", "version", "generation", "from_ms"]),
    )
    def fire(
        self, *, index: int, instants: list[tuple[bool, int]], missed: int, last: bool, skew: str
    ) -> None:
        """Decide the next instants, perhaps by an older look at the schedule."""
        at = self._pick(index)
        at_ms, runs = at.done_ms, []
        for late, missed_before in instants:
            at_ms += (1 + missed_before) * STEP_MS
            runs.append(Due(at_ms, f"at {at_ms}", 0, late, missed_before))
        done_ms = at_ms + missed * STEP_MS
        operation = Fire(
            tenant=at.tenant,
            id=at.id,
            generation=at.generation,
            version=at.version,
            from_ms=at.done_ms,
            runs=tuple(runs),
            missed=missed,
            done_ms=done_ms,
            next_ms=0 if last else done_ms + STEP_MS,
            zone_rules="2026b",
        )
        if skew:
            operation = replace(operation, **{skew: getattr(operation, skew) - 1})
        self.ask(operation)

    @precondition(lambda self: any(at.backfill for at in self.schedules()))
    @rule(index=indexes, most=st.integers(0, 3), skew=st.sampled_from([0, 0, 0, 1]))
    def fill_back(self, index: int, most: int, skew: int) -> None:
        """Take a step of a backfill."""
        walks = [(at, at.backfill) for at in self.schedules() if at.backfill is not None]
        at, walk = walks[index % len(walks)]
        found = list(range(walk.done_ms + STEP_MS, walk.to_ms + 1, STEP_MS))[:most]
        self.ask(
            FillBack(
                tenant=at.tenant,
                id=at.id,
                generation=at.generation,
                from_ms=walk.done_ms - skew,
                runs=tuple(Due(at_ms, "", 0, True) for at_ms in found),
                done_ms=found[-1] if found and len(found) == most else walk.to_ms,
            )
        )

    # Ends; other rules bring some as well.

    @precondition(lambda self: any(at.open for at in self.schedules()))
    @rule(index=indexes, how=st.sampled_from(["done", "failed", "cancel", "relay", "relay"]))
    def end_run(self, index: int, how: str) -> None:
        """Let an open run end; or another shard tells of it, where a restore has put its task."""
        rows = [(at, row) for at in self.schedules() for row in at.open]
        at, row = rows[index % len(rows)]
        run = Run(
            schedule=at.id,
            generation=at.generation,
            name=row.name,
            at_ms=row.at_ms,
            late=row.late,
        )
        if how == "relay":
            self.ends_sent += 1
            self.elsewhere.add(run)
            end = RunEnded(tenant=at.tenant, run=run, status="FAILED", ended_ms=self.view.now_ms)
            relays = (Relayed(self.ends_sent, end),)
            self.ask(TakeRelays(origin=ORIGIN, after=self.ends_sent - 1, relays=relays))
        elif how == "cancel":
            self.ask(Cancel(request=self.request(), id=row.task_id, tenant=at.tenant))
        else:
            self._work_off(self.view.tasks[row.task_id], how)

    def _work_off(self, task: Task, how: str) -> None:
        self.ask(
            Claim(
                request=self.request(),
                tenant=task.tenant,
                worker="ann",
                commands=(task.command,),
                count=5,
                lease_ms=40,
            )
        )
        held = self.view.tasks[task.id]
        self.ask(
            Submit(
                request=self.request(),
                id=task.id,
                tenant=task.tenant,
                worker=held.worker or "ann",
                status="COMPLETED" if how == "done" else "FAILED",
                body="{}" if how == "done" else "",
                error="" if how == "done" else "broken",
            )
        )

    def _pick(self, index: int) -> Schedule:
        found = self.schedules()
        return found[index % len(found)]


def _run_of(task: Task) -> Run | None:
    return task.more.run if task.more is not None else None
