"""Firing: each instant is decided once, and what becomes of it is the policy's."""

from __future__ import annotations

from dataclasses import replace as with_rules

import pytest
from msgspec.structs import replace

from codeq_cluster.core.budget import Budget
from codeq_cluster.core.decide import decide
from codeq_cluster.core.faults import item_fault, task_fault
from codeq_cluster.core.operations import Purge, PutTopic
from codeq_cluster.core.schedules import (
    FIRED_MAX,
    OPEN_MAX,
    QUEUED_MAX,
    DeleteSchedule,
    Overlap,
    PauseSchedule,
    Schedule,
    schedule_shard,
)
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Run, State

from .scheduled import DONE, NAME, NOTHING, NOW_MS, TEMPLATE, Scheduled, given, minute, refused, row
from .shard import RULES

TIGHT = with_rules(RULES, budgets={"acme": Budget(waiting_max=2)})


# An instant and its task.


def test_an_instant_makes_a_task_that_says_which() -> None:
    """The task and the schedule's progress are one decision."""
    shard = Scheduled(task=replace(TEMPLATE, priority=5, payload='{"a": 1}'))
    decision = decide(shard.view, shard.firing(1), shard.rules)
    shard.view.advance(decision.changes)
    task = shard.run(1)
    at = shard.at

    assert DONE == decision.outcome
    assert 2 == len(decision.changes)
    assert (State.READY, "render", 5) == (task.state, task.command, task.priority)
    assert '{"a": 1}' == shard.view.payload(task.id)
    assert task.more is not None
    assert task.more.run == Run(
        schedule=NAME, generation=at.generation, name=str(minute(1)), at_ms=minute(1)
    )
    assert (minute(1), minute(2), 1) == (at.done_ms, at.next_ms, at.made)
    assert (minute(1), "minute 1", "2026b") == (at.last_ms, at.last_local, at.zone_rules)
    assert [task.id] == [each.task_id for each in at.open]


def test_the_second_leader_to_decide_an_instant_changes_nothing() -> None:
    """Both asked the calendar at the same state; the fence is how far that was decided."""
    shard = Scheduled()
    late = shard.firing(1)
    shard.fire(1)
    fenced = decide(shard.view, late, shard.rules)

    assert NOTHING == fenced.outcome
    assert () == fenced.changes


@pytest.mark.parametrize("what", ["generation", "version", "from_ms", "id"])
def test_a_firing_of_something_else_changes_nothing(what: str) -> None:
    """Another plan, another schedule of the same name, another progress, or none at all."""
    shard = Scheduled()
    firing = shard.firing(1)
    other = replace(firing, **{what: "another" if what == "id" else getattr(firing, what) + 1})

    assert NOTHING == shard.ask(other)
    assert [] == shard.runs()
    assert NOW_MS == shard.at.done_ms


def test_a_paused_schedule_does_not_fire() -> None:
    """Also if its leader had decided before it heard of the pause."""
    shard = Scheduled()
    firing = shard.firing(1)
    shard.ask(PauseSchedule(request="p", tenant="acme", id=NAME, by="ops"))

    assert NOTHING == shard.ask(firing)
    assert [] == shard.runs()


def test_an_id_that_is_taken_counts_as_done() -> None:
    """A run is made once while its task is kept, whatever the schedule's row says."""
    shard = Scheduled()
    before = shard.at
    shard.fire(1)
    shard.end(1)
    given(shard, **{name: getattr(before, name) for name in ("done_ms", "next_ms", "made")})
    shard.fire(1)

    assert 1 == len(shard.runs())
    assert (minute(1), 1) == (shard.at.done_ms, shard.at.made)


def test_a_new_schedule_of_an_old_name_makes_other_tasks() -> None:
    """Its generation is another one, and ends of the old one's runs do not concern it."""
    shard = Scheduled()
    shard.fire(1)
    [old] = shard.runs()
    shard.ask(DeleteSchedule(request="d", tenant="acme", id=NAME, by="ops"))
    shard.put()
    shard.fire(1)
    before = shard.at
    [new] = [task for task in shard.runs() if task.id != old.id]
    shard.ask(Purge(request="p", tenant="acme", queue="render", ids=(old.id,), by="ops"))

    assert old.more is not None
    assert new.more is not None
    assert new.more.run != old.more.run
    assert before == shard.at
    assert [new.id] == [each.task_id for each in before.open]


def test_runs_are_on_the_shard_of_their_schedule() -> None:
    """For any number of shards, so that a firing is one entry."""
    rules = with_rules(RULES, shards=7)
    shard = Scheduled(rules, overlap=Overlap.ALLOW)
    shard.fire(1, 2, 3)

    assert {schedule_shard("acme", NAME, 7)} == {shard_of(task.id, 7) for task in shard.runs()}


def test_what_is_missed_is_counted_once() -> None:
    """Those before a run with it, and those behind the last with the operation."""
    shard = Scheduled(overlap=Overlap.ALLOW)
    firing = shard.firing(3, 5, missed=2)
    shard.ask(replace(firing, runs=tuple(replace(due, missed=1) for due in firing.runs)))

    assert (2, 4) == (shard.at.made, shard.at.missed)
    assert minute(7) == shard.at.done_ms


def test_late_runs_are_counted_until_one_is_in_time() -> None:
    """The count bounds how many are caught up; the tasks say that they are late."""
    shard = Scheduled(overlap=Overlap.ALLOW)
    shard.fire(1, 2, late=True)
    late = shard.at.caught_up
    shard.fire(3)

    assert (2, 0) == (late, shard.at.caught_up)
    assert [True, True, False] == [
        task.more.run.late for task in shard.runs() if task.more and task.more.run
    ]


def test_it_fires_as_often_as_it_may() -> None:
    """The instants behind the last count for nothing."""
    shard = Scheduled(overlap=Overlap.ALLOW, max_runs=2)
    shard.fire(1, 2, 3)

    assert shard.at.is_over
    assert (2, 0, 0) == (shard.at.made, shard.at.missed, shard.at.fires_ms)
    assert minute(3) == shard.at.done_ms
    assert minute(2) == shard.at.last_ms


def test_an_instant_that_is_skipped_is_none_of_the_runs_that_it_may_make() -> None:
    """Nor is it the last run."""
    shard = Scheduled(max_runs=2)
    shard.fire(1, 2)
    shard.end(1)
    shard.fire(3)

    assert (2, 1) == (shard.at.made, shard.at.skipped)
    assert minute(3) == shard.at.last_ms


# While another run is open.


def test_skip_counts_what_does_not_fire() -> None:
    """A leased run is as open as a waiting one."""
    shard = Scheduled(overlap=Overlap.SKIP)
    shard.fire(1)
    shard.fire(2)
    shard.claim()
    shard.fire(3)
    shard.end(1)
    shard.fire(4)

    assert [1, 4] == [(task.more.run.at_ms - NOW_MS) // 60_000 for task in shard.runs()]  # type: ignore[union-attr]
    assert (2, 2, [4]) == (shard.at.skipped, shard.at.made, shard.open())


def test_allow_makes_them_side_by_side_up_to_a_bound() -> None:
    """The bound keeps the schedule's row small."""
    shard = Scheduled(overlap=Overlap.ALLOW)
    shard.fire(1, 2)
    side_by_side = shard.open()
    given(shard, open=tuple(map(row, range(-OPEN_MAX, 0))))
    shard.fire(3)

    assert [1, 2] == side_by_side
    assert (1, OPEN_MAX) == (shard.at.skipped, len(shard.at.open))


def test_queue_lets_each_wait_for_the_one_before() -> None:
    """The end of a run and the begin of the next are one decision."""
    shard = Scheduled(overlap=Overlap.QUEUE)
    shard.fire(1, 2, 3)
    waiting = shard.open(), shard.queued()
    shard.end(1)
    then = shard.open(), shard.queued()
    shard.end(2, status="CANCELLED")

    assert ([1], [2, 3]) == waiting
    assert ([2], [3]) == then
    assert ([3], []) == (shard.open(), shard.queued())
    assert 3 == shard.at.made


def test_a_queue_is_full_at_a_bound() -> None:
    """What comes then is skipped."""
    shard = Scheduled(overlap=Overlap.QUEUE)
    shard.fire(1)
    given(shard, queued=tuple(row(number, task_id="") for number in range(-QUEUED_MAX, 0)))
    shard.fire(2)

    assert (1, QUEUED_MAX) == (shard.at.skipped, len(shard.at.queued))


def test_queue_one_lets_one_wait() -> None:
    """The others are skipped."""
    shard = Scheduled(overlap=Overlap.QUEUE_ONE)
    shard.fire(1, 2, 3)

    assert ([1], [2], 1) == (shard.open(), shard.queued(), shard.at.skipped)


def test_cancel_ends_the_open_runs_with_the_firing() -> None:
    """The worker of the old run has lost its lease, and its result is refused."""
    shard = Scheduled(overlap=Overlap.CANCEL)
    shard.fire(1)
    shard.claim()
    shard.fire(2)

    assert (State.FAILED, "CANCELLED") == (shard.run(1).state, shard.run(1).error)
    assert [2] == shard.open()
    assert [("CANCELLED", minute(1))] == [(each.status, each.at_ms) for each in shard.at.recent]


def test_cancel_leaves_a_run_of_the_same_decision_to_the_next() -> None:
    """Its task is not in the state yet: nobody could cancel it, and two would run."""
    shard = Scheduled(overlap=Overlap.CANCEL)
    shard.fire(1, 2, 3)
    first = shard.open(), shard.at.done_ms, shard.at.next_ms
    shard.fire(2, 3)
    second = shard.open()
    shard.fire(3)

    assert ([1], minute(1), minute(2)) == first
    assert [2] == second
    assert [3] == shard.open()
    assert [State.FAILED, State.FAILED, State.READY] == [
        shard.run(each).state for each in (1, 2, 3)
    ]
    assert 3 == shard.at.made


def test_cancel_takes_as_many_decisions_as_there_are_runs_for() -> None:
    """One entry has a bound; meanwhile the instant stays due."""
    shard = Scheduled(overlap=Overlap.ALLOW)
    for number in range(1, FIRED_MAX + 3):
        shard.fire(number)
    shard.put(overlap=Overlap.CANCEL)
    instant = FIRED_MAX + 3
    shard.fire(instant)
    first = len(shard.at.open), shard.at.done_ms, shard.at.next_ms
    shard.fire(instant)

    assert (2, minute(instant - 1), minute(instant)) == first
    assert [instant] == shard.open()
    assert FIRED_MAX + 2 == sum(task.state is State.FAILED for task in shard.runs())


def test_the_name_of_a_cancel_fits_a_record() -> None:
    """However long the schedule's own name is: a backup with the task can be restored."""
    shard = Scheduled(overlap=Overlap.CANCEL)
    long = "x" * 128
    shard.put(name=long, overlap=Overlap.CANCEL)
    at = shard.view.items[ItemKind.SCHEDULE, "acme", long]
    assert isinstance(at, Schedule)
    for number in (1, 2):
        fields = {"id": long, "generation": at.generation, "from_ms": minute(number - 1)}
        shard.ask(replace(shard.firing(number), **fields))

    assert [State.FAILED, State.READY] == [task.state for task in shard.runs()]
    assert {""} == set(map(task_fault, shard.runs()))
    assert "" == item_fault(shard.view.items[ItemKind.SCHEDULE, "acme", long])


# A tenant's budget, and other refusals.


def test_over_the_budget_an_instant_stays_due() -> None:
    """Those before it are decided; it is tried again when there is room."""
    shard = Scheduled(TIGHT, overlap=Overlap.ALLOW)
    shard.fire(1, 2, 3)
    first = shard.open(), shard.at.done_ms, shard.at.next_ms, shard.at.missed
    before = shard.at
    again = shard.fire(3)
    same = shard.at
    shard.end(1)
    shard.fire(3)

    assert ([1, 2], minute(2), minute(3), 0) == first
    assert ("budget-exceeded", "readyTasks") == refused(again)
    assert before == same
    assert [2, 3] == shard.open()


def test_a_run_that_is_cancelled_leaves_its_room_to_its_successor() -> None:
    """Otherwise a tenant with room for one would keep its oldest run for ever."""
    rules = with_rules(RULES, budgets={"acme": Budget(waiting_max=1)})
    shard = Scheduled(rules, overlap=Overlap.CANCEL)
    shard.fire(1)
    shard.fire(2)

    assert [2] == shard.open()
    assert (State.FAILED, State.READY) == (shard.run(1).state, shard.run(2).state)


def test_a_leased_run_that_is_cancelled_leaves_no_room_of_a_waiting_one() -> None:
    """It had none."""
    rules = with_rules(RULES, budgets={"acme": Budget(waiting_max=1)})
    shard = Scheduled(rules, overlap=Overlap.CANCEL)
    shard.fire(1)
    shard.claim()
    shard.create("another", command="scan")

    assert ("budget-exceeded", "readyTasks") == refused(shard.fire(2))
    assert State.LEASED is shard.run(1).state
    assert [1] == shard.open()


def test_what_is_refused_for_good_counts_as_missed() -> None:
    """A priority that the queue does not take will not fit later; the next instant may."""
    shard = Scheduled()
    topic = PutTopic(request="t", tenant="acme", name="render", by="ops", priority_tiers=(9,))
    shard.ask(topic)
    shard.fire(1)
    shard.ask(replace(topic, request="u", priority_tiers=()))
    shard.fire(2)

    assert (1, 1) == (shard.at.missed, shard.at.made)
    assert [2] == shard.open()
    assert minute(2) == shard.at.last_ms


def test_a_run_that_is_refused_for_good_cancels_none() -> None:
    """The open run and those that wait for it go on as if the instant had not come."""
    shard = Scheduled(overlap=Overlap.CANCEL)
    shard.fire(1)
    shard.trigger("extra", Overlap.QUEUE)
    shard.ask(PutTopic(request="t", tenant="acme", name="render", by="ops", priority_tiers=(9,)))
    shard.fire(2)

    assert [1] == shard.open()
    assert State.READY is shard.run(1).state
    assert ["extra"] == [each.name for each in shard.at.queued]
    assert 1 == shard.at.missed
