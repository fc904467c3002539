"""Bulking: what bounds a tenant's jobs, and what a job does beside other jobs and its time."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.bulk import (
    CHANGED_MAX,
    JOBS_MAX,
    KEPT_JOBS,
    KEPT_MS,
    LIVE_JOBS,
    LIVE_MAX,
    SPARED_MS,
    STEP_MS,
    ActionKind,
    BulkAction,
    BulkJob,
    StartBulk,
    StopBulk,
)
from codeq_cluster.core.decide import decide
from codeq_cluster.core.items import Audit
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Advance, Operation, PutTopic
from codeq_cluster.core.outcomes import BulkStands, Outcome, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.selecting import Selection
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State
from tests.fakes.dict_view import DictView

RULES = LifetimeRules()


def start(name: str, *, leads: bool = True) -> StartBulk:
    """Return the start of a job that cancels all that is in a queue."""
    return StartBulk(
        request=f"r-{name}",
        tenant="acme",
        id=name,
        by="ops",
        select=Selection(queue="render"),
        action=BulkAction(kind=ActionKind.CANCEL),
        leads=leads,
    )


def stop(name: str) -> StopBulk:
    """Return the stop of a job."""
    return StopBulk(request=f"s-{name}", tenant="acme", id=name, by="ann")


def ask(view: DictView, operation: Operation) -> Outcome:
    """Decide, and apply."""
    decision = decide(view, operation, RULES)
    view.advance(decision.changes)
    return decision.outcome


def passed(view: DictView, ms: int) -> None:
    """Let time pass, and act once."""
    view.now_ms += ms
    ask(view, Advance(count=256))


def job(view: DictView, name: str) -> BulkJob:
    """Return a job."""
    found = view.item(ItemKind.BULK, "acme", name)
    assert isinstance(found, BulkJob)
    return found


def filled(tasks: int) -> DictView:
    """Return a queue with tasks, on a shard where the first step of a job comes at its earliest."""
    view = DictView(now_ms=1_000_000, draw=0.0)
    for number in range(tasks):
        ask(view, Create(id=f"t{number:04}", tenant="acme", command="Render", payload="1"))
    return view


def states(view: DictView) -> list[State]:
    """Return the states of all tasks, by id."""
    return [view.tasks[name].state for name in sorted(view.tasks)]


def test_a_tenant_has_so_many_jobs() -> None:
    """Beyond the bound none begins; beyond that of all that are kept the first ended one goes.

    One that began within the hour does not, on no shard: the next start is refused instead.
    """
    view = filled(0)
    for number in range(LIVE_MAX):
        ask(view, start(f"live{number}"))
    refused = ask(view, start("more"))
    other = ask(view, StartBulk(**{**_fields(start("theirs")), "tenant": "other"}))
    for number in range(LIVE_MAX):
        ask(view, stop(f"live{number}"))
    view.now_ms += SPARED_MS
    for number in range(JOBS_MAX):
        view.now_ms += 1
        ask(view, start(f"job{number:03}"))
        ask(view, stop(f"job{number:03}"))
    kept = [each.id for each in view.bulk_jobs("acme")]
    first = job(view, "job000")
    view.now_ms = first.until_ms + SPARED_MS - 1
    full = ask(view, start("next"))
    view.now_ms += 1
    ask(view, start("next"))

    assert Rejected(Rejection.TOO_MANY, LIVE_JOBS) == refused
    assert isinstance(other, BulkStands)
    assert [f"job{number:03}" for number in range(JOBS_MAX)] == kept
    assert Rejected(Rejection.TOO_MANY, KEPT_JOBS) == full
    assert [*kept[1:], "next"] == [each.id for each in view.bulk_jobs("acme")]


def _fields(operation: StartBulk) -> dict[str, object]:
    return {name: getattr(operation, name) for name in operation.__struct_fields__}


def test_a_job_goes_on_in_steps_and_is_forgotten_after_a_day() -> None:
    """A step changes so many, its next one is due a moment later, and its end is no step."""
    view = filled(2 * CHANGED_MAX)
    ask(view, start("j"))
    passed(view, STEP_MS - 1)
    early = job(view, "j")
    passed(view, 1)
    first = job(view, "j")
    passed(view, 0)
    at_once = job(view, "j")
    passed(view, STEP_MS)
    last = job(view, "j")
    passed(view, KEPT_MS - 1)
    kept = job(view, "j")
    passed(view, 1)

    assert [0, CHANGED_MAX, CHANGED_MAX] == [early.changed, first.changed, at_once.changed]
    assert (2 * CHANGED_MAX, True) == (last.changed, last.ended_ms > 0)
    assert last == kept
    assert view.item(ItemKind.BULK, "acme", "j") is None


def test_a_job_rests_for_as_long_as_the_leader_says() -> None:
    """The leader knows how long a step takes; it says no less than the usual pause."""
    view = filled(3 * CHANGED_MAX)
    ask(view, start("j"))
    view.now_ms += STEP_MS
    ask(view, Advance(count=256, pause_ms=200))
    first = job(view, "j")
    view.now_ms += 200
    ask(view, Advance(count=256, pause_ms=1))
    second = job(view, "j")

    assert view.now_ms == first.expires_ms
    assert view.now_ms + STEP_MS == second.expires_ms
    assert 2 * CHANGED_MAX == second.changed


def test_a_step_that_does_not_fit_an_entry_is_smaller() -> None:
    """The leader asks for fewer changes then, down to one."""
    view = filled(CHANGED_MAX)
    ask(view, start("j"))
    view.now_ms += STEP_MS
    decided = decide(view, Advance(count=5), RULES)
    view.advance(decided.changes)

    assert 5 == job(view, "j").changed
    assert 5 == sum(state is State.FAILED for state in states(view))


def test_what_is_created_after_a_job_is_none_of_it() -> None:
    """The walk comes to it, and passes it by."""
    view = filled(3)
    ask(view, start("j"))
    view.now_ms += 1
    ask(view, Create(id="t9999", tenant="acme", command="Render", payload="1"))
    passed(view, STEP_MS)

    assert [*[State.FAILED] * 3, State.READY] == states(view)
    assert (4, 3, 3) == (job(view, "j").looked, job(view, "j").selected, job(view, "j").changed)


def test_a_stopped_job_does_no_more() -> None:
    """What it has done stays."""
    view = filled(CHANGED_MAX + 1)
    ask(view, start("j"))
    passed(view, STEP_MS)
    ask(view, stop("j"))
    passed(view, STEP_MS)

    assert [*[State.FAILED] * CHANGED_MAX, State.READY] == states(view)
    assert "ann" == job(view, "j").stopped_by
    assert Rejected(Rejection.NOT_FOUND) == ask(view, stop("none"))


def test_a_start_and_each_end_leave_a_record() -> None:
    """One of the start on all shards together, and one of what each shard has done."""
    view = filled(2)
    ask(view, start("quiet", leads=False))
    ask(view, stop("quiet"))
    ask(view, start("j"))
    passed(view, STEP_MS)
    records = [item for item in view.items.values() if isinstance(item, Audit)]

    assert [
        ("bulk.stop", "quiet", "after 0 tasks on one shard", "ann"),
        ("bulk.start", "j", "cancel command=render", "ops"),
        ("bulk.cancel", "j", "2 tasks on one shard", "ops"),
    ] == [(each.action, each.target, each.detail, each.actor) for each in records]


def test_a_priority_is_given_where_a_create_may_have_it() -> None:
    """A tier of 10 stands for 9, the highest priority of a task."""
    view = filled(1)
    ask(view, PutTopic(request="p", tenant="acme", by="ops", name="render", priority_tiers=(0, 10)))
    for priority in (5, 9):
        action = BulkAction(kind=ActionKind.PRIORITY, priority=priority)
        ask(view, replace(start(f"to-{priority}"), action=action))
        passed(view, STEP_MS)

    assert [0, 1] == [job(view, f"to-{priority}").changed for priority in (5, 9)]
    assert 9 == view.tasks["t0000"].priority
