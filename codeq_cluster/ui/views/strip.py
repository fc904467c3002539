"""Strip: two weeks of a schedule, day by day as its zone's clock shows them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from msgspec import Struct

from codeq_cluster.api.routes.schedule_views import known_runs
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.schedules import RECENT_MAX, RunRow, Schedule, Timing
from codeq_cluster.schedules.calendar import Instant
from codeq_cluster.schedules.due import instants_between, next_after
from codeq_cluster.schedules.zones import DAY_S, EPOCH, clock_s, zone_of

DAYS_BACK = 6
DAYS = 14
# A week of hours. A cron expression takes about 0.1 ms for each instant.
MARKS_MAX = 168
COMING_MAX = 10  # However far they are.


class Mark(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """An instant, and what has become of it.

    Attributes:
        kind: Of a run, its status in lower case. Before its time, `next`, or `paused` with the
            schedule. Without a run, `skipped` if another was open, `missed` if the schedule counts
            it so, or else `none`.
    """

    at: str
    kind: str
    task_id: str = ""
    late: bool = False


class ClockChange(Struct, rename="camel", kw_only=True):
    """A change of the zone's clock: when, and how far it is put forward, or back."""

    at: str
    seconds: int


class Strip(Struct, rename="camel", kw_only=True):
    """What is drawn.

    Attributes:
        days: Where each day begins, and where the last one ends.
        dates: What the zone's calendar shows on each day.
        known_from: The marks tell of every instant from then on; before it, of some.
        dense_from: From then on there are too many instants to show; empty for never.
        dense_until: And until then.
    """

    days: list[str]
    dates: list[str]
    marks: list[Mark]
    clock_changes: list[ClockChange]
    known_from: str
    dense_from: str = ""
    dense_until: str = ""


class Span(Struct, frozen=True, kw_only=True):
    """What the calendar is asked.

    Attributes:
        day_s: When the first day of the strip begins, in seconds of the zone's clock.
        known_ms: Every run from then on is known.
        done_ms: Every instant up to it is decided.
        after_ms: Those that may still fire come after it: a pause counts for nothing.
        coming_max: So many instants may still fire.
    """

    timing: Timing
    day_s: int
    known_ms: int
    done_ms: int
    after_ms: int
    coming_max: int


class Found(Struct, frozen=True, kw_only=True):
    """What the calendar answers.

    Attributes:
        days: Unix seconds.
        clock_changes: When, in Unix seconds, and by how many.
        decided: The instants that are decided; none if there are too many.
        coming: The next ones, at least `COMING_MAX` of them, however far.
        more: There are more within the strip.
    """

    days: tuple[int, ...]
    clock_changes: tuple[tuple[int, int], ...]
    decided: tuple[Instant, ...]
    is_known: bool
    coming: tuple[Instant, ...]
    more: bool


def span_of(schedule: Schedule, now_ms: int) -> Span:
    """Return what to ask of a schedule's calendar; the same for a while.

    Raises:
        InvalidZone: The schedule's zone is no more.
    """
    plan, recent = schedule.plan, schedule.recent
    today = clock_s(zone_of(plan.timing.zone).shows(now_ms // 1000).replace(fold=0)) // DAY_S
    # A run that is forgotten ended before each of these, and began before that.
    known_ms = recent[0].ended_ms if len(recent) == RECENT_MAX else 0
    minute_ms = now_ms - now_ms % 60_000
    left = plan.max_runs - schedule.made if plan.max_runs else MARKS_MAX + 1
    return Span(
        timing=plan.timing,
        day_s=(today - DAYS_BACK) * DAY_S,
        known_ms=max(known_ms, schedule.created_ms, schedule.updated_ms),
        done_ms=schedule.last_ms if schedule.is_over else schedule.done_ms,
        after_ms=max(schedule.done_ms, minute_ms) if schedule.paused_ms else schedule.done_ms,
        coming_max=max(0, min(left, MARKS_MAX + 1)),
    )


def ask_calendar(span: Span) -> Found:
    """Return the instants of a schedule, which may take many milliseconds.

    Raises:
        InvalidSchedule: The calendar cannot be read.
        InvalidZone: The schedule's zone is no more.
    """
    zone = zone_of(span.timing.zone)
    days = tuple(_begins(span, day) for day in range(DAYS + 1))
    changes = []
    at_s: int | None = days[0]
    while at_s is not None:
        before_s, at_s = at_s, zone.change_s(at_s, days[-1])
        if at_s is not None:
            changes.append((at_s, zone.offset_s(at_s) - zone.offset_s(before_s)))
    from_ms = max(span.known_ms, days[0] * 1000 - 1)
    decided = instants_between(span.timing, from_ms, span.done_ms, MARKS_MAX + 1)
    coming = list(_coming(span, days[-1] * 1000))
    return Found(
        days=days,
        clock_changes=tuple(changes),
        decided=tuple(decided) if len(decided) <= MARKS_MAX else (),
        is_known=len(decided) <= MARKS_MAX,
        coming=tuple(coming[:MARKS_MAX]),
        more=len(coming) > MARKS_MAX,
    )


def strip(schedule: Schedule, span: Span, found: Found, now_ms: int) -> Strip:
    """Return what is drawn of a schedule."""
    days_ms = [day * 1000 for day in found.days]
    marks = [
        Mark(at=rfc3339(row.at_ms), kind=status.lower(), task_id=row.task_id, late=row.late)
        for row, status in known_runs(schedule)
        if days_ms[0] <= row.at_ms < days_ms[-1]
    ]
    marks += _without_run(schedule, found, now_ms)
    coming = "paused" if schedule.paused_ms else "next"
    marks += [Mark(at=rfc3339(at.ms), kind=coming) for at in found.coming if at.ms < days_ms[-1]]
    known_ms = span.known_ms if found.is_known else now_ms
    end_ms = min(schedule.plan.timing.end_ms or days_ms[-1], days_ms[-1])
    return Strip(
        days=[rfc3339(ms) for ms in days_ms],
        dates=[
            (EPOCH + timedelta(seconds=span.day_s, days=day)).date().isoformat()
            for day in range(DAYS)
        ],
        marks=sorted(marks, key=lambda mark: mark.at),
        clock_changes=[
            ClockChange(at=rfc3339(at_s * 1000), seconds=by_s) for at_s, by_s in found.clock_changes
        ],
        known_from=rfc3339(max(known_ms, days_ms[0])),
        dense_from=rfc3339(found.coming[-1].ms) if found.more else "",
        dense_until=rfc3339(end_ms) if found.more else "",
    )


def _without_run(schedule: Schedule, found: Found, now_ms: int) -> Iterator[Mark]:
    """Yield the decided instants that no run is for."""
    rows = [row for row, _ in known_runs(schedule)]
    fired = {row.at_ms for row in rows}
    without = [at for at in found.decided if at.ms not in fired]
    skipped = {at.ms for at in without if any(_is_open(row, at.ms, now_ms) for row in rows)}
    # More than are counted: some were in a pause, and nobody can tell which.
    missed = "missed" if len(without) - len(skipped) <= schedule.missed else "none"
    for at in without:
        yield Mark(at=rfc3339(at.ms), kind="skipped" if at.ms in skipped else missed)


def _is_open(row: RunRow, at_ms: int, now_ms: int) -> bool:
    return 0 < row.made_ms <= at_ms < (row.ended_ms or now_ms)


def _begins(span: Span, day: int) -> int:
    """Return when a day begins, in Unix seconds."""
    zone, midnight_s = zone_of(span.timing.zone), span.day_s + day * DAY_S
    near_s = midnight_s - zone.offset_s(midnight_s)
    return midnight_s - zone.offset_s(near_s)


def _coming(span: Span, end_ms: int) -> Iterator[Instant]:
    after_ms = span.after_ms
    for number in range(span.coming_max):
        at = next_after(span.timing, after_ms)
        if at is None or (number >= COMING_MAX and at.ms >= end_ms):
            return
        yield at
        after_ms = at.ms
