"""Planted violations of G36, and their repaired twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from jepsen_lite.checker.judging import verdicts
from jepsen_lite.graces import GRACE_COMMAND
from jepsen_lite.history import Args, F, Out, Part, Type
from jepsen_lite.story import Story

DEADLINE_MS = 9_000
GRACE_MS = 6_000
LEASE_MS = 8_000


class World:
    """Two tasks that are cancelled with a grace: one is given back, of one the result counts."""

    def __init__(self) -> None:
        self.ops: dict[str, tuple[F, float, Type, str, int]] = {
            "claim a": (F.ACCEPT, 1, Type.OK, "a", 0),
            "claim b": (F.ACCEPT, 1, Type.OK, "b", 0),
            "first beat": (F.BEAT, 2, Type.OK, "a", 0),
            "cancel a": (F.STOP, 3, Type.OK, "a", 0),
            "cancel b": (F.STOP, 3, Type.OK, "b", 0),
            "beat": (F.BEAT, 4, Type.OK, "a", DEADLINE_MS),
            "last beat": (F.BEAT, 5, Type.OK, "a", DEADLINE_MS),
            "return": (F.RETURN, 6, Type.OK, "a", 0),
            "late beat": (F.BEAT, 7, Type.FAIL, "a", 0),
            "late result": (F.HAND_IN, 8, Type.FAIL, "a", 0),
            "result": (F.HAND_IN, 6, Type.OK, "b", 0),
        }
        part = Part(task="a", group="", content="", status="FAILED", created_ms=1, changed_ms=2)
        self.last = {
            "a": replace(part, error="CANCELLED"),
            "b": replace(part, task="b", status="COMPLETED"),
        }

    def becomes(self, name: str, *, kind: Type = Type.OK, until_ms: int | None = None) -> None:
        """Let an operation have another answer."""
        f, at, _, task, known = self.ops[name]
        self.ops[name] = f, at, kind, task, known if until_ms is None else until_ms

    def told(self) -> Story:
        """Tell of the operations and the last look."""
        story = Story()
        for f, at, kind, task, until_ms in self.ops.values():
            claimed = f is F.ACCEPT
            code = "lease-lost" if kind is Type.FAIL else ""
            out = Out(task=task if claimed else "", until_ms=until_ms, code=code)
            args = Args(lease_ms=LEASE_MS, delay_ms=GRACE_MS if f is F.STOP else 0)
            args = replace(args, **({"command": GRACE_COMMAND} if claimed else {"task": task}))
            story.op(f, (at, at + 0.1), kind, args, out)
        look = Args(command=GRACE_COMMAND, final=True)
        story.op(F.LAST, (22, 23), Type.OK, look, Out(parts=tuple(self.last.values())))
        return story


def a_heartbeat_does_not_tell(world: World) -> None:
    world.becomes("beat", until_ms=0)


def a_deadline_moves(world: World) -> None:
    world.becomes("last beat", until_ms=DEADLINE_MS + 1)


def a_cancelled_task_is_handed_out(world: World) -> None:
    world.ops["claim again"] = F.ACCEPT, 9, Type.OK, "a", 0


def a_heartbeat_counts_after_the_end(world: World) -> None:
    world.becomes("late beat", until_ms=DEADLINE_MS)


def a_result_counts_after_the_end(world: World) -> None:
    world.becomes("late result")
    world.last["a"] = replace(world.last["a"], status="COMPLETED", error="")


def a_task_is_left_open(world: World) -> None:
    world.last["a"] = replace(world.last["a"], status="PENDING", error="")


def a_task_dies(world: World) -> None:
    world.last["a"] = replace(world.last["a"], dead=True)


def a_result_is_lost(world: World) -> None:
    world.last["b"] = replace(world.last["b"], status="FAILED", error="CANCELLED")


def a_refused_result_counts(world: World) -> None:
    world.becomes("result", kind=Type.FAIL)


def a_result_within_the_grace_is_refused(world: World) -> None:
    world.becomes("result", kind=Type.FAIL)
    world.last["b"] = replace(world.last["b"], status="FAILED", error="CANCELLED")


def a_task_is_gone(world: World) -> None:
    del world.last["a"]


PLOTS: tuple[Callable[[World], None], ...] = (
    a_heartbeat_does_not_tell,
    a_deadline_moves,
    a_cancelled_task_is_handed_out,
    a_heartbeat_counts_after_the_end,
    a_result_counts_after_the_end,
    a_task_is_left_open,
    a_task_dies,
    a_result_is_lost,
    a_refused_result_counts,
    a_result_within_the_grace_is_refused,
    a_task_is_gone,
)


@pytest.mark.parametrize("plot", PLOTS, ids=lambda each: each.__name__)
def test_a_planted_violation_is_found(plot: Callable[[World], None]) -> None:
    """Each breaks the guarantee in a way of its own."""
    world = World()
    plot(world)

    assert verdicts(world.told().history())["G36"].valid is False


def test_the_repaired_twin_breaks_nothing() -> None:
    """The same story is judged, and no checker objects to it."""
    found = verdicts(World().told().history())

    assert found["G36"].valid is True, found["G36"]
    assert [] == [each for each in found.values() if each.valid is False]


@pytest.mark.parametrize("at", [9.1, 10.0])
def test_a_result_after_the_lease_or_the_grace_may_be_refused(at: float) -> None:
    """Both have begun by then long enough ago, and the broker has ended the task."""
    world = World()
    a_result_within_the_grace_is_refused(world)
    f, _, *rest = world.ops["result"]
    world.ops["result"] = (f, at, *rest)

    assert verdicts(world.told().history())["G36"].valid is True


@pytest.mark.parametrize("name", ["cancel a", "return", "result"])
def test_a_lost_answer_excuses_what_it_may_have_done(name: str) -> None:
    """A cancel, a nack or a result of which nobody knows may have counted, or not."""
    world = World()
    world.becomes(name, kind=Type.INFO)
    assert verdicts(world.told().history())["G36"].valid is True
    plot = {
        "cancel a": a_cancelled_task_is_handed_out,
        "return": a_result_counts_after_the_end,
        "result": a_result_is_lost,
    }[name]
    plot(world)

    assert verdicts(world.told().history())["G36"].valid is True
