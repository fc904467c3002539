"""Planted violations of G32, G33 and G34, and their repaired twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from jepsen_lite.checker.judging import verdicts
from jepsen_lite.history import Args, F, Made, Merging, Out, Part, Type
from jepsen_lite.story import Story
from jepsen_lite.uniques import TAGS, UNIQUE_COMMAND

KEEP = Merging(key="u0", on="keepLast")
LATE = Merging(key="u2", on="replace", debounce_ms=1000, max_wait_ms=2000)

Span = tuple[float, float]


class World:
    """Two tasks of one key, the second replaced once, and a debounced one of another key.

    A third task of the first key is rejected, and requeued when the key is free again.
    """

    def __init__(self) -> None:
        self.said: dict[str, tuple[Span, Merging, Out]] = {
            "a": ((0, 0.1), KEEP, _out("t", "created", 0)),
            "b": ((2, 2.1), KEEP, _out("v", "queued", 2)),
            "c": ((3, 3.1), KEEP, _out("v", "replaced", 3, created=2, location="HELD_SET")),
            "e": ((10, 10.1), KEEP, _out("r", "created", 10)),
            "f": ((12, 12.1), KEEP, _out("s", "created", 12)),
            "x": ((0, 0.1), LATE, _out("w", "created", 0, start=1)),
            "y": ((0.5, 0.6), LATE, _out("w", "replaced", 0.5, created=0, start=1.5)),
        }
        self.takes: dict[str, tuple[Span, Out]] = {
            "t": ((1, 1.1), Out(task="t", token=1, attempt=1, content="a")),
            "v": ((6, 6.1), Out(task="v", token=1, attempt=1, content="c")),
            "w": ((1.6, 1.7), Out(task="w", token=1, attempt=1, content="y")),
            "r": ((10.2, 10.3), Out(task="r", token=1, attempt=1, content="e")),
            "s": ((12.2, 12.3), Out(task="s", token=1, attempt=1, content="f")),
            "r again": ((16, 16.1), Out(task="r", token=2, attempt=1, content="e")),
        }
        self.ends: dict[str, Span] = {"t": (5, 5.1), "v": (7, 7.1), "w": (1.8, 1.9)}
        self.ends |= {"s": (14, 14.1), "r": (18, 18.1)}
        self.rejected: Span = (11, 11.1)
        self.requeued: Span | None = (15, 15.1)
        self.parts = [
            _part("t", "a", "u0", 0, 5),
            _part("v", "c", "u0", 2, 7),
            _part("w", "y", "u2", 0, 1.8),
            _part("r", "e", "u0", 10, 18),
            _part("s", "f", "u0", 12, 14),
        ]
        self.kinds: dict[str, Type] = {}
        # By content; the last one of a task says its tag.
        self.tags = {"a": "r0", "b": "r1", "c": "r2", "e": "r0", "f": "r0", "x": "r0", "y": "r2"}
        self.lists = {"r0": ["s", "r", "t"], "r1": [], "r2": ["w", "v"]}

    def told(self) -> Story:
        """Tell of the creates, the claims, the results and the last look."""
        story = Story()
        for content, (span, merging, out) in self.said.items():
            tagged = replace(merging, tag=self.tags.get(content, "r0"))
            args = Args(command=UNIQUE_COMMAND, content=content, merging=tagged)
            story.op(F.MERGE, span, self.kinds.get(content, Type.OK), args, out)
        for span, out in self.takes.values():
            story.op(F.TAKE, span, Type.OK, Args(command=UNIQUE_COMMAND), out)
        for task, span in self.ends.items():
            token = max(out.token for _, out in self.takes.values() if out.task == task)
            done = Args(task=task, token=token, status="COMPLETED")
            story.op(F.FINISH, span, Type.OK, done, Out())
        story.op(F.REJECT, self.rejected, Type.OK, Args(task="r", token=1), Out(dead=True))
        if self.requeued is not None:
            args = Args(command=UNIQUE_COMMAND, task="r")
            story.op(F.REVIVE, self.requeued, Type.OK, args, Out(task="r"))
        look = Args(command=UNIQUE_COMMAND, final=True)
        story.op(F.PARTS, (22, 23), Type.OK, look, Out(parts=tuple(self.parts)))
        for tag, tasks in self.lists.items():
            args = Args(command=UNIQUE_COMMAND, tag=tag, final=True)
            parts = tuple(_part(task, "", "", 0, 0) for task in tasks)
            story.op(F.TAGGED, (24, 25), Type.OK, args, Out(parts=parts))
        return story


def _out(task: str, how: str, at: float, **said: Any) -> Out:
    made = Made(
        how=how,
        created_ms=round(1000 * said.get("created", at)),
        changed_ms=round(1000 * at),
        start_ms=round(1000 * said.get("start", 0)),
    )
    return Out(task=task, made=made, location=said.get("location", ""))


def _part(task: str, content: str, key: str, created: float, ended: float) -> Part:
    return Part(
        task=task,
        group=key,
        content=content,
        status="COMPLETED",
        created_ms=round(1000 * created),
        changed_ms=round(1000 * ended),
    )


def a_claim_has_what_was_replaced(world: World) -> None:
    span, out = world.takes["v"]
    world.takes["v"] = (span, replace(out, content="b"))


def a_claim_has_what_was_refused(world: World) -> None:
    world.kinds["c"] = Type.FAIL


def two_tasks_of_a_key_are_worked_on(world: World) -> None:
    _, out = world.takes["v"]
    world.takes["v"] = ((4, 4.1), out)


def an_older_payload_is_worked_on_last(world: World) -> None:
    world.said["c"] = (world.said["c"][0], KEEP, _out("t", "replaced", 3, created=0))
    world.takes["t again"] = ((4, 4.1), Out(task="t", token=2, attempt=2, content="c"))
    world.takes["v"] = (world.takes["v"][0], replace(world.takes["v"][1], content="b"))
    world.parts[0] = _part("t", "c", "u0", 0, 5)
    world.parts[1] = _part("v", "b", "u0", 2, 7)


def a_dead_letter_is_requeued_beside_another(world: World) -> None:
    world.requeued = (13, 13.1)


def two_tasks_of_a_key_are_worked_on_after_a_requeue(world: World) -> None:
    world.takes["s"] = ((17, 17.1), world.takes["s"][1])
    world.ends["s"] = (19, 19.1)
    world.parts[4] = _part("s", "f", "u0", 12, 19)


def a_requeued_task_is_dead_again(world: World) -> None:
    world.parts[3] = replace(world.parts[3], status="FAILED", dead=True)


def the_last_payload_is_lost(world: World) -> None:
    world.parts[1] = replace(world.parts[1], content="b")
    a_claim_has_what_was_replaced(world)
    world.takes["v"] = ((2.5, 2.6), world.takes["v"][1])
    world.ends["t"] = (2.2, 2.3)


def a_task_is_lost(world: World) -> None:
    del world.parts[1]


def a_task_is_not_done(world: World) -> None:
    world.parts[1] = replace(world.parts[1], status="PENDING")


def a_payload_makes_two_tasks(world: World) -> None:
    world.parts.append(_part("z", "a", "u0", 8, 9))


def three_tasks_have_a_key(world: World) -> None:
    world.said["d"] = ((3.5, 3.6), KEEP, _out("z", "created", 3.5))
    world.parts.append(_part("z", "d", "u0", 3.5, 9))


def a_replaced_task_has_a_second_beside_it(world: World) -> None:
    world.said["d"] = ((1, 1.1), LATE, _out("z", "created", 1, start=2))
    world.parts.append(_part("z", "d", "u2", 1, 9))


def a_debounced_task_is_claimed_too_soon(world: World) -> None:
    _, out = world.takes["w"]
    world.takes["w"] = ((0.7, 0.8), out)


def a_start_is_not_moved(world: World) -> None:
    span, merging, _ = world.said["y"]
    world.said["y"] = (span, merging, _out("w", "replaced", 0.5, created=0, start=1))


def a_start_is_moved_beyond_its_latest(world: World) -> None:
    span, merging, _ = world.said["y"]
    world.said["y"] = (span, merging, _out("w", "replaced", 1.5, created=0, start=2.5))


def a_debounced_task_is_ready_at_once(world: World) -> None:
    span, merging, _ = world.said["x"]
    world.said["x"] = (span, merging, _out("w", "created", 0))


def a_list_lacks_a_task(world: World) -> None:
    world.lists["r0"] = []


def a_list_has_a_task_that_is_gone(world: World) -> None:
    world.lists["r1"] = ["z"]


def a_list_has_a_task_whose_tag_was_replaced(world: World) -> None:
    world.lists["r1"] = ["v"]


def a_list_has_a_task_twice(world: World) -> None:
    world.lists["r2"] = ["w", "v", "v"]


PLOTS: tuple[tuple[str, Callable[[World], None]], ...] = (
    ("G32", a_claim_has_what_was_replaced),
    ("G32", a_claim_has_what_was_refused),
    ("G32", two_tasks_of_a_key_are_worked_on),
    ("G32", an_older_payload_is_worked_on_last),
    ("G32", a_dead_letter_is_requeued_beside_another),
    ("G32", two_tasks_of_a_key_are_worked_on_after_a_requeue),
    ("G32", a_requeued_task_is_dead_again),
    ("G32", the_last_payload_is_lost),
    ("G32", a_task_is_lost),
    ("G32", a_task_is_not_done),
    ("G32", a_payload_makes_two_tasks),
    ("G32", three_tasks_have_a_key),
    ("G32", a_replaced_task_has_a_second_beside_it),
    ("G33", a_debounced_task_is_claimed_too_soon),
    ("G33", a_start_is_not_moved),
    ("G33", a_start_is_moved_beyond_its_latest),
    ("G33", a_debounced_task_is_ready_at_once),
    ("G34", a_list_lacks_a_task),
    ("G34", a_list_has_a_task_that_is_gone),
    ("G34", a_list_has_a_task_whose_tag_was_replaced),
    ("G34", a_list_has_a_task_twice),
)


@pytest.mark.parametrize(
    ("guarantee", "plot"), PLOTS, ids=lambda each: getattr(each, "__name__", each)
)
def test_a_planted_violation_is_found(guarantee: str, plot: Callable[[World], None]) -> None:
    """Each breaks the guarantee in a way of its own."""
    world = World()
    plot(world)

    assert verdicts(world.told().history())[guarantee].valid is False


def test_the_repaired_twin_breaks_nothing() -> None:
    """The same story is judged, and no checker objects to it."""
    found = verdicts(World().told().history())

    assert sorted(TAGS) == sorted(World().lists)
    assert all(found[name].valid is True for name in ("G32", "G33", "G34")), found
    assert [] == [each for each in found.values() if each.valid is False]


@pytest.mark.parametrize(("asked", "valid"), [(0.5, True), (1.4, False)])
def test_a_create_that_was_asked_again_may_find_its_start_over(asked: float, valid: bool) -> None:
    """Its answer came a second later, so the task may be ready; a quick answer cannot show that."""
    world = World()
    world.said["y"] = ((asked, 1.55), LATE, _out("w", "replaced", 1.5, created=0))
    found = verdicts(world.told().history())["G33"]

    assert valid is found.valid


def test_a_lost_answer_excuses_what_it_may_have_done() -> None:
    """Its effect may come later than what was said after it."""
    world = World()
    a_claim_has_what_was_replaced(world)
    world.parts[1] = replace(world.parts[1], content="b")
    world.kinds["b"] = Type.INFO

    assert verdicts(world.told().history())["G32"].valid is True


def test_a_dead_letter_that_nobody_requeued_may_stay() -> None:
    """It has let go of its key, so others may have it meanwhile."""
    world = World()
    world.requeued = None
    del world.takes["r again"], world.ends["r"]
    a_requeued_task_is_dead_again(world)

    assert verdicts(world.told().history())["G32"].valid is True
