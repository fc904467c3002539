"""Planted violations of G26, and their repaired twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from jepsen_lite.checker.judging import verdicts
from jepsen_lite.graphs import NODE_COMMAND
from jepsen_lite.history import Args, F, Follow, Handed, Need, Out, Part, Type
from jepsen_lite.story import Story

PARENTS = ("done", "broken", "dead")
NEEDS = {
    "runs": (("done", "succeeded"), ("broken", "failed"), ("dead", "ended")),
    "lost": (("broken", "succeeded"),),
    "waits": (("dead", "succeeded"),),
}


class World:
    """Three tasks that have ended in three ways, and three that wait for them."""

    def __init__(self) -> None:
        self.parts = {
            "done": _part("done"),
            "broken": _part("broken", status="FAILED", error="why"),
            "dead": _part("dead", status="FAILED", dead=True),
            "runs": _part("runs"),
            "lost": _part(
                "lost", status="FAILED", error="DEPENDENCY_FAILED: task-broken", attempts=0
            ),
            "waits": _part("waits", status="PENDING", attempts=0),
        }
        self.inputs = {
            "done": Handed(name="task-done", status="COMPLETED", content='{"n":1}'),
            "broken": Handed(name="task-broken", status="FAILED", content="why"),
            "dead": Handed(name="task-dead", status="FAILED"),
        }
        self.twins: list[Part] = []
        self.started_s = 10
        self.needs = dict(NEEDS)
        self.revived = ""
        self.buried = ""

    def told(self) -> Story:
        """Tell of the graph from its begin to the list at rest."""
        story = Story()
        tasks = tuple(Follow(content=name) for name in PARENTS)
        made = tuple(Follow(task=f"task-{name}") for name in PARENTS)
        story.op(F.MAKE_GRAPH, (0, 1), Type.OK, Args(next=tasks), Out(next=made))
        for name, needs in self.needs.items():
            asked = Args(next=(Follow(content=name, needs=tuple(_need(*of) for of in needs)),))
            told = Out(next=(Follow(task=f"task-{name}"),))
            story.op(F.DEPEND, (1, 2), Type.OK, asked, told)
        for name, status, content in (
            ("done", "COMPLETED", '{"n":1}'),
            ("broken", "FAILED", "why"),
        ):
            ended = Args(task=f"task-{name}", token=1, status=status, content=content)
            story.op(F.END, (8, 9), Type.OK, ended, Out())
        for f, name in ((F.REVIVE, self.revived), (F.BURY, self.buried)):
            if name:
                story.op(f, (9, 10), Type.OK, Args(task=f"task-{name}"), Out())
        start = Out(task="task-runs", token=1, content="runs", inputs=tuple(self.inputs.values()))
        at = self.started_s, self.started_s + 1
        story.op(F.START, at, Type.OK, Args(command=NODE_COMMAND), start)
        listed = Out(parts=(*self.parts.values(), *self.twins))
        story.op(F.PARTS, (22, 23), Type.OK, Args(command=NODE_COMMAND, final=True), listed)
        return story


def _need(name: str, run_if: str) -> Need:
    return Need(parent=f"task-{name}", run_if=run_if, otherwise="cancel", on_dead="hold")


def _part(
    name: str,
    *,
    status: str = "COMPLETED",
    error: str = "",
    dead: bool = False,
    attempts: int = 1,
) -> Part:
    return Part(
        task=f"task-{name}",
        group="",
        content=name,
        status=status,
        error=error,
        dead=dead,
        created_ms=500,
        changed_ms=9000,
        attempts=attempts,
    )


def it_starts_without_a_result(world: World) -> None:
    del world.inputs["dead"]


def it_starts_before_the_result(world: World) -> None:
    world.started_s = 4


def it_is_handed_another_result(world: World) -> None:
    world.inputs["done"] = replace(world.inputs["done"], content='{"n":2}')


def it_is_handed_a_failure_of_what_must_succeed(world: World) -> None:
    world.inputs["done"] = replace(world.inputs["done"], status="FAILED")


def it_is_handed_a_success_of_what_must_fail(world: World) -> None:
    world.inputs["broken"] = replace(world.inputs["broken"], status="COMPLETED")


def it_is_handed_a_failure_of_what_has_completed(world: World) -> None:
    world.parts["dead"] = _part("dead")


def it_waits_for_nothing(world: World) -> None:
    world.parts["runs"] = _part("runs", status="PENDING", attempts=0)


def it_waits_in_vain(world: World) -> None:
    world.parts["lost"] = _part("lost", status="PENDING", attempts=0)


def it_waits_for_a_deleted_dead_letter(world: World) -> None:
    del world.parts["dead"]
    world.buried = "dead"


def it_ends_though_it_may_wait(world: World) -> None:
    world.parts["waits"] = replace(
        world.parts["lost"],
        task="task-waits",
        content="waits",
        error="DEPENDENCY_FAILED: task-dead",
    )


def it_ends_for_an_unknown_task_that_is_there(world: World) -> None:
    world.parts["lost"] = replace(world.parts["lost"], error="DEPENDENCY_UNKNOWN: task-broken")
    world.needs["lost"] = (("broken", "failed"),)


def it_ends_for_a_stranger(world: World) -> None:
    world.parts["lost"] = replace(world.parts["lost"], error="DEPENDENCY_FAILED: task-done")


def it_dies_though_it_is_to_be_cancelled(world: World) -> None:
    world.parts["lost"] = replace(world.parts["lost"], dead=True)


def it_is_started_though_it_can_never_be(world: World) -> None:
    world.parts["lost"] = replace(world.parts["lost"], attempts=1)


def it_completes_though_it_can_never_be_started(world: World) -> None:
    world.parts["lost"] = _part("lost")


def it_is_made_twice(world: World) -> None:
    world.twins.append(replace(world.parts["done"], task="task-twin"))


def it_is_gone(world: World) -> None:
    del world.parts["lost"]


def nobody_asked_for_it(world: World) -> None:
    world.twins.append(_part("stranger"))


PLOTS = (
    it_starts_without_a_result,
    it_starts_before_the_result,
    it_is_handed_another_result,
    it_is_handed_a_failure_of_what_must_succeed,
    it_is_handed_a_success_of_what_must_fail,
    it_is_handed_a_failure_of_what_has_completed,
    it_waits_for_nothing,
    it_waits_in_vain,
    it_waits_for_a_deleted_dead_letter,
    it_ends_though_it_may_wait,
    it_ends_for_an_unknown_task_that_is_there,
    it_ends_for_a_stranger,
    it_dies_though_it_is_to_be_cancelled,
    it_is_started_though_it_can_never_be,
    it_completes_though_it_can_never_be_started,
    it_is_made_twice,
    it_is_gone,
    nobody_asked_for_it,
)


@pytest.mark.parametrize("plot", PLOTS)
def test_a_planted_violation_is_found(plot: Callable[[World], None]) -> None:
    """The checker objects, and names the events that show it."""
    world = World()
    plot(world)
    verdict = verdicts(world.told().history())["G26"]

    assert verdict.valid is False
    assert all(violation.events for violation in verdict.violations)


def test_the_twin_without_a_violation_breaks_nothing() -> None:
    """The same story is judged, and no checker objects to it."""
    found = verdicts(World().told().history())

    assert (True, 9) == (found["G26"].valid, found["G26"].checked)
    assert [] == [each for each in found.values() if each.valid is False]


def test_a_dead_letter_that_lives_again_excuses_what_was_said_of_it() -> None:
    """It may complete in its second life, after others were told of its death."""
    world = World()
    world.revived = "dead"
    it_is_handed_a_failure_of_what_has_completed(world)
    world.parts["waits"] = _part("waits")

    assert verdicts(world.told().history())["G26"].valid is True


def test_a_task_may_end_for_one_that_was_deleted_before_it_was_asked_for() -> None:
    """Even if that one had ended as it should: nobody knows that any more."""
    world = World()
    it_ends_for_an_unknown_task_that_is_there(world)
    del world.parts["broken"], world.inputs["broken"]
    world.buried = "broken"
    world.needs["runs"] = (("done", "succeeded"), ("dead", "ended"))

    assert verdicts(world.told().history())["G26"].valid is True


def test_tasks_that_nobody_listed_are_not_judged() -> None:
    """The verdict stays open; it is not taken for kept."""
    verdict = verdicts(Story().history())["G26"]

    assert verdict.valid is None
    assert "nobody listed" in verdict.note
