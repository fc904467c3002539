"""Extra runs: those that people ask for, by a backfill or a trigger."""

from __future__ import annotations

from dataclasses import replace as with_rules

from msgspec.structs import replace

from codeq_cluster.core.budget import Budget
from codeq_cluster.core.operations import Delete
from codeq_cluster.core.outcomes import How, Triggered
from codeq_cluster.core.schedules import (
    FIRED_MAX,
    RECENT_MAX,
    DeleteSchedule,
    Overlap,
    PauseSchedule,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State

from .scheduled import NAME, NOTHING, NOW_MS, Scheduled, given, minute, refused, row
from .shard import RULES

TIGHT = with_rules(RULES, budgets={"acme": Budget(waiting_max=2)})


def test_a_backfill_makes_its_runs_in_steps() -> None:
    """Each step begins where the last has ended, and the same step twice is one."""
    shard = Scheduled()
    shard.backfill(5, overlap=Overlap.ALLOW)
    due = shard.at.fires_ms
    step = shard.filling(1, 2)
    shard.ask(step)
    again = shard.ask(step)
    half = shard.at.backfill
    shard.fill(3, 4, 5)

    assert NOW_MS == due
    assert NOTHING == again
    assert half is not None
    assert (minute(2), 2) == (half.done_ms, half.made)
    assert [1, 2, 3, 4, 5] == shard.open()
    assert shard.at.backfill is None
    assert (NOW_MS, 0) == (shard.at.done_ms, shard.at.made)


def test_a_backfill_makes_no_run_whose_task_is_kept() -> None:
    """Not even later: in the queue it would keep those behind it from beginning."""
    shard = Scheduled()
    for number in (1, 2):
        shard.fire(number)
        shard.end(number)
    shard.trigger("open")
    shard.backfill(4)
    shard.fill(1, 2, 3, done=3)
    walk = shard.at.backfill
    waiting = shard.queued()
    shard.end("open")

    assert [3] == waiting
    assert walk is not None
    assert 1 == walk.made
    assert [3] == shard.open()


def test_a_forced_backfill_makes_them_again() -> None:
    """Under names of its own, so once."""
    shard = Scheduled()
    shard.fire(1)
    shard.end(1)
    shard.backfill(1, force=True)
    shard.fill(1)

    assert [str(minute(1)), f"{minute(1)}.b"] == [task.more.run.name for task in shard.runs()]  # type: ignore[union-attr]


def test_an_instant_that_waits_already_is_queued_once() -> None:
    """By its firing; the backfill covers it again."""
    shard = Scheduled(overlap=Overlap.QUEUE)
    shard.fire(1, 2)
    shard.backfill(2)
    shard.fill(2)

    assert ([1], [2]) == (shard.open(), shard.queued())


def test_a_backfill_that_cancels_drops_no_instant() -> None:
    """Each of its runs replaces the one before, one in each decision."""
    shard = Scheduled()
    shard.backfill(3, overlap=Overlap.CANCEL)
    shard.fill(1, 2, 3)
    first = shard.open()
    shard.fill(2, 3)
    shard.fill(3)

    assert [1] == first
    assert [3] == shard.open()
    assert 3 == len(shard.runs())
    assert shard.at.backfill is None


def test_a_backfill_over_the_budget_stays_where_it_is() -> None:
    """It goes on when there is room."""
    shard = Scheduled(TIGHT)
    shard.backfill(4, overlap=Overlap.ALLOW)
    shard.fill(1, 2, 3, 4)
    first = shard.at.backfill
    again = shard.fill(3, 4)
    shard.end(1)
    shard.end(2)
    shard.fill(3, 4)

    assert first is not None
    assert (minute(2), 2) == (first.done_ms, first.made)
    assert ("budget-exceeded", "readyTasks") == refused(again)
    assert [3, 4] == shard.open()


def test_a_backfill_waits_while_its_queue_is_full() -> None:
    """Its steps are as long as the queue has room, so it holds no more than that."""
    shard = Scheduled()
    shard.fire(1)
    shard.backfill(10)
    given(shard, queued=tuple(row(-number, task_id="") for number in range(1, FIRED_MAX + 1)))
    full = shard.at.fires_ms
    given(shard, queued=shard.at.queued[1:])

    assert minute(2) == full
    assert NOW_MS == shard.at.fires_ms


def test_a_backfill_goes_on_while_the_schedule_is_paused() -> None:
    """An operator who asked for it wants it."""
    shard = Scheduled()
    shard.ask(PauseSchedule(request="p", tenant="acme", id=NAME, by="ops"))
    shard.backfill(1)
    due = shard.at.fires_ms
    shard.fill(1)

    assert NOW_MS == due
    assert [1] == shard.open()


def test_a_step_of_a_backfill_that_is_over_changes_nothing() -> None:
    """Or of a schedule that is gone."""
    shard = Scheduled()
    shard.backfill(1)
    step = shard.filling(1)
    shard.ask(step)
    gone = replace(step, id="another")

    assert [NOTHING, NOTHING] == [shard.ask(step), shard.ask(gone)]


# Triggers.


def test_a_trigger_makes_a_run_at_once() -> None:
    """Whatever the calendar says; the instants are as before."""
    shard = Scheduled()
    before = shard.at
    made = shard.trigger("now")
    task = shard.run("now")

    assert Triggered(How.CREATED, task.id) == made
    assert (before.done_ms, before.next_ms, before.made) == (
        shard.at.done_ms,
        shard.at.next_ms,
        shard.at.made,
    )


def test_a_trigger_that_is_repeated_answers_the_same() -> None:
    """While the run is open, after its end, and when the schedule remembers it no more."""
    shard = Scheduled()
    first = shard.trigger("now")
    again = shard.trigger("now")
    shard.end("now")
    ended = shard.trigger("now")
    for number in range(1, RECENT_MAX + 2):
        shard.fire(number)
        shard.end(number)
    shard.fire(RECENT_MAX + 2)
    forgotten = shard.trigger("now")

    assert first == again == ended == forgotten
    assert RECENT_MAX + 3 == len(shard.runs())


def test_a_trigger_that_waits_is_repeated_and_waits_once() -> None:
    """Its answer has no task, because there is none yet."""
    shard = Scheduled()
    shard.fire(1)
    both = shard.trigger("now", Overlap.QUEUE), shard.trigger("now", Overlap.QUEUE)

    assert (Triggered(How.QUEUED), Triggered(How.QUEUED)) == both
    assert ["now"] == [each.name for each in shard.at.queued]


def test_a_trigger_that_is_skipped_changes_nothing() -> None:
    """The count of skipped instants has only instants."""
    shard = Scheduled()
    shard.fire(1)
    before = shard.at

    assert Triggered(How.SKIPPED) == shard.trigger("now")
    assert before == shard.at


def test_a_trigger_over_the_budget_is_refused() -> None:
    """The caller hears of it, and no open run is cancelled for nothing."""
    shard = Scheduled(TIGHT)
    shard.fire(1)
    shard.claim()
    shard.create("a", command="scan")
    shard.create("b", command="scan")

    assert ("budget-exceeded", "readyTasks") == refused(shard.trigger("now", Overlap.CANCEL))
    assert State.LEASED is shard.run(1).state


def test_a_run_goes_on_although_its_schedule_is_deleted() -> None:
    """Its end has nothing to change."""
    shard = Scheduled(overlap=Overlap.QUEUE)
    shard.fire(1, 2)
    shard.ask(DeleteSchedule(request="d", tenant="acme", id=NAME, by="ops"))
    shard.end(1)
    shard.ask(Delete(request="x", tenant="acme", ids=(shard.run(1).id,), by="ops"))

    assert [] == shard.runs()
    assert [] == shard.items(ItemKind.SCHEDULE)
