"""Scheduling: what people do with schedules, and what their deeds leave decided."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.faults import item_fault
from codeq_cluster.core.items import Audit
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import ScheduleStands
from codeq_cluster.core.schedules import (
    CALENDAR_BYTES_MAX,
    FAILURES_MAX,
    JITTER_S_MAX,
    NOTE_BYTES_MAX,
    RUNS_COUNT_MAX,
    SCHEDULES_MAX,
    TEMPLATE_BYTES_MAX,
    WINDOW_S_MAX,
    Backfill,
    DeleteSchedule,
    Overlap,
    PauseSchedule,
    ResumeSchedule,
    Schedule,
    Timing,
    jitter_ms,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import Tally

from .scheduled import (
    DONE,
    MINUTE_MS,
    NAME,
    NOTHING,
    NOW_MS,
    PLAN,
    TEMPLATE,
    Scheduled,
    minute,
    put,
    refused,
)

PAUSE = PauseSchedule(request="p", tenant="acme", id=NAME, by="ops")
DELETE = DeleteSchedule(request="d", tenant="acme", id=NAME, by="ops")


def resume(at_ms: int, *, catch_up: bool = False) -> ResumeSchedule:
    """Return a resume at an instant."""
    return ResumeSchedule(
        request="r",
        tenant="acme",
        id=NAME,
        by="ops",
        catch_up=catch_up,
        at_ms=at_ms,
        next_ms=at_ms + MINUTE_MS,
        zone_rules="2026b",
    )


def actions(shard: Scheduled) -> list[tuple[str, str, str]]:
    """Return what is on record of the schedule, in the order in which it was done."""
    found = [each for each in shard.view.items.values() if isinstance(each, Audit)]
    return [(each.action, each.target, each.detail) for each in found]


def test_a_new_schedule_begins_behind_the_callers_clock() -> None:
    """Nothing before it was ever due."""
    shard = Scheduled()
    at = shard.at

    assert (1, NOW_MS, minute(1), "2026a") == (at.version, at.done_ms, at.next_ms, at.zone_rules)
    assert at.generation > 0
    assert minute(1) == at.fires_ms
    assert ("schedule.put", NAME, "version 1") == actions(shard)[0]


def test_a_repeated_put_changes_nothing() -> None:
    """By its request, whose answer says again that it was new, or by its content."""
    shard = Scheduled()
    first = shard.at
    again = shard.put()
    by_another = shard.ask(put(request="another"))

    assert ScheduleStands(first, made=True) == again
    assert ScheduleStands(first) == by_another
    assert 1 == len(actions(shard))


def test_an_edit_keeps_what_is_decided() -> None:
    """Without another calendar the next instant stays, too."""
    shard = Scheduled()
    shard.fire(1)
    before = shard.at
    after = shard.stands(shard.put(at_ms=minute(9), note="changed"))

    assert (before.done_ms, before.next_ms, before.generation) == (
        after.done_ms,
        after.next_ms,
        after.generation,
    )
    assert (2, before.open, before.made) == (after.version, after.open, after.made)


def test_another_calendar_begins_at_once() -> None:
    """Instants of the old one that have not fired yet do not."""
    shard = Scheduled()
    after = shard.stands(shard.put(at_ms=minute(9), timing=Timing(every="2m")))

    assert (minute(9), minute(10)) == (after.done_ms, after.next_ms)


def test_nothing_that_is_decided_is_decided_again() -> None:
    """Neither what has fired nor what was missed, when the caller's clock is behind."""
    shard = Scheduled()
    shard.fire(1, missed=4)
    after = shard.stands(shard.put(at_ms=minute(2), timing=Timing(every="2m")))

    assert minute(5) == after.done_ms
    assert after.done_ms < after.next_ms <= after.fires_ms


def test_a_calendar_that_has_ended_stays_ended() -> None:
    """With no instant there is nothing to look at."""
    shard = Scheduled()
    ended = replace(PLAN, timing=Timing(every="1m", end_ms=1))
    after = shard.stands(shard.ask(put(at_ms=minute(2), plan=ended, next_ms=0)))

    assert (0, 0) == (after.next_ms, after.fires_ms)


def test_more_runs_than_before_begin_now() -> None:
    """What passed while it had fired as often as it might is not late."""
    shard = Scheduled(max_runs=1)
    shard.fire(1)
    shard.backfill(1)
    after = shard.stands(shard.put(at_ms=minute(9), max_runs=2))

    assert (minute(9), minute(10)) == (after.done_ms, after.next_ms)


def test_a_paused_schedule_is_edited_and_stays_paused() -> None:
    """Its calendar begins when it is resumed."""
    shard = Scheduled()
    shard.ask(PAUSE)
    after = shard.stands(shard.put(at_ms=minute(9), note="changed"))

    assert (NOW_MS, 0) == (after.done_ms, after.fires_ms)
    assert after.paused_ms


def test_a_lower_revision_cannot_undo_a_later_one() -> None:
    """A rolling deploy has both for a while; a put by hand has none and is taken."""
    shard = Scheduled()
    shard.ask(put(revision=7, plan=replace(PLAN, note="seven")))
    older = shard.ask(put(revision=6, plan=replace(PLAN, note="six")))
    gone = shard.ask(replace(DELETE, revision=6))
    by_hand = shard.stands(shard.ask(put(plan=replace(PLAN, note="by hand"))))

    assert ("stale-revision", "7") == refused(older) == refused(gone)
    assert ("by hand", 7) == (by_hand.plan.note, by_hand.revision)


def test_the_same_plan_of_a_later_revision_notes_the_revision_alone() -> None:
    """Its version is that of the plan."""
    shard = Scheduled()
    after = shard.stands(shard.ask(put(request="other", revision=3)))

    assert (3, 1) == (after.revision, after.version)


def test_a_set_takes_no_schedule_of_another_owner() -> None:
    """By hand an owner may be changed."""
    shard = Scheduled(owner="reports")
    other = replace(PLAN, owner="billing")
    taken = shard.ask(put(plan=other, own=True))
    by_hand = shard.stands(shard.ask(put(plan=other)))

    assert ("other-owner", "reports") == refused(taken)
    assert "billing" == by_hand.plan.owner


def test_a_pause_keeps_everything_and_is_repeated() -> None:
    """Also the queue; what is open goes on."""
    shard = Scheduled(overlap=Overlap.QUEUE)
    shard.fire(1, 2)
    before = shard.at
    first = shard.stands(shard.ask(PAUSE))
    again = shard.stands(shard.ask(replace(PAUSE, request="q", by="other")))

    assert first == again
    assert (NOW_MS, "ops", 0) == (first.paused_ms, first.paused_by, first.fires_ms)
    assert before == replace(first, paused_ms=0, paused_by="", request=before.request)


def test_a_resume_forgets_the_instants_of_the_pause() -> None:
    """It goes on from now, and the failures are forgiven."""
    shard = Scheduled(pause_after=1)
    shard.fire(1)
    shard.end(1, status="FAILED")
    after = shard.stands(shard.ask(resume(minute(5))))
    again = shard.stands(shard.ask(replace(resume(minute(9)), request="s")))

    assert (minute(5), minute(6), 0) == (after.done_ms, after.next_ms, after.missed)
    assert (0, 0, "", minute(6)) == (
        after.failures,
        after.paused_ms,
        after.paused_by,
        after.fires_ms,
    )
    assert after == again


def test_a_resume_may_catch_up() -> None:
    """The next instant is the first of the pause, however long that is past."""
    shard = Scheduled()
    shard.ask(PAUSE)
    after = shard.stands(shard.ask(resume(minute(5), catch_up=True)))

    assert (NOW_MS, minute(1), minute(1)) == (after.done_ms, after.next_ms, after.fires_ms)


def test_a_resume_that_asked_an_older_calendar_lets_the_leader_ask_the_newer_one() -> None:
    """The older one has ended: its answer would keep the schedule from firing for ever."""
    shard = Scheduled()
    shard.ask(PAUSE)
    asked = replace(resume(minute(5)), next_ms=0, version=shard.at.version)
    shard.put(timing=Timing(every="2m"))
    after = shard.stands(shard.ask(asked))

    assert (minute(5), minute(5) + 1) == (after.done_ms, after.fires_ms)


@pytest.mark.parametrize(
    "operation",
    [PAUSE, resume(NOW_MS), "trigger", "backfill"],
    ids=["pause", "resume", "trigger", "backfill"],
)
def test_what_does_not_exist_is_not_found(operation: object) -> None:
    """And nothing is on record of it."""
    shard = Scheduled()
    shard.ask(DELETE)
    before = actions(shard)
    outcome = (
        shard.trigger("now")
        if operation == "trigger"
        else shard.backfill(1)
        if operation == "backfill"
        else shard.ask(operation)  # type: ignore[arg-type]
    )

    assert ("not-found", "") == refused(outcome)
    assert before == actions(shard)


def test_a_second_deletion_changes_nothing() -> None:
    """As with every item."""
    shard = Scheduled()

    assert [DONE, NOTHING] == [shard.ask(DELETE), shard.ask(replace(DELETE, request="e"))]
    assert [] == shard.items(ItemKind.SCHEDULE)


def test_the_tally_is_the_number_of_schedules() -> None:
    """It is gone with the last of them."""
    shard = Scheduled()
    shard.put(name="second")
    shard.put(name="second", note="changed")
    two = shard.tally
    for name in (NAME, NAME, "second"):
        shard.ask(replace(DELETE, id=name))

    assert 2 == two
    assert [] == shard.items(ItemKind.TALLY)


def test_a_tenant_has_so_many_schedules() -> None:
    """One more is refused; those that it has may be changed, and one that goes makes room."""
    shard = Scheduled()
    name = ItemKind.TALLY, "acme", "schedules"
    shard.view.items[name] = Tally(tenant="acme", count=SCHEDULES_MAX)
    more = shard.put(name="second")
    shard.stands(shard.put(note="changed"))
    shard.ask(DELETE)
    shard.put(name="second")

    assert ("too-many", "schedules") == refused(more)
    assert SCHEDULES_MAX == shard.tally


def test_a_schedule_has_one_backfill_at_a_time() -> None:
    """One of the same name is the same request."""
    shard = Scheduled()
    first = shard.stands(shard.backfill(9))
    again = shard.stands(shard.backfill(9))
    other = shard.backfill(9, name="c")

    assert first == again
    assert ("backfill-running", "") == refused(other)


def test_a_repeated_backfill_does_not_begin_again() -> None:
    """What it has made stays behind it."""
    shard = Scheduled()
    shard.backfill(3, overlap=Overlap.ALLOW)
    shard.fill(1, 2)
    shard.backfill(3, overlap=Overlap.ALLOW)
    walk = shard.at.backfill

    assert walk is not None
    assert (minute(2), 2) == (walk.done_ms, walk.made)


def test_every_deed_is_on_record() -> None:
    """Those of the leader are not: nobody did them."""
    shard = Scheduled()
    shard.fire(1)
    for operation in (PAUSE, resume(NOW_MS)):
        shard.ask(operation)
    shard.trigger("now", Overlap.ALLOW)
    shard.backfill(1)
    shard.ask(DELETE)

    assert ["put", "pause", "resume", "trigger", "backfill", "delete"] == [
        action.removeprefix("schedule.") for action, *_ in actions(shard)
    ]


def test_jitter_is_the_same_everywhere() -> None:
    """A hash of the name and the instant, below the bound; another instant has another one."""
    at = replace(Scheduled(jitter_s=60).at, id="nightly")
    later = [jitter_ms(at, minute(number)) for number in range(100)]

    assert 16_540 == jitter_ms(replace(at, generation=9, made=8), 1_700_000_000_000)
    assert len(set(later)) > 90
    assert all(0 <= each < 60_000 for each in later)
    assert later != [jitter_ms(replace(at, id="other"), minute(number)) for number in range(100)]
    assert 0 == jitter_ms(Scheduled().at, minute(1))


def test_a_schedule_fires_its_jitter_later() -> None:
    """The instant itself is as before."""
    shard = Scheduled(jitter_s=60)
    at = shard.at

    assert minute(1) == at.next_ms
    assert minute(1) + jitter_ms(at, minute(1)) == at.fires_ms > at.next_ms


PLAN_FAULTS = {
    "window_s": WINDOW_S_MAX + 1,
    "jitter_s": JITTER_S_MAX + 1,
    "max_runs": RUNS_COUNT_MAX + 1,
    "pause_after": FAILURES_MAX + 1,
    "note": "x" * (NOTE_BYTES_MAX + 1),
    "owner": "not a name",
    "timing": Timing(cron="*" * (CALENDAR_BYTES_MAX + 1)),
    "task": replace(TEMPLATE, payload=f'"{"x" * TEMPLATE_BYTES_MAX}"'),
}


@pytest.mark.parametrize("field", PLAN_FAULTS)
def test_a_plan_beyond_a_bound_is_no_record(field: str) -> None:
    """A restore refuses it, and so does an import."""
    at = Scheduled().at
    wrong = replace(at, plan=replace(PLAN, **{field: PLAN_FAULTS[field]}))

    assert "" == item_fault(at)
    assert field in item_fault(wrong)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "own"},
        {"tenant": "acme"},
        {"idempotency_key": "k"},
        {"run_at_ms": 1},
        {"delay_ms": 1},
        {"command": "no command"},
        {"payload": "no JSON"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_template_has_nothing_that_is_each_runs_own(fields: dict[str, object]) -> None:
    """And what it has must be what a request may say."""
    task: Create = replace(TEMPLATE, **fields)

    assert "task: must" in item_fault(replace(Scheduled().at, plan=replace(PLAN, task=task)))


def test_a_backfill_beyond_a_bound_is_no_record() -> None:
    """Its name becomes a part of the names of runs."""
    walk = Backfill(name="no name", done_ms=1, to_ms=2, overlap=Overlap.ALLOW)

    assert "backfill" in item_fault(replace(Scheduled().at, backfill=walk))


def test_a_schedule_is_its_tenants() -> None:
    """Nobody else finds it by its name."""
    shard = Scheduled()

    assert ("not-found", "") == refused(shard.ask(replace(PAUSE, tenant="other")))
    assert isinstance(shard.view.item(ItemKind.SCHEDULE, "acme", NAME), Schedule)
