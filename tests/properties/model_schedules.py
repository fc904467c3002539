"""The schedules of the model: a dictionary of fields each, and what becomes of their runs."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec.structs import replace

from codeq_cluster.core import task_ids
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.schedules import (
    BackfillSchedule,
    DeleteSchedule,
    FillBack,
    Fire,
    Overlap,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    RunEnded,
    RunRow,
    Schedule,
    TriggerSchedule,
)
from codeq_cluster.core.task import Run

from .model_items import Answer, Fields, Items

OPEN_MAX = 1000
RECENT_MAX = 10
ROOM = {Overlap.QUEUE: 1000, Overlap.QUEUE_ONE: 1}

Asked = (
    PutSchedule
    | DeleteSchedule
    | PauseSchedule
    | ResumeSchedule
    | TriggerSchedule
    | BackfillSchedule
    | Fire
    | FillBack
)


class Tasks(Protocol):
    """The tasks of the model, as far as schedules need them."""

    beside: Items

    def has(self, task_id: str) -> bool:
        """Return whether there is such a task."""

    def usage(self, tenant: str) -> tuple[int, int]:
        """Return how many of a tenant's tasks wait, and the bytes of all."""

    def refusal_of_run(self, create: Create, *, begun: int, before: tuple[int, int]) -> Answer:
        """Return why a run cannot begin, or nothing."""

    def begin_run(self, create: Create, run: Run) -> None:
        """Make a run's task."""

    def is_waiting(self, task_id: str) -> bool:
        """Return whether a run's task waits for a worker."""

    def cancel_run(self, task_id: str, request: str) -> None:
        """End a run's task, unless it has ended."""


class Schedules:
    """What operations on schedules do; their rows are among the items."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._begun: set[str] = set()
        self._freed = 0
        self._before = (0, 0)

    def ask(self, asked: Asked) -> Answer:  # noqa: C901 - a line an operation
        """Perform the operation and return its answer."""
        rows = self._tasks.beside.schedules
        found = rows.get((asked.tenant, asked.id))
        self._begun = set()
        # What the tenant has before any of this: as the rule does, it is weighed with these.
        self._before = self._tasks.usage(asked.tenant)
        self._freed = 0
        match asked:
            case PutSchedule():
                return self._put(asked, found)
            case DeleteSchedule():
                return self._delete(asked, found)
            case Fire():
                return self._fire(asked, found)
            case FillBack():
                return self._fill_back(asked, found)
            case _ if found is None:
                return "rejected", "not-found"
            case TriggerSchedule():
                return self._trigger(asked, found)
            case BackfillSchedule():
                return self._backfill(asked, found)
            case PauseSchedule():
                if not found["paused_ms"]:
                    found |= {"paused_ms": self._now_ms, "paused_by": asked.by}
                    self._done(found, asked, "pause")
            case ResumeSchedule():
                if found["paused_ms"]:
                    found |= {"paused_ms": 0, "paused_by": "", "failures": 0}
                    if not asked.catch_up:
                        _from_now(found, asked)
                    self._go_on(found)
                    self._done(found, asked, "resume")
        return _stands(found)

    def ended(self, end: RunEnded) -> None:
        """Note the end of a run."""
        at = self._tasks.beside.schedules.get((end.tenant, end.run.schedule))
        if at is None or at["generation"] != end.run.generation:
            return
        row = next((each for each in at["open"] if each.name == end.run.name), None)
        if row is None:
            return
        self._close(at, row, end.status, end.ended_ms)
        if end.status == "COMPLETED":
            at["failures"] = 0
        elif end.status != "CANCELLED":
            at["failures"] += 1
        if 0 < at["plan"].pause_after <= at["failures"] and not at["paused_ms"]:
            at |= {"paused_ms": self._now_ms, "paused_by": "failures"}
        self._go_on(at)

    @property
    def _now_ms(self) -> int:
        return self._tasks.beside.now_ms

    def _put(self, asked: PutSchedule, found: Fields | None) -> Answer:
        beside = self._tasks.beside
        if found is None:
            new = Schedule(tenant=asked.tenant, id=asked.id, plan=asked.plan, generation=0)
            made: Fields = {name: getattr(new, name) for name in new.__struct_fields__}
            made |= {"done_ms": asked.at_ms, "next_ms": asked.next_ms}
            made |= {"zone_rules": asked.zone_rules, "revision": asked.revision}
            made |= {"created_ms": self._now_ms, "updated_ms": self._now_ms}
            beside.schedules[asked.tenant, asked.id] = made
            beside.ungenerated.append((asked.tenant, asked.id))
            beside.tally(asked.tenant)
            self._done(made, asked, "put", "version 1")
            return _stands(made, made=True)
        if found["request"] == asked.request:
            return _stands(found, made=found["version"] == 1)
        if asked.own and found["plan"].owner != asked.plan.owner:
            return "rejected", "other-owner", *filter(None, [found["plan"].owner])
        if 0 < asked.revision < found["revision"]:
            return "rejected", "stale-revision", str(found["revision"])
        newer = asked.revision > found["revision"]
        found["revision"] = max(found["revision"], asked.revision)
        if asked.plan == found["plan"]:
            if newer:
                version = f"version {found['version']}"
                beside.put_on_record(asked, "schedule.put", asked.id, version)
            return _stands(found)
        was_idle = not found["paused_ms"] and (_is_over(found) or not found["next_ms"])
        if was_idle or asked.plan.timing != found["plan"].timing:
            _from_now(found, asked)
        found |= {"plan": asked.plan, "version": found["version"] + 1, "updated_ms": self._now_ms}
        self._done(found, asked, "put", f"version {found['version']}")
        return _stands(found)

    def _delete(self, asked: DeleteSchedule, found: Fields | None) -> Answer:
        if found is None:
            return "changed", 0
        if 0 < asked.revision < found["revision"]:
            return "rejected", "stale-revision", str(found["revision"])
        del self._tasks.beside.schedules[asked.tenant, asked.id]
        self._tasks.beside.tally(asked.tenant)
        self._tasks.beside.put_on_record(asked, "schedule.delete", asked.id)
        return "changed", 1

    def _trigger(self, asked: TriggerSchedule, found: Fields) -> Answer:
        known = [row for row in (*found["open"], *found["recent"]) if row.name == asked.name]
        if any(row.name == asked.name for row in found["queued"]):
            return "triggered", "queued", ""
        if known:
            return "triggered", "created", known[0].task_id
        before = dict(found)
        row = RunRow(name=asked.name, at_ms=asked.at_ms)
        how = self._admit(found, row, asked.overlap or found["plan"].overlap)
        if isinstance(how, tuple):
            return how
        if how == "skipped":
            found |= before
            return "triggered", "skipped", ""
        if found != before:
            self._tasks.beside.put_on_record(asked, "schedule.trigger", asked.id)
        return "triggered", how, _task_id(found, asked.name) if how == "created" else ""

    def _backfill(self, asked: BackfillSchedule, found: Fields) -> Answer:
        walk = found["backfill"]
        if walk is not None and walk.name != asked.backfill.name:
            return "rejected", "backfill-running"
        if walk is None and found["request"] != asked.request:
            found["backfill"] = asked.backfill
            self._done(found, asked, "backfill")
        return _stands(found)

    def _fire(self, asked: Fire, found: Fields | None) -> Answer:
        if found is None or found["paused_ms"] or found["done_ms"] != asked.from_ms:
            return "changed", 0
        if (found["generation"], found["version"]) != (asked.generation, asked.version):
            return "changed", 0
        for due in asked.runs:
            if _is_over(found):
                break
            row = RunRow(name=str(due.at_ms), at_ms=due.at_ms, late=due.late)
            how = self._admit(found, row, found["plan"].overlap)
            if how == "later" or how[:2] == ("rejected", "budget-exceeded"):
                if found["done_ms"] == asked.from_ms:
                    return how if isinstance(how, tuple) else ("changed", 1)
                found["next_ms"] = due.at_ms
                return "changed", 1
            found["done_ms"] = due.at_ms
            found["caught_up"] = found["caught_up"] + 1 if due.late else 0
            found["missed"] += due.missed + isinstance(how, tuple)
            if how in ("created", "queued"):
                found["made"] += 1
                found |= {"last_ms": due.at_ms, "last_local": due.local, "last_fold": due.fold}
        found |= {"done_ms": asked.done_ms, "next_ms": asked.next_ms}
        found["missed"] += asked.missed
        found["zone_rules"] = asked.zone_rules
        return "changed", 1

    def _fill_back(self, asked: FillBack, found: Fields | None) -> Answer:
        if found is None or found["generation"] != asked.generation:
            return "changed", 0
        walk = found["backfill"]
        if walk is None or walk.done_ms != asked.from_ms:
            return "changed", 0
        for number, due in enumerate(asked.runs):
            name = f"{due.at_ms}.{walk.name}" if walk.force else str(due.at_ms)
            before = found["open"], found["queued"]
            row = RunRow(name=name, at_ms=due.at_ms, late=True)
            how = self._admit(found, row, walk.overlap)
            if how == "later" or how[:2] == ("rejected", "budget-exceeded"):
                return how if isinstance(how, tuple) and not number else ("changed", 1)
            is_made = how in ("created", "queued") and before != (found["open"], found["queued"])
            walk = replace(walk, done_ms=due.at_ms, made=walk.made + is_made)
            found["backfill"] = walk
        is_over = asked.done_ms >= walk.to_ms
        found["backfill"] = None if is_over else replace(walk, done_ms=asked.done_ms)
        return "changed", 1

    def _admit(self, at: Fields, row: RunRow, overlap: Overlap) -> str | Answer:
        is_open = any(each.name == row.name for each in at["open"])
        if is_open or self._tasks.has(_task_id(at, row.name)):
            return "created"
        if any(each.name == row.name for each in at["queued"]):
            return "queued"
        create = replace(at["plan"].task, id=_task_id(at, row.name), tenant=at["tenant"])
        if overlap is Overlap.CANCEL and at["open"]:
            if any(each.task_id in self._begun for each in at["open"]):
                return "later"
            would_free = sum(self._tasks.is_waiting(each.task_id) for each in at["open"])
            begun = len(self._begun) - self._freed - would_free
            refused = self._tasks.refusal_of_run(create, begun=begun, before=self._before)
            if refused:
                return refused  # And nothing is cancelled for it.
            self._freed += would_free
            for each in at["open"]:
                self._tasks.cancel_run(each.task_id, f"{at['generation']}.{row.name}")
                self._close(at, each, "CANCELLED", self._now_ms)
        if not at["open"] or (overlap is Overlap.ALLOW and len(at["open"]) < OPEN_MAX):
            begun = len(self._begun) - self._freed
            refused = self._tasks.refusal_of_run(create, begun=begun, before=self._before)
            if refused:
                return refused
            self._begin(at, row)
            return "created"
        if len(at["queued"]) < ROOM.get(overlap, 0):
            at["queued"] += (row,)
            return "queued"
        at["skipped"] += 1
        return "skipped"

    def _begin(self, at: Fields, row: RunRow) -> None:
        task_id = _task_id(at, row.name)
        if self._tasks.has(task_id):
            return
        run = Run(
            schedule=at["id"],
            generation=at["generation"],
            name=row.name,
            at_ms=row.at_ms,
            late=row.late,
        )
        create = replace(at["plan"].task, id=task_id, tenant=at["tenant"])
        self._tasks.begin_run(create, run)
        self._begun.add(task_id)
        at["open"] += (replace(row, task_id=task_id, made_ms=self._now_ms),)

    def _go_on(self, at: Fields) -> None:
        while at["queued"] and not at["open"] and at["paused_by"] != "failures":
            first, *others = at["queued"]
            at["queued"] = tuple(others)
            self._begin(at, first)

    def _close(self, at: Fields, row: RunRow, status: str, ended_ms: int) -> None:
        at["open"] = tuple(each for each in at["open"] if each is not row)
        closed = replace(row, status=status, ended_ms=ended_ms)
        at["recent"] = (*at["recent"], closed)[-RECENT_MAX:]

    def _done(self, at: Fields, asked: Any, action: str, detail: str = "") -> None:
        at["request"] = asked.request
        self._tasks.beside.put_on_record(asked, f"schedule.{action}", asked.id, detail)


def _from_now(at: Fields, asked: PutSchedule | ResumeSchedule) -> None:
    at["done_ms"] = max(at["done_ms"], asked.at_ms)
    at["next_ms"] = max(asked.next_ms, at["done_ms"] + 1) if asked.next_ms else 0
    at["zone_rules"] = asked.zone_rules


def _is_over(at: Fields) -> bool:
    return 0 < at["plan"].max_runs <= at["made"]


def _task_id(at: Fields, name: str) -> str:
    """Return the id of a run's task; the model has one shard."""
    return task_ids.derived(at["tenant"], f"{at['id']}.{at['generation']}.{name}")


def _stands(at: Fields, *, made: bool = False) -> Answer:
    return "schedule", at["id"], at["version"], made
