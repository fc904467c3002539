"""Validity: a run that did too little is unknown, and a violation outweighs that."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from jepsen_lite.checker.judging import Exit, judge
from jepsen_lite.checker.validity import Demands
from jepsen_lite.history import Group, Type
from jepsen_lite.story import Story

DEMANDS = Demands(ok={"create": 70}, faults={"kill": 1}, leader_changes=1, proves=("G1",))


def run(
    *,
    calibrated: int = 60,
    slow: bool = False,
    kills: int = 1,
    applied: int = 1,
    lost: bool = False,
    read: bool = True,
    until: str = "end",
    new_leader: bool = True,
) -> Story:
    """Return a valid run with the requested deviations."""
    story = Story()
    story.phase("setup", 0, ("n1", "n2", "n3"))
    story.phase("calibrate", 0)
    story.status("n1", 0.5, Group(shard=0, term=1, leads=True))
    for n in range(calibrated):
        begun = 1 + n / 100
        story.create(f"a{n}", (begun, begun + (0.3 if slow else 0.01)))
    story.phase("main", 3)
    for n in range(20):
        story.create(f"b{n}", (3 + n / 10, 3.05 + n / 10))
    for n in range(kills):
        story.fault("kill", (4 + n, 4.5 + n), applied=applied)
    story.status("n2", 6, Group(shard=0, term=2 if new_leader else 1, leads=new_leader))
    for n in range(calibrated if read else 0):
        story.read(f"a{n}", (7, 8), "PENDING", final=True)
    for n in range(20):
        story.read(f"b{n}", (7, 8), "" if lost else "PENDING", final=True)
    for n, name in enumerate(("heal", "converged", "drained", "final", "end")):
        story.phase(name, 6 + n / 10)
        if name == until:
            break
    for node in ("n1", "n2") if until == "end" else ():
        story.status(node, 7, Group(shard=0, applied=9, digest="r"), p="autopsy")
    return story


def test_a_run_that_did_enough_is_valid() -> None:
    """The run meets every demand, and no guarantee is broken."""
    judgement = judge(run().history(), DEMANDS)

    assert (Exit.VALID, ()) == (judgement.exit, judgement.shortcomings)


def test_a_state_must_be_fetched_for_as_long_as_is_asked() -> None:
    """The longest fetch counts."""
    story = run()
    story.fault("away", (4, 5), took_ms=700)
    story.fault("away", (5, 5.5), took_ms=3000)
    asked = {ms: replace(DEMANDS, fetch_ms=ms) for ms in (3000, 3001)}
    found = {ms: judge(story.history(), each).shortcomings for ms, each in asked.items()}

    assert {3000: 0, 3001: 1} == {ms: len(lines) for ms, lines in found.items()}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (run(calibrated=40), "before the first fault"),
        (run(slow=True), "too busy"),
        (run(kills=0), "0 faults 'kill'"),
        (run(applied=0), "0 faults 'kill'"),
        (run(read=False), "G1 could not be judged"),
        (run(until="heal"), "did not get to 'drained'"),
        (run(new_leader=False), "0 changes of leaders"),
        (Story(), "the history is empty"),
    ],
    ids=["short", "slow", "no-fault", "no-effect", "unread", "undrained", "no-election", "empty"],
)
def test_a_run_that_did_too_little_is_unknown(told: Story, says: str) -> None:
    """The run reports which demands it did not meet, and is never valid."""
    judgement = judge(told.history(), DEMANDS)

    assert judgement.exit is Exit.UNKNOWN
    assert any(says in line for line in judgement.shortcomings), judgement.shortcomings


def test_a_calibration_with_failures_is_unknown() -> None:
    """A cluster that fails without a fault proves nothing about faults."""
    story = run()
    story.create("z", (1, 2), Type.INFO)

    assert judge(story.history(), DEMANDS).exit is Exit.UNKNOWN


@pytest.mark.parametrize(("slow", "expected"), [(False, Exit.VIOLATION), (True, Exit.UNKNOWN)])
def test_a_starved_machine_is_no_slow_broker(slow: bool, expected: Exit) -> None:
    """If the whole machine is slow, slow operations prove nothing about the broker."""
    story = run(until="end")
    if slow:
        for n in range(60):
            story.create(f"s{n}", (1, 2.9))
    story.create("late", (5, 20), Type.INFO, deadline_ms=1000)

    assert judge(story.history(), DEMANDS).exit is expected


def test_a_violation_outweighs_unmet_demands() -> None:
    """A lost task is a violation even in a run that is too short to count."""
    judgement = judge(run(lost=True, kills=0).history(), DEMANDS)

    assert judgement.exit is Exit.VIOLATION
