"""Planted violations of G39, and their repaired twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from jepsen_lite.checker.judging import verdicts
from jepsen_lite.history import Args, F, Out, Part, Swept, Type
from jepsen_lite.story import Story

FIELD = "field-0-0"


class World:
    """A job by tag: two tasks before it, one while it is asked for, one after it, one without."""

    def __init__(self) -> None:
        self.sown = {
            "a": (0, 0.1),
            "b": (1, 1.1),
            "other": (1.5, 1.6),
            "while": (2.1, 2.2),
            "late": (4, 4.1),
        }
        self.kinds: dict[str, Type] = {}
        self.parts = {
            name: Part(
                task=name,
                group="",
                content=name,
                status="FAILED",
                error="CANCELLED",
                created_ms=0,
                changed_ms=0,
            )
            for name in ("a", "b", "while")
        }
        for name in ("other", "late"):
            self.parts[name] = replace(self.parts["a"], task=name, content=name, error="")
        self.swept: Swept | None = Swept(status="DONE", selected=3, changed=3, parts=2, shards=2)
        self.asked: list[tuple[tuple[float, float], Type]] = [((2, 3), Type.OK)]

    def told(self) -> Story:
        """Tell of the creates, the job and the last looks."""
        story = Story()
        for name, span in self.sown.items():
            args = Args(command=FIELD, content=name, tag="x" if name == "other" else FIELD)
            story.op(F.SOW, span, self.kinds.get(name, Type.OK), args, Out(task=name))
        for span, kind in self.asked:
            story.op(F.SWEEP, span, kind, Args(command=FIELD, tag=FIELD), Out())
        look = Args(command=FIELD, final=True)
        story.op(F.SWEPT, (20, 21), Type.OK, look, Out(swept=self.swept))
        story.op(F.PARTS, (22, 23), Type.OK, look, Out(parts=tuple(self.parts.values())))
        return story


def _touch(world: World, name: str, *, error: str) -> None:
    world.parts[name] = replace(world.parts[name], error=error)
    touched = sum(each.error == "CANCELLED" for each in world.parts.values())
    assert world.swept is not None
    world.swept = replace(world.swept, selected=touched, changed=touched)


def a_task_is_passed_over(world: World) -> None:
    """Leave a task alone that was there before the job was asked for."""
    _touch(world, "b", error="")


def a_later_task_is_touched(world: World) -> None:
    """Cancel a task that was created after the answer."""
    _touch(world, "late", error="CANCELLED")


def another_task_is_touched(world: World) -> None:
    """Cancel a task that lacks the tag."""
    _touch(world, "other", error="CANCELLED")


def a_task_is_counted_twice(world: World) -> None:
    """Let two leaders count the same step."""
    assert world.swept is not None
    world.swept = replace(world.swept, changed=4)


def a_task_is_gone(world: World) -> None:
    """Lose a task that nobody has deleted."""
    del world.parts["late"]


def a_part_never_ends(world: World) -> None:
    """Let a job go on when all nodes are at rest."""
    assert world.swept is not None
    world.swept = replace(world.swept, status="RUNNING")


def a_job_is_gone(world: World) -> None:
    """Forget a job that was answered."""
    world.swept = None


PLOTS: list[Callable[[World], None]] = [
    a_task_is_passed_over,
    a_later_task_is_touched,
    another_task_is_touched,
    a_task_is_counted_twice,
    a_task_is_gone,
    a_part_never_ends,
    a_job_is_gone,
]


@pytest.mark.parametrize("plot", PLOTS)
def test_a_planted_violation_is_found(plot: Callable[[World], None]) -> None:
    """Exactly this guarantee is broken."""
    world = World()
    plot(world)
    found = verdicts(world.told().history())

    assert ["G39"] == [name for name, each in found.items() if each.valid is False]


def test_the_repaired_twin_breaks_nothing() -> None:
    """A task that was created while the job was asked for may be touched or not."""
    spared = World()
    _touch(spared, "while", error="")
    for world in (World(), spared):
        found = verdicts(world.told().history())
        assert found["G39"].valid is True
        assert [] == [each for each in found.values() if each.valid is False]


def test_a_job_may_begin_with_its_first_request_or_with_its_answer() -> None:
    """What comes between a lost answer and the repeated request is neither before nor after."""
    for error in ("", "CANCELLED"):
        world = World()
        world.asked = [((0.5, 0.6), Type.INFO), ((2, 3), Type.OK)]
        _touch(world, "b", error=error)
        assert verdicts(world.told().history())["G39"].valid is True
