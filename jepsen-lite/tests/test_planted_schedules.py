"""Planted violations of G23 and G24, and their repaired twins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import pytest

from jepsen_lite.checker.judging import verdicts
from jepsen_lite.history import Args, Counts, F, Out, Plan, Run, Type
from jepsen_lite.story import Story

Plot = Callable[[Story, bool], None]

SKIP = Plan(overlap="skip", every="1s")
ALLOW = Plan(overlap="allow", every="1s")
NIGHTLY = Plan(overlap="allow", cron="30 2 * * *", zone="Europe/Berlin")
HALF_HOURLY = Plan(overlap="allow", cron="*/30 * * * *", zone="Europe/Berlin")
FIRST_MS, UNTIL_MS = 1000, 5000  # Four instants, of seconds 1 to 4.


def run(at_s: float, *, end_s: float = 0.0, begin_s: float = 0.0, task: str = "") -> Run:
    """Return a run that begins at its instant and ends a little later."""
    return Run(
        task=task or f"t{at_s}",
        schedule="s",
        at_ms=round(at_s * 1000),
        created_ms=round((begin_s or at_s) * 1000),
        changed_ms=round((end_s or at_s + 0.5) * 1000),
        status="COMPLETED",
    )


def scheduled(
    story: Story,
    plan: Plan,
    runs: Iterable[Run],
    **counts: int,
) -> None:
    """Tell of a schedule from its put to its last look."""
    put = Args(schedule="s", plan=plan)
    story.op(F.PUT_SCHEDULE, (0, 1), Type.OK, put, Out(counts=Counts(next_ms=FIRST_MS)))
    look = Args(schedule="s", final=True)
    at_rest = Out(counts=Counts(next_ms=UNTIL_MS, **counts))
    story.op(F.SCHEDULE, (20, 21), Type.OK, look, at_rest)
    story.op(F.RUNS, (22, 23), Type.OK, Args(final=True), Out(runs=tuple(runs)))


def an_instant_is_forgotten(story: Story, broken: bool) -> None:
    # Nothing says what became of it.
    runs = [run(1), run(2, end_s=3.5), run(4)]
    scheduled(story, SKIP, runs, made=3, skipped=0 if broken else 1)


def an_instant_is_fired_twice(story: Story, broken: bool) -> None:
    # By two leaders, say.
    runs = [run(each) for each in (1, 2, 3, 4)]
    twin = [run(3, task="twin")] if broken else []
    scheduled(story, ALLOW, [*runs, *twin], made=4)


def a_run_is_of_no_instant(story: Story, broken: bool) -> None:
    # Of another calendar.
    runs = [run(each) for each in (1, 2, 3.5 if broken else 3, 4)]
    scheduled(story, ALLOW, runs, made=4)


def a_run_is_lost(story: Story, broken: bool) -> None:
    # The schedule says that it was made.
    runs = [run(each) for each in ((1, 2, 4) if broken else (1, 2, 3, 4))]
    scheduled(story, ALLOW, runs, made=4)


def a_schedule_stands_still(story: Story, broken: bool) -> None:
    # In calm, until it is paused.
    story.phase("setup", 0, detail="0")
    scheduled(story, ALLOW, [run(each) for each in (1, 2, 3, 4)], made=4)
    at_s = 30 if broken else 6
    story.op(F.PAUSE_SCHEDULE, (at_s, at_s + 1), Type.OK, Args(schedule="s"), Out())


def a_skipped_night_has_no_run(story: Story, broken: bool) -> None:
    # In spring 2:30 is skipped: the run comes at the end of the gap.
    night = [] if broken else ["2022-03-27T01:00"]
    runs = ["2022-03-26T01:30", *night, "2022-03-28T00:30"]
    _past(story, NIGHTLY, runs, ("2022-03-26T00:00", "2022-03-29T00:00"))


def a_doubled_night_has_two_runs(story: Story, broken: bool) -> None:
    # In autumn 2:30 comes twice, and the first one counts.
    night = ["2022-10-30T01:30"] if broken else []
    runs = ["2022-10-29T00:30", "2022-10-30T00:30", *night, "2022-10-31T01:30"]
    _past(story, NIGHTLY, runs, ("2022-10-29T00:00", "2022-10-31T23:00"))


def elapsed_time_stands_still_at_night(story: Story, broken: bool) -> None:
    # A job that is not of a fixed time goes on through both hours.
    half_hours = [f"2022-10-30T{hour:02}:{minute}" for hour in (0, 1) for minute in ("00", "30")]
    runs = half_hours[:2] if broken else half_hours
    _past(story, HALF_HOURLY, runs, ("2022-10-30T00:00", "2022-10-30T01:45"))


def runs_overlap_that_must_not(story: Story, broken: bool) -> None:
    # The first was in a worker's hands.
    runs = [run(1, end_s=3.5 if broken else 2.5), run(3), run(4)]
    scheduled(story, SKIP, runs, made=3, skipped=1)


def an_instant_is_skipped_while_nothing_is_open(story: Story, broken: bool) -> None:
    # The run before has ended before it.
    runs = [run(1), run(2, end_s=2.5 if broken else 3.5), run(4)]
    scheduled(story, SKIP, runs, made=3, skipped=1)


def an_instant_is_missed_for_no_reason(story: Story, broken: bool) -> None:
    # With the clock moved there is one.
    if not broken:
        story.fault("clock", (5, 15))
    scheduled(story, ALLOW, [run(each) for each in (1, 2, 3)], made=3, missed=1)


def an_instant_is_skipped_that_may_overlap(story: Story, broken: bool) -> None:
    # The policy allows it.
    runs = [run(1), run(2, end_s=3.5), run(4)]
    scheduled(story, ALLOW if broken else SKIP, runs, made=3, skipped=1)


def _past(story: Story, plan: Plan, at: list[str], past: tuple[str, str]) -> None:
    """Tell of a schedule whose past is filled back, and which has no instant since."""
    runs = [run(_ms(each) / 1000) for each in at]
    later = _ms(past[1]) + 1
    put = Args(schedule="s", plan=plan)
    story.op(F.PUT_SCHEDULE, (0, 1), Type.OK, put, Out(counts=Counts(next_ms=later)))
    fill = Args(schedule="s", from_ms=_ms(past[0]), to_ms=_ms(past[1]))
    story.op(F.BACKFILL, (1, 2), Type.OK, fill, Out())
    at_rest = Out(counts=Counts(next_ms=later))
    story.op(F.SCHEDULE, (20, 21), Type.OK, Args(schedule="s", final=True), at_rest)
    story.op(F.RUNS, (22, 23), Type.OK, Args(final=True), Out(runs=tuple(runs)))


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


PLOTS: tuple[tuple[str, Plot], ...] = (
    ("G23", an_instant_is_forgotten),
    ("G23", an_instant_is_fired_twice),
    ("G23", a_run_is_of_no_instant),
    ("G23", a_run_is_lost),
    ("G23", a_schedule_stands_still),
    ("G23", a_skipped_night_has_no_run),
    ("G23", a_doubled_night_has_two_runs),
    ("G23", elapsed_time_stands_still_at_night),
    ("G24", runs_overlap_that_must_not),
    ("G24", an_instant_is_skipped_while_nothing_is_open),
    ("G24", an_instant_is_missed_for_no_reason),
    ("G24", an_instant_is_skipped_that_may_overlap),
)

CASES = pytest.mark.parametrize(
    ("guarantee", "plot"),
    [pytest.param(guarantee, plot, id=f"{guarantee}-{plot.__name__}") for guarantee, plot in PLOTS],
)


@CASES
def test_a_broken_promise_is_found(guarantee: str, plot: Plot) -> None:
    """The checker finds the violation and shows its events."""
    story = Story()
    plot(story, True)
    verdict = verdicts(story.history())[guarantee]

    assert verdict.valid is False
    assert all(violation.events for violation in verdict.violations)


@CASES
def test_the_repaired_twin_breaks_nothing(guarantee: str, plot: Plot) -> None:
    """The same story without the violation is judged, and no checker objects to it."""
    story = Story()
    plot(story, False)
    found = verdicts(story.history())

    assert found[guarantee].valid is True, found[guarantee]
    assert [] == [v for v in found.values() if v.valid is False]


def test_runs_that_nobody_listed_are_not_judged() -> None:
    """The verdict stays open; it is not taken for kept."""
    story = Story()
    put = Args(schedule="s", plan=SKIP)
    story.op(F.PUT_SCHEDULE, (0, 1), Type.OK, put, Out(counts=Counts(next_ms=FIRST_MS)))
    found = verdicts(story.history())

    assert {None} == {found[name].valid for name in ("G23", "G24")}
    assert "nobody listed" in found["G23"].note
