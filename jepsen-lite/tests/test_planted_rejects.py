"""Planted violations of G40 and G41, and their repaired twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from jepsen_lite.checker.judging import verdicts
from jepsen_lite.history import Args, F, Out, Part, Type
from jepsen_lite.rejects import REJECT_COMMAND
from jepsen_lite.story import Story

NO_USE = "no use"


class World:
    """Two tasks that are rejected, of which one is requeued and done, and the log of one."""

    def __init__(self) -> None:
        self.ops: dict[str, tuple[F, float, Type, Args, Out]] = {
            "claim a": (F.ACCEPT, 1, Type.OK, _CLAIM, Out(task="a", token=1)),
            "first line": _beat(2, "one"),
            "second line": _beat(3, "two"),
            "reject a": _reject(4, "a"),
            "late line": _beat(5, "three", Type.FAIL),
            "claim b": (F.ACCEPT, 1, Type.OK, _CLAIM, Out(task="b", token=2)),
            "reject b": _reject(2, "b"),
            "revive b": (F.REVIVE, 3, Type.OK, replace(_CLAIM, task="b"), Out()),
            "claim b again": (F.ACCEPT, 4, Type.OK, _CLAIM, Out(task="b", token=3)),
            "result": (F.HAND_IN, 5, Type.OK, Args(task="b", token=3), Out()),
        }
        part = Part(task="a", group="", content="", status="FAILED", created_ms=1, changed_ms=2)
        self.last = [
            replace(part, error=NO_USE, dead=True),
            replace(part, task="b", status="COMPLETED"),
        ]
        self.lines = ["one", "two"]

    def becomes(self, name: str, kind: Type) -> None:
        """Let an operation have another answer."""
        f, at, _, args, out = self.ops[name]
        self.ops[name] = f, at, kind, args, out

    def verdict(self, guarantee: str) -> bool | None:
        """Tell of the operations and the last looks, and return what they are judged to be."""
        story = Story()
        for f, at, kind, args, out in self.ops.values():
            story.op(f, (at, at + 0.1), kind, args, out)
        look = replace(_CLAIM, final=True)
        story.op(F.LAST, (22, 23), Type.OK, look, Out(parts=tuple(self.last)))
        log = Args(task="a", final=True)
        story.op(F.LOG, (22, 23), Type.OK, log, Out(lines=tuple(self.lines)))
        return verdicts(story.history())[guarantee].valid


_CLAIM = Args(command=REJECT_COMMAND)


def _beat(at: float, line: str, kind: Type = Type.OK) -> tuple[F, float, Type, Args, Out]:
    return F.BEAT, at, kind, Args(task="a", token=1, content=line), Out()


def _reject(at: float, task: str) -> tuple[F, float, Type, Args, Out]:
    token = 1 if task == "a" else 2
    return F.REJECT, at, Type.OK, Args(task=task, token=token, content=NO_USE), Out(dead=True)


def a_rejected_task_is_handed_out(world: World) -> None:
    world.ops["claim again"] = F.ACCEPT, 6, Type.OK, _CLAIM, Out(task="a", token=4)


def a_requeue_that_was_refused_hands_a_task_out(world: World) -> None:
    world.becomes("revive b", Type.FAIL)


def a_heartbeat_counts_after_the_reject(world: World) -> None:
    world.becomes("late line", Type.OK)


def a_rejected_task_waits_at_the_end(world: World) -> None:
    world.last[0] = replace(world.last[0], status="PENDING", dead=False)


def a_dead_letter_has_another_reason(world: World) -> None:
    world.last[0] = replace(world.last[0], error="MAX_ATTEMPTS")


def a_rejected_task_is_gone(world: World) -> None:
    del world.last[0]


def a_rejected_task_is_there_twice(world: World) -> None:
    world.last.append(world.last[0])


def a_task_dies_without_a_reject(world: World) -> None:
    world.becomes("reject b", Type.FAIL)
    world.last[1] = replace(world.last[1], dead=True)


def a_line_is_lost(world: World) -> None:
    del world.lines[0]


def lines_change_places(world: World) -> None:
    world.lines.reverse()


def a_refused_line_is_there(world: World) -> None:
    world.lines.append("three")


def a_line_is_of_nobody(world: World) -> None:
    world.lines.append("four")


PLOTS: tuple[tuple[str, Callable[[World], None]], ...] = (
    ("G41", a_rejected_task_is_handed_out),
    ("G41", a_requeue_that_was_refused_hands_a_task_out),
    ("G41", a_heartbeat_counts_after_the_reject),
    ("G41", a_rejected_task_waits_at_the_end),
    ("G41", a_dead_letter_has_another_reason),
    ("G41", a_rejected_task_is_gone),
    ("G41", a_rejected_task_is_there_twice),
    ("G41", a_task_dies_without_a_reject),
    ("G40", a_line_is_lost),
    ("G40", lines_change_places),
    ("G40", a_refused_line_is_there),
    ("G40", a_line_is_of_nobody),
)


@pytest.mark.parametrize(
    ("guarantee", "plot"), PLOTS, ids=lambda each: getattr(each, "__name__", each)
)
def test_a_planted_violation_is_found(guarantee: str, plot: Callable[[World], None]) -> None:
    """Each breaks the guarantee in a way of its own."""
    world = World()
    plot(world)

    assert world.verdict(guarantee) is False


@pytest.mark.parametrize("guarantee", ["G40", "G41"])
def test_the_repaired_twin_breaks_nothing(guarantee: str) -> None:
    """The same story is judged, and no checker objects to it."""
    assert World().verdict(guarantee) is True


def test_a_line_may_be_there_twice() -> None:
    """A node that has lost the leader's answer sends the heartbeat again."""
    world = World()
    world.lines = ["one", "two", "one", "two"]

    assert world.verdict("G40") is True


@pytest.mark.parametrize(
    ("name", "guarantee", "plot"),
    [
        ("reject a", "G41", a_rejected_task_is_handed_out),
        ("revive b", "G41", a_requeue_that_was_refused_hands_a_task_out),
        ("first line", "G40", a_line_is_lost),
    ],
)
def test_a_lost_answer_excuses_what_it_may_have_done(
    name: str, guarantee: str, plot: Callable[[World], None]
) -> None:
    """A reject, a requeue or a heartbeat of which nobody knows may have counted, or not."""
    world = World()
    plot(world)
    world.becomes(name, Type.INFO)

    assert world.verdict(guarantee) is True
