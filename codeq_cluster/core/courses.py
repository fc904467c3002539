"""Courses: schedules on their way through one decision.

A decision may change a schedule several times: each instant that fires, each end of a run. Its
course gathers them, so that the schedule's row is written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from codeq_cluster.core import task_ids
from codeq_cluster.core.cancelling import cancel_change
from codeq_cluster.core.changes import Change, ItemChange, TaskChange
from codeq_cluster.core.creating import made, refusal_of_new
from codeq_cluster.core.outcomes import How, Rejected, Rejection
from codeq_cluster.core.placing import kept_id
from codeq_cluster.core.relays import Effect, RelayedCancel, RelayedTask
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import (
    FIRED_MAX,
    OPEN_MAX,
    PAUSED_BY_FAILURES,
    QUEUED_MAX,
    RECENT_MAX,
    Overlap,
    RunEnded,
    RunRow,
    Schedule,
    schedule_shard,
)
from codeq_cluster.core.sending import RUN_PLACE, Cause, sent
from codeq_cluster.core.sharding import shard_of, with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import COMPLETED, More, Run, State, Task
from codeq_cluster.core.transitions import CANCELLED
from codeq_cluster.core.view import View


class Course:
    """The course of one schedule through one decision.

    Attributes:
        at: The schedule as it is so far.
    """

    def __init__(self, view: View, found: Schedule, rules: LifetimeRules) -> None:
        self._view = view
        self._rules = rules
        self._before = found
        self._tasks: list[TaskChange] = []
        self._sent: list[ItemChange] = []
        self.at = found

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return everything that the decision changes for it."""
        own = () if self.at == self._before else (ItemChange(before=self._before, after=self.at),)
        return *self._tasks, *self._sent, *own

    def admit(self, row: RunRow, overlap: Overlap) -> How | Rejected:
        """Begin a run, or do with it what is to be done while others are open.

        A run whose task is kept, or that waits already, is not made twice.
        """
        at = self.at
        if self._view.task(self.task_id(row.name)) is not None or _names(at.open, row):
            return How.CREATED
        if _names(at.queued, row):
            return How.QUEUED
        if overlap is Overlap.CANCEL and at.open:
            return self._replace_open(row)
        if not at.open or (overlap is Overlap.ALLOW and len(at.open) < OPEN_MAX):
            return self._begin(row)
        room = {Overlap.QUEUE: QUEUED_MAX, Overlap.QUEUE_ONE: 1}.get(overlap, 0)
        if len(at.queued) < room:
            self.at = replace(at, queued=(*at.queued, row))
            return How.QUEUED
        self.at = replace(at, skipped=at.skipped + 1)
        return How.SKIPPED

    def ended(self, end: RunEnded) -> None:
        """Note the end of a run's task; the first run that waits begins if no other is open."""
        run, status = end.run, end.status
        row = next((each for each in self.at.open if each.name == run.name), None)
        if run.generation != self.at.generation or row is None:
            return
        self._close((row,), status, ended_ms=end.ended_ms)
        at = self.at
        failures = 0 if status == COMPLETED else at.failures + (status != CANCELLED)
        at = replace(at, failures=failures)
        if 0 < at.plan.pause_after <= failures and not at.paused_ms:
            at = replace(at, paused_ms=self._view.now_ms, paused_by=PAUSED_BY_FAILURES)
        self.at = at
        self.go_on()

    def go_on(self) -> None:
        """Begin the first run that waits if no other is open; one whose task is kept has run."""
        while self.at.queued and not self.at.open and not self.at.holds_queue:
            first, *others = self.at.queued
            self.at = replace(self.at, queued=tuple(others))
            self._make(first)

    def task_id(self, name: str) -> str:
        """Return the id of the task of a run."""
        at = self.at
        return kept_id(
            self._drawn(name),
            at.plan.task,
            at.tenant,
            home=self._home,
            shards=self._rules.shards,
            pins=self._view.pins,
            is_there=lambda task_id: self._view.task(task_id) is not None,
        )

    @property
    def _home(self) -> int:
        return schedule_shard(self.at.tenant, self.at.id, self._rules.shards)

    def _drawn(self, name: str) -> str:
        at = self.at
        return task_ids.derived(at.tenant, f"{at.id}.{at.generation}.{name}")

    def _begin(self, row: RunRow) -> How | Rejected:
        refused = self._refusal(row)
        if refused is not None:
            return refused
        self._make(row)
        return How.CREATED

    def _refusal(self, row: RunRow, *, ending: Sequence[TaskChange] = ()) -> Rejected | None:
        """Return why a run does not begin once some others have ended, or None."""
        create = replace(self.at.plan.task, id=self.task_id(row.name), tenant=self.at.tenant)
        tasks = (*self._tasks, *ending)
        begun = sum(change.before is None for change in tasks) - sum(map(_was_waiting, tasks))
        return refusal_of_new(self._view, create, self._rules, begun=begun)

    def _make(self, row: RunRow) -> None:
        at, task_id = self.at, self.task_id(row.name)
        create = replace(at.plan.task, id=task_id, tenant=at.tenant)
        run = Run(
            schedule=at.id,
            generation=at.generation,
            name=row.name,
            at_ms=row.at_ms,
            late=row.late,
        )
        more = More(run=run)
        if shard_of(task_id, self._rules.shards) != self._home:
            # Its key belongs on another shard; its end comes back from there.
            self._send(row.name, RelayedTask(create, more), position=0)
        else:
            change = made(self._view, create, self._rules, more=more)
            if change is None:
                return
            self._tasks.append(change)
        begun = replace(row, task_id=task_id, made_ms=self._view.now_ms)
        self.at = replace(at, open=(*at.open, begun))

    def _send(self, name: str, effect: Effect, *, position: int) -> None:
        """Put an effect of a run into the line to the shard of its task."""
        local = with_shard(self._drawn(name), shards=self._rules.shards, wanted=self._home)
        shard = effect.home(self._rules.shards)
        cause = Cause(f"{local}.{position}.{RUN_PLACE}", local, shard, effect)
        self._sent += sent(self._view, (cause,))

    def _replace_open(self, row: RunRow) -> How | Rejected:
        """Begin a run in the place of the open ones, of which one decision cancels some.

        A run that this decision has begun here is not in the view yet, so the next decision cancels
        it. One of another shard is cancelled by a relay, behind the one that has made it.
        """
        begun = {change.after.id for change in self._tasks if change.after and not change.before}
        if any(each.task_id in begun for each in self.at.open):
            return How.LATER
        some = self.at.open[:FIRED_MAX]
        ending = list(self._cancels(some, f"{self.at.generation}.{row.name}"))
        refused = self._refusal(row, ending=ending)
        if refused is not None:
            return refused  # So nothing is cancelled for it.
        self._tasks += ending
        for each in some:
            if shard_of(each.task_id, self._rules.shards) != self._home:
                request = f"{self.at.generation}.{row.name}"
                cancel = RelayedCancel(self.at.tenant, each.task_id, request)
                self._send(each.name, cancel, position=1)
        self._close(some, CANCELLED, ended_ms=self._view.now_ms)
        if self.at.open:
            return How.LATER
        self._make(row)
        return How.CREATED

    def _cancels(self, rows: Iterable[RunRow], request: str) -> Iterator[TaskChange]:
        for row in rows:
            task = self._view.task(row.task_id)
            if task is not None and not task.state.terminal:
                yield cancel_change(self._view, task, self._rules, request=request)

    def _close(self, rows: tuple[RunRow, ...], status: str, *, ended_ms: int) -> None:
        closed = tuple(replace(row, status=status, ended_ms=ended_ms) for row in rows)
        at = self.at
        self.at = replace(
            at,
            open=tuple(row for row in at.open if row not in rows),
            recent=(*at.recent, *closed)[-RECENT_MAX:],
        )


def status_of(task: Task) -> str:
    """Return how a task has ended, as its schedule keeps it."""
    if task.state is State.DEAD:
        return State.DEAD.name
    if task.state is State.DONE:
        return COMPLETED
    return CANCELLED if task.error == CANCELLED else State.FAILED.name


class Courses:
    """The courses of all schedules that a decision changes."""

    def __init__(self, view: View, rules: LifetimeRules) -> None:
        self._view = view
        self._rules = rules
        self._known: dict[tuple[str, str], Course | None] = {}

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return everything that the decision changes for them."""
        courses = (course for course in self._known.values() if course is not None)
        return tuple(change for course in courses for change in course.changes)

    def ended(self, end: RunEnded) -> None:
        """Note the end of a run's task; its schedule may be gone."""
        name = end.tenant, end.run.schedule
        if name not in self._known:
            found = self._view.item(ItemKind.SCHEDULE, *name)
            self._known[name] = (
                Course(self._view, found, self._rules) if isinstance(found, Schedule) else None
            )
        course = self._known[name]
        if course is not None:
            course.ended(end)


def over_budget(how: How | Rejected) -> bool:
    """Return whether a run does not begin because the tenant has no room for it now."""
    return isinstance(how, Rejected) and how.rejection is Rejection.BUDGET_EXCEEDED


def _names(rows: Iterable[RunRow], run: RunRow) -> bool:
    return any(each.name == run.name for each in rows)


def _was_waiting(change: TaskChange) -> bool:
    return change.before is not None and change.before.state is not State.LEASED
