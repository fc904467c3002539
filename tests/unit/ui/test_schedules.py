"""Schedules: rows of a list, and the two weeks that are drawn of one."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from codeq_cluster.core.new_task import Create
from codeq_cluster.core.schedules import (
    RECENT_MAX,
    Due,
    Fire,
    Plan,
    PutSchedule,
    RunRow,
    Schedule,
    Timing,
    jitter_ms,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.ui.views.schedules import in_words, schedule_row
from codeq_cluster.ui.views.strip import MARKS_MAX, Strip, ask_calendar, span_of, strip
from tests.unit.core.shard import NOW_MS, Shard

BERLIN = "Europe/Berlin"
HOUR_MS = 3_600_000


def ms(text: str) -> int:
    """Return an instant of March 2026, such as `27T12:00`, in UTC."""
    return round(datetime.fromisoformat(f"2026-03-{text}").replace(tzinfo=UTC).timestamp()) * 1000


NOON_MS = ms("27T12:00")


def schedule(cron: str = "30 2 * * *", **fields: object) -> Schedule:
    """Return a schedule in Berlin that has been decided up to the noon of 27 March 2026."""
    timing = Timing(cron=cron, zone=BERLIN)
    made = Schedule(
        tenant="acme",
        id="s",
        plan=Plan(timing=timing, task=Create(command="report", payload="{}")),
        generation=1,
        done_ms=NOON_MS,
        next_ms=NOON_MS + 1,
        created_ms=ms("01T00:00"),
        updated_ms=ms("01T00:00"),
    )
    return replace(made, **fields)


def run(at: str, *, took_ms: int = 1000, status: str = "COMPLETED") -> RunRow:
    """Return a run that was made at its instant."""
    at_ms = ms(at)
    return RunRow(
        name=at,
        at_ms=at_ms,
        task_id=f"t{at}",
        status=status,
        made_ms=at_ms,
        ended_ms=at_ms + took_ms,
    )


def drawn(of: Schedule, now_ms: int = NOON_MS) -> Strip:
    """Return what is drawn of a schedule."""
    span = span_of(of, now_ms)
    return strip(of, span, ask_calendar(span), now_ms)


def kinds(found: Strip) -> dict[str, str]:
    """Return the kind of each mark of March by its day and time."""
    return {mark.at[8:16]: mark.kind for mark in found.marks if mark.at.startswith("2026-03")}


def missed(found: Strip) -> set[str]:
    """Return the instants that are marked as missed."""
    return {at for at, kind in kinds(found).items() if kind == "missed"}


def test_the_days_are_those_of_the_zone_and_the_night_of_a_change_is_marked() -> None:
    """In Berlin 29 March has 23 hours, and the time that is skipped fires at the end of the gap."""
    found = drawn(schedule())
    begins = pairwise(map(datetime.fromisoformat, found.days))
    hours = {
        date: (until - since).total_seconds() / 3600
        for date, (since, until) in zip(found.dates, begins, strict=True)
    }

    assert ("2026-03-21", "2026-04-03") == (found.dates[0], found.dates[-1])
    assert "2026-03-20T23:00:00.000Z" == found.days[0]
    assert {"2026-03-29": 23} == {date: each for date, each in hours.items() if each != 24}
    assert [("2026-03-29T01:00:00.000Z", 3600)] == [
        (change.at, change.seconds) for change in found.clock_changes
    ]
    assert {"28T01:30": "next", "29T01:00": "next", "30T00:30": "next"}.items() <= kinds(
        found
    ).items()


def test_an_instant_without_a_run_is_missed_or_skipped_or_not_known() -> None:
    """It is skipped if a run was open, and missed if the schedule has counted no fewer."""
    recent = (
        run("23T01:30"),
        run("24T01:30", status="FAILED"),
        run("25T01:30", took_ms=30 * HOUR_MS),
    )
    decided = {"recent": recent, "done_ms": ms("26T12:00")}
    counted = kinds(drawn(schedule(missed=2, **decided)))
    not_counted = kinds(drawn(schedule(missed=1, **decided)))

    assert {
        "21T01:30": "missed",
        "22T01:30": "missed",
        "23T01:30": "completed",
        "24T01:30": "failed",
        "25T01:30": "completed",
        "26T01:30": "skipped",
        "27T01:30": "next",
    } == {at: kind for at, kind in counted.items() if at < "28"}
    assert {"21T01:30": "none", "22T01:30": "none"} == {
        at: kind for at, kind in not_counted.items() if counted[at] == "missed"
    }


def test_before_the_last_known_run_nothing_is_called_missed() -> None:
    """Runs are forgotten, and calendars change: earlier instants may have fired."""
    recent = tuple(run(f"{day:02}T01:30") for day in range(14, 14 + RECENT_MAX))
    forgotten = drawn(schedule(recent=(*recent[:-1], run("26T01:30")), missed=9))
    ended = tuple(replace(each, ended_ms=ms("24T01:30")) for each in recent)
    unknown = drawn(schedule(recent=ended, missed=9))
    changed = drawn(schedule(updated_ms=ms("26T12:00"), missed=9))

    assert {"23T01:30", "24T01:30", "25T01:30", "27T01:30"} == missed(forgotten)
    assert {"25T01:30", "26T01:30", "27T01:30"} == missed(unknown)
    assert ("2026-03-26T12:00:00.000Z", {"27T01:30"}) == (changed.known_from, missed(changed))


def test_more_instants_than_can_be_shown_are_a_band() -> None:
    """Of a schedule that fires each minute the first ones are shown, until the end of its time."""
    timing = Timing(cron="* * * * *", zone=BERLIN, end_ms=ms("28T12:00"))
    often = schedule(updated_ms=NOON_MS)
    found = drawn(replace(often, plan=replace(often.plan, timing=timing)))

    assert MARKS_MAX == len(found.marks)
    assert found.marks[-1].at == found.dense_from
    assert "2026-03-28T12:00:00.000Z" == found.dense_until


def test_no_more_than_the_runs_that_are_left_are_to_come() -> None:
    """A schedule that is over has none."""
    plan = replace(schedule().plan, max_runs=3)
    two_left = drawn(schedule(plan=plan, made=1))
    over = drawn(schedule(plan=plan, made=3, last_ms=ms("26T01:30")))

    assert ["28T01:30", "29T01:00"] == [
        mark.at[8:16] for mark in two_left.marks if mark.kind == "next"
    ]
    assert [] == [mark for mark in over.marks if mark.kind == "next"]
    assert "" == two_left.dense_from


def test_the_instants_of_a_pause_are_not_drawn() -> None:
    """Those to come are, as what would fire if the schedule is resumed."""
    paused = schedule(paused_ms=NOON_MS, created_ms=NOON_MS)
    found = kinds(drawn(paused, ms("29T12:00")))

    assert "30T00:30" == min(found)
    assert {"paused"} == set(found.values())


def test_the_lag_of_a_run_is_how_long_after_its_instant_its_task_was_made() -> None:
    """Its jitter is no lag."""
    shard = Shard()
    plan = replace(schedule().plan, jitter_s=60)
    shard.ask(
        PutSchedule(
            request="r",
            tenant="acme",
            id="s",
            by="ann",
            plan=plan,
            at_ms=NOW_MS,
            next_ms=NOW_MS + 1000,
            zone_rules="2026b",
        )
    )
    found = stored(shard)
    assert UNSET is schedule_row(found).last
    shard.view.now_ms = NOW_MS + 1000 + jitter_ms(found, NOW_MS + 1000) + 70
    shard.ask(
        Fire(
            tenant="acme",
            id="s",
            generation=found.generation,
            version=1,
            from_ms=found.done_ms,
            runs=(Due(NOW_MS + 1000),),
            missed=2,
            done_ms=NOW_MS + 1000,
            next_ms=NOW_MS + 9000,
            zone_rules="2026b",
        )
    )
    row = schedule_row(stored(shard))

    assert row.last is not UNSET
    assert (70, "OPEN") == (row.last.lag_ms, row.last.status)
    assert (1, 0, 2) == (row.running, row.queued, row.missed)


@pytest.mark.parametrize(
    ("timing", "words"),
    [
        (Timing(cron="30 2 * * MON-FRI"), "At 02:30 on Monday through Friday"),
        (Timing(cron="@hourly"), "At the start of every hour"),
        (Timing(every="90m", offset="5m"), "Every 90m, 5m behind"),
        (Timing(cron="@hourly", zone="Lost/Zone"), "@hourly"),
    ],
)
def test_a_calendar_is_said_in_words_or_as_it_is_written(timing: Timing, words: str) -> None:
    """A calendar that cannot be read any more is still shown."""
    assert words == in_words(timing)


def stored(shard: Shard) -> Schedule:
    """Return the schedule that exists."""
    found = shard.view.item(ItemKind.SCHEDULE, "acme", "s")
    assert isinstance(found, Schedule)
    return found
