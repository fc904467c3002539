"""Due: which instants of a schedule fire, and which are missed; pure, by the calendar and a clock.

An instant that is at most a minute late is in time: the election of a leader takes less. The policy
of the schedule decides about later ones. Long gaps are decided in steps, so that none takes long.
"""

from __future__ import annotations

from functools import lru_cache

from codeq_cluster.core.schedules import (
    FIRED_BYTES_MAX,
    FIRED_MAX,
    Due,
    FillBack,
    Fire,
    Missed,
    Schedule,
    Timing,
    jitter_ms,
)
from codeq_cluster.schedules.calendar import Calendar, Instant, IntervalCalendar, parse
from codeq_cluster.schedules.zones import zone_rules

IN_TIME_MS = 60_000
CAUGHT_UP_MAX = 1000  # Late runs, one after the other, with `missed` all.
BACKFILL_MAX = 10_000
LOOKED_AT_MAX = 2000  # Instants of one step; a cron expression takes about 0.1 ms for each.


@lru_cache(maxsize=4096)
def calendar_of(timing: Timing) -> Calendar:
    """Return the calendar that a timing describes.

    Raises:
        InvalidSchedule: A text cannot be read, or there is never an instant.
        InvalidZone: There is no zone of this name.
    """
    return parse(
        cron=timing.cron or None,
        every=timing.every or None,
        offset=timing.offset or None,
        zone=timing.zone,
    )


def next_after(timing: Timing, ms: int) -> Instant | None:
    """Return the first instant strictly after another, within the timing's start and end.

    Raises as `calendar_of`.
    """
    found = calendar_of(timing).after(max(ms, timing.start_ms - 1, 0))
    if found is not None and timing.end_ms and found.ms >= timing.end_ms:
        return None
    return found


def firing(schedule: Schedule, now_ms: int, *, most: int = FIRED_MAX) -> Fire | None:
    """Return the operation that decides what is due; None if nothing is.

    Raises as `calendar_of`.

    Args:
        schedule: As it is stored.
        now_ms: The leader's wall clock.
        most: Runs, at most `FIRED_MAX`.
    """
    if schedule.paused_ms or schedule.is_over:
        return None
    plan, timing = schedule.plan, schedule.plan.timing
    # One that has little jitter waits for an earlier one that has more, at most for all of it.
    late_ms = now_ms - IN_TIME_MS - plan.jitter_s * 1000
    gone_ms = min(late_ms, now_ms - (plan.window_s + plan.jitter_s) * 1000)
    runs: list[Due] = []
    done_ms, missed = _passed_over(schedule, gone_ms)
    runs_max = max(1, min(most, FIRED_BYTES_MAX // max(1, len(plan.task.payload))))
    caught_up = schedule.caught_up
    coming = next_after(timing, done_ms)
    for _ in range(LOOKED_AT_MAX):
        at = coming
        if at is None or _fires_ms(schedule, at) > now_ms or len(runs) == runs_max:
            break
        coming = next_after(timing, at.ms)
        is_late = at.ms < late_ms
        if not is_late:
            caught_up = 0
            fires = True
        elif at.ms < gone_ms or plan.missed is Missed.SKIP:
            fires = False
        elif plan.missed is Missed.ALL:
            caught_up += 1
            fires = caught_up <= CAUGHT_UP_MAX
        else:
            fires = coming is None or coming.ms >= late_ms
        done_ms = at.ms
        if fires:
            runs.append(Due(at.ms, at.local, at.fold, is_late, missed))
            missed = 0
        else:
            missed += 1
    operation = Fire(
        tenant=schedule.tenant,
        id=schedule.id,
        generation=schedule.generation,
        version=schedule.version,
        from_ms=schedule.done_ms,
        runs=tuple(runs),
        missed=missed,
        done_ms=done_ms,
        next_ms=0 if coming is None else coming.ms,
        zone_rules=zone_rules(),
    )
    changes = operation.done_ms != schedule.done_ms or operation.next_ms != schedule.next_ms
    return operation if changes else None


def filling(schedule: Schedule, *, most: int = FIRED_MAX) -> FillBack | None:
    """Return the next step of a schedule's backfill; None if there is none, or no room for it.

    `most` as of `firing`; raises as `calendar_of`.
    """
    walk, payload = schedule.backfill, schedule.plan.task.payload
    if walk is None or not schedule.has_room(walk.overlap):
        return None
    runs_max = max(1, min(most, FIRED_BYTES_MAX // max(1, len(payload))))
    found = instants_between(schedule.plan.timing, walk.done_ms, walk.to_ms, runs_max)
    return FillBack(
        tenant=schedule.tenant,
        id=schedule.id,
        generation=schedule.generation,
        from_ms=walk.done_ms,
        runs=tuple(Due(at.ms, at.local, at.fold, True) for at in found),
        done_ms=found[-1].ms if len(found) == runs_max else walk.to_ms,
    )


def instants_between(timing: Timing, after_ms: int, to_ms: int, most: int) -> list[Instant]:
    """Return the first instants after one and up to another, at most so many; raises as above."""
    found: list[Instant] = []
    while len(found) < most:
        at = next_after(timing, after_ms)
        if at is None or at.ms > to_ms:
            break
        found.append(at)
        after_ms = at.ms
    return found


def _fires_ms(schedule: Schedule, at: Instant) -> int:
    return at.ms + jitter_ms(schedule, at.ms)


def _passed_over(schedule: Schedule, gone_ms: int) -> tuple[int, int]:
    """Return where to begin, and how many instants of an interval are gone before that."""
    timing, done_ms = schedule.plan.timing, schedule.done_ms
    calendar = calendar_of(timing)
    if not isinstance(calendar, IntervalCalendar):
        return done_ms, 0
    until_ms = gone_ms - 1 if not timing.end_ms else min(gone_ms, timing.end_ms) - 1
    from_ms = max(done_ms, timing.start_ms - 1)
    gone = calendar.count(from_ms, until_ms) if until_ms > from_ms else 0
    return (until_ms, gone) if gone else (done_ms, 0)
