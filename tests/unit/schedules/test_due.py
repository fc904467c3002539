"""Due: which instants fire, which are missed, and how much one step decides."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.new_task import Create
from codeq_cluster.core.schedules import (
    FIRED_BYTES_MAX,
    FIRED_MAX,
    Backfill,
    Due,
    Fire,
    Missed,
    Overlap,
    Plan,
    RunRow,
    Schedule,
    Timing,
    jitter_ms,
)
from codeq_cluster.errors import InvalidSchedule
from codeq_cluster.schedules.due import (
    BACKFILL_MAX,
    CAUGHT_UP_MAX,
    IN_TIME_MS,
    LOOKED_AT_MAX,
    filling,
    firing,
    instants_between,
    next_after,
)
from codeq_cluster.schedules.zones import zone_rules

START_MS = 1_767_225_600_000  # 2026-01-01.
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
TEMPLATE = Create(command="report", payload="{}")
MINUTELY = Timing(every="1m")


def schedule(timing: Timing = MINUTELY, *, done_ms: int = START_MS, **plan: object) -> Schedule:
    """Return a schedule whose instants are decided up to one."""
    made = Plan(timing=timing, task=TEMPLATE)
    coming = next_after(timing, done_ms)
    return Schedule(
        tenant="acme",
        id="nightly",
        plan=replace(made, **plan),
        generation=7,
        version=3,
        done_ms=done_ms,
        next_ms=coming.ms if coming is not None else 0,
        zone_rules=zone_rules(),
    )


def fired(at: Schedule, now_ms: int) -> Fire:
    """Return what is decided then; something is."""
    operation = firing(at, now_ms)
    assert operation is not None
    return operation


def after(at: Schedule, operation: Fire) -> Schedule:
    """Return the schedule with what the operation decided."""
    late = [each.late for each in operation.runs]
    return replace(
        at,
        done_ms=operation.done_ms,
        next_ms=operation.next_ms,
        caught_up=len(late) + at.caught_up if all(late) else 0,
    )


def minutes(operation: Fire) -> list[int]:
    """Return the minutes that fire."""
    return [(each.at_ms - START_MS) // MINUTE_MS for each in operation.runs]


def decided(at: Schedule, now_ms: int, *, steps_max: int = 100) -> tuple[list[int], int, int]:
    """Decide all that is due; return the instants that fire, those missed, and the steps."""
    runs: list[int] = []
    missed = 0
    for step in range(steps_max):
        operation = firing(at, now_ms)
        if operation is None:
            return runs, missed, step
        runs += [each.at_ms for each in operation.runs]
        missed += operation.missed + sum(each.missed for each in operation.runs)
        at = after(at, operation)
    raise AssertionError("it has no end")


# In time.


def test_nothing_is_due_before_the_instant() -> None:
    """One millisecond is before."""
    at = schedule()

    assert firing(at, START_MS + MINUTE_MS - 1) is None
    assert [1] == minutes(fired(at, START_MS + MINUTE_MS))


def test_the_operation_says_of_what_it_is_and_what_comes_next() -> None:
    """So that the core can refuse it if anything has changed since."""
    operation = fired(schedule(Timing(cron="30 2 * * *", zone="Europe/Berlin")), START_MS + DAY_MS)
    [run] = operation.runs

    assert ("acme", "nightly", 7, 3, START_MS) == (
        operation.tenant,
        operation.id,
        operation.generation,
        operation.version,
        operation.from_ms,
    )
    assert (run.at_ms, "2026-01-01T02:30:00", 0) == (operation.done_ms, run.local, run.fold)
    assert (run.at_ms + DAY_MS, zone_rules()) == (operation.next_ms, operation.zone_rules)


@pytest.mark.parametrize(("late_ms", "is_late"), [(IN_TIME_MS, False), (IN_TIME_MS + 1, True)])
def test_an_instant_is_late_after_a_minute(late_ms: int, is_late: bool) -> None:
    """The election of a leader takes less."""
    hourly = schedule(Timing(every="1h"))
    [run] = fired(hourly, START_MS + HOUR_MS + late_ms).runs

    assert is_late is run.late


@pytest.mark.parametrize("missed", Missed)
def test_instants_in_time_all_fire_whatever_the_policy(missed: Missed) -> None:
    """The policy is one for late ones."""
    at = schedule(Timing(every="10s"), missed=missed)
    operation = fired(at, START_MS + MINUTE_MS)

    assert 6 == len(operation.runs)
    assert {(False, 0)} == {(each.late, each.missed) for each in operation.runs}
    assert 0 == operation.missed


def test_a_schedule_that_is_paused_or_over_has_nothing_due() -> None:
    """However much time has passed."""
    at = schedule(max_runs=5)

    assert firing(replace(at, paused_ms=1), START_MS + DAY_MS) is None
    assert firing(replace(at, made=5), START_MS + DAY_MS) is None
    assert firing(replace(at, made=4), START_MS + DAY_MS) is not None


def test_start_and_end_bound_the_instants() -> None:
    """The start fires, the end does not, and after it there is nothing."""
    span = Timing(every="1m", start_ms=START_MS + 2 * MINUTE_MS, end_ms=START_MS + 4 * MINUTE_MS)
    at = replace(schedule(span), plan=replace(schedule().plan, timing=span, missed=Missed.ALL))
    operation = fired(at, START_MS + HOUR_MS)

    assert [2, 3] == minutes(operation)
    assert 0 == operation.next_ms
    assert firing(after(at, operation), START_MS + DAY_MS) is None


# Late.

GAP_MS = START_MS + 10 * MINUTE_MS + 30 * SECOND_MS  # Minute 10 is in time, and 1 to 9 are late.


def test_one_fires_the_latest_of_the_late_ones() -> None:
    """The others are missed, and what is in time fires as well."""
    operation = fired(schedule(missed=Missed.ONE), GAP_MS)

    assert [9, 10] == minutes(operation)
    assert [(True, 8), (False, 0)] == [(each.late, each.missed) for each in operation.runs]


def test_one_fires_the_latest_even_if_nothing_follows() -> None:
    """A calendar that has ended had a last instant."""
    end = Timing(every="1m", end_ms=START_MS + 4 * MINUTE_MS)
    operation = fired(schedule(end), START_MS + HOUR_MS)

    assert ([3], 2) == (minutes(operation), operation.runs[0].missed)


def test_all_fires_every_one_in_order() -> None:
    """Each says whether it is late."""
    operation = fired(schedule(missed=Missed.ALL), GAP_MS)

    assert list(range(1, 11)) == minutes(operation)
    assert [True] * 9 + [False] == [each.late for each in operation.runs]


def test_skip_fires_none_of_them() -> None:
    """They are counted with the first that is in time."""
    operation = fired(schedule(missed=Missed.SKIP), GAP_MS)

    assert ([10], 9) == (minutes(operation), operation.runs[0].missed)


@pytest.mark.parametrize("timing", [MINUTELY, Timing(cron="* * * * *")], ids=["every", "cron"])
def test_what_is_older_than_the_window_is_missed(timing: Timing) -> None:
    """By any policy: an instant as old as the window still fires."""
    at = schedule(timing, missed=Missed.ALL, window_s=300)
    operation = fired(at, START_MS + 10 * MINUTE_MS)

    assert [5, 6, 7, 8, 9, 10] == minutes(operation)
    assert 4 == operation.runs[0].missed


@pytest.mark.parametrize("timing", [MINUTELY, Timing(cron="* * * * *")], ids=["every", "cron"])
@pytest.mark.parametrize("missed", Missed)
def test_a_window_of_nothing_leaves_those_that_are_in_time(timing: Timing, missed: Missed) -> None:
    """A minute late is in time, whatever the window."""
    operation = fired(schedule(timing, missed=missed, window_s=0), GAP_MS)

    assert [10] == minutes(operation)
    assert 9 == operation.runs[0].missed


@pytest.mark.parametrize("missed", Missed)
@pytest.mark.parametrize("window_s", [0, 3600, 86_400])
@pytest.mark.parametrize("jitter_s", [0, 90])
def test_every_instant_fires_or_is_missed(missed: Missed, window_s: int, jitter_s: int) -> None:
    """Over a gap of two days, by `every` and by `cron` alike."""
    now_ms = START_MS + 2 * DAY_MS + 30 * SECOND_MS
    both = [
        decided(
            schedule(timing, missed=missed, window_s=window_s, jitter_s=jitter_s),
            now_ms,
        )
        for timing in (Timing(every="5m"), Timing(cron="*/5 * * * *"))
    ]
    runs, count, _ = both[0]
    due_ = sum(
        at.ms + jitter_ms(schedule(jitter_s=jitter_s), at.ms) <= now_ms
        for at in instants_between(Timing(every="5m"), START_MS, now_ms, 1000)
    )

    assert both[0][:2] == both[1][:2]
    assert due_ == len(runs) + count
    assert sorted(set(runs)) == runs


def test_a_thousand_late_instants_fire_and_the_rest_are_missed() -> None:
    """With `all`: those beyond would keep the broker from what is in time."""
    at = schedule(missed=Missed.ALL)
    runs, missed, steps = decided(at, START_MS + DAY_MS - 30 * SECOND_MS)
    in_time = 1  # Minute 1439.

    assert CAUGHT_UP_MAX + in_time == len(runs)
    assert 1439 - CAUGHT_UP_MAX - in_time == missed
    assert list(range(1, 1001)) == [(at_ms - START_MS) // MINUTE_MS for at_ms in runs[:-1]]
    assert steps >= CAUGHT_UP_MAX // FIRED_MAX


# Long gaps.


def test_a_long_gap_of_a_cron_is_decided_in_bounded_steps() -> None:
    """Each looks at so many instants, and none of them fires twice."""
    at = schedule(Timing(cron="* * * * * *"), missed=Missed.ONE)
    now_ms = START_MS + 2 * HOUR_MS
    first = fired(at, now_ms)
    runs, missed, steps = decided(at, now_ms)
    in_time = 61

    assert START_MS + LOOKED_AT_MAX * SECOND_MS == first.done_ms
    assert ((), LOOKED_AT_MAX) == (first.runs, first.missed)
    assert first.done_ms + SECOND_MS == first.next_ms
    assert 1 + in_time == len(runs)
    assert 7200 - len(runs) == missed
    assert 7200 // LOOKED_AT_MAX < steps < 10


def test_a_long_gap_of_an_interval_is_counted_at_once() -> None:
    """Ten years of seconds, of which the window has a day."""
    at = schedule(Timing(every="1s"), missed=Missed.SKIP)
    now_ms = START_MS + 3653 * DAY_MS
    first = fired(at, now_ms)

    assert LOOKED_AT_MAX == first.missed - (3653 - 1) * 86_400 + 1
    runs, missed, steps = decided(at, now_ms)
    assert 61 == len(runs)
    assert 3653 * 86_400 - 61 == missed
    assert steps < 50


def test_an_interval_that_ended_long_ago_is_counted_to_its_end() -> None:
    """Nothing is missed that never was."""
    ended = Timing(every="1s", end_ms=START_MS + 100 * SECOND_MS)
    runs, missed, _ = decided(schedule(ended, window_s=60), START_MS + 40 * DAY_MS)

    assert ([], 99) == (runs, missed)


def test_an_entry_has_so_many_runs() -> None:
    """By number, or by the bytes of their payloads."""
    every = Timing(every="1s")
    now_ms = START_MS + 61 * SECOND_MS
    large = replace(TEMPLATE, payload=f'"{"x" * (FIRED_BYTES_MAX // 16)}"')
    first = fired(schedule(every), now_ms)
    by_bytes = fired(schedule(every, task=large), now_ms)

    assert FIRED_MAX == len(first.runs)
    assert first.runs[-1].at_ms + SECOND_MS == first.next_ms
    assert 15 == len(by_bytes.runs)
    assert 1 == len(fired(schedule(every, task=replace(large, payload="x" * 2**20)), now_ms).runs)


# Jitter.


def test_an_instant_fires_its_jitter_later() -> None:
    """To the millisecond, and it is in time for a minute from then on."""
    at = schedule(Timing(every="1h"), jitter_s=3600)
    fires_ms = START_MS + HOUR_MS + jitter_ms(at, START_MS + HOUR_MS)
    [run] = fired(at, fires_ms).runs
    [in_time] = fired(at, fires_ms + IN_TIME_MS).runs

    assert firing(at, fires_ms - 1) is None
    assert fires_ms == at.fires_ms
    assert (START_MS + HOUR_MS, False) == (run.at_ms, run.late)
    assert not in_time.late


def test_an_instant_that_waits_for_its_jitter_waits_within_the_window() -> None:
    """The window begins when it fires."""
    at = schedule(Timing(every="1d"), jitter_s=3600, window_s=0)
    fires_ms = START_MS + DAY_MS + jitter_ms(at, START_MS + DAY_MS)

    assert fires_ms > START_MS + DAY_MS + IN_TIME_MS
    assert 1 == len(fired(at, fires_ms).runs)


# Clocks and rules.


def test_a_clock_that_goes_back_decides_nothing_again() -> None:
    """It waits until the clock is where it was."""
    at = schedule()
    ahead = after(at, fired(at, START_MS + 10 * MINUTE_MS))

    assert firing(ahead, START_MS + MINUTE_MS) is None
    assert [11] == minutes(fired(ahead, START_MS + 11 * MINUTE_MS))


def test_another_next_instant_is_noted_although_nothing_is_due() -> None:
    """As after a change of rules, or of a clock that was behind."""
    at = replace(schedule(), next_ms=START_MS + 1)
    operation = fired(at, START_MS + 1)

    assert ((), 0, START_MS) == (operation.runs, operation.missed, operation.done_ms)
    assert START_MS + MINUTE_MS == operation.next_ms
    assert firing(after(at, operation), START_MS + 1) is None


def test_a_calendar_that_cannot_be_read_raises() -> None:
    """The caller sets the schedule aside."""
    broken = replace(schedule(), plan=replace(schedule().plan, timing=Timing(cron="no cron")))

    with pytest.raises(InvalidSchedule):
        firing(broken, START_MS + DAY_MS)


def test_both_nights_of_berlin() -> None:
    """A fixed time that is skipped fires at the end of the gap, and one that is twice once."""
    at = schedule(
        Timing(cron="30 2 * * *", zone="Europe/Berlin"), missed=Missed.ALL, window_s=31 * 86_400
    )
    march, october = 1_774_656_000_000, 1_792_800_000_000  # The 28th and the 24th.
    spring, _, _ = decided(replace(at, done_ms=march), march + 3 * DAY_MS)
    autumn, _, _ = decided(replace(at, done_ms=october), october + 3 * DAY_MS)

    assert [90, 25 * 60, 48 * 60 + 30] == [(ms - march) // MINUTE_MS for ms in spring]
    assert [30, 24 * 60 + 30, 49 * 60 + 30] == [(ms - october) // MINUTE_MS for ms in autumn]


# Backfills.


def backfilled(at: Schedule, *, to_ms: int, **fields: object) -> Schedule:
    """Return the schedule with a backfill from the start on."""
    walk = Backfill(name="b", done_ms=START_MS, to_ms=to_ms, overlap=Overlap.ALLOW)
    return replace(at, backfill=replace(walk, **fields))


def test_a_step_of_a_backfill_has_so_many_runs() -> None:
    """The next one begins behind them, and the last ends where the backfill does."""
    at = backfilled(schedule(), to_ms=START_MS + HOUR_MS + SECOND_MS)
    step = filling(at)
    assert step is not None
    walk = at.backfill
    assert walk is not None
    last = filling(replace(at, backfill=replace(walk, done_ms=step.done_ms)))

    assert last is not None
    assert (FIRED_MAX, START_MS + FIRED_MAX * MINUTE_MS) == (len(step.runs), step.done_ms)
    assert (60 - FIRED_MAX, walk.to_ms) == (len(last.runs), last.done_ms)
    assert {True} == {each.late for each in step.runs}


def test_a_step_of_large_payloads_has_fewer() -> None:
    """One at least."""
    large = replace(TEMPLATE, payload="x" * (FIRED_BYTES_MAX // 4))
    step = filling(backfilled(schedule(task=large), to_ms=START_MS + HOUR_MS))
    assert step is not None

    assert 4 == len(step.runs)


def test_without_room_there_is_no_step() -> None:
    """As without a backfill."""
    queued = tuple(RunRow(name=str(number), at_ms=number) for number in range(FIRED_MAX))
    full = replace(schedule(), queued=queued)

    assert filling(schedule()) is None
    assert filling(backfilled(full, to_ms=START_MS + DAY_MS, overlap=Overlap.QUEUE)) is None


def test_instants_between_two_are_bounded() -> None:
    """The second counts, the first does not."""
    found = instants_between(MINUTELY, START_MS, START_MS + 3 * MINUTE_MS, BACKFILL_MAX)

    assert [1, 2, 3] == [(at.ms - START_MS) // MINUTE_MS for at in found]
    assert 2 == len(instants_between(MINUTELY, START_MS, START_MS + DAY_MS, 2))


@pytest.mark.parametrize("missed", [Missed.SKIP, Missed.ONE])
def test_no_instant_is_late_because_an_earlier_one_has_more_jitter(missed: Missed) -> None:
    """However much longer the jitter is than the interval."""
    at = schedule(jitter_s=600, missed=missed, overlap=Overlap.ALLOW)
    runs: list[Due] = []
    while at.fires_ms < START_MS + HOUR_MS:
        operation = fired(at, at.fires_ms)
        assert 0 == operation.missed
        runs += operation.runs
        at = after(at, operation)

    assert [False] * len(runs) == [each.late for each in runs]
    assert list(range(1, 1 + len(runs))) == [(run.at_ms - START_MS) // MINUTE_MS for run in runs]
    assert len(runs) >= 50
