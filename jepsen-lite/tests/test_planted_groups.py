"""Planted violations of G27, and their repaired twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from jepsen_lite.checker.judging import verdicts
from jepsen_lite.groups import MEMBER_COMMAND, THEN_COMMAND
from jepsen_lite.history import Args, F, Follow, Out, Part, Tally, Type
from jepsen_lite.story import Story

TALLY = Tally(status="FAILED", counts=(3, 1, 1, 0, 1), then="then")


class World:
    """A group of three members that has ended, as lists and reads at rest show it."""

    def __init__(self) -> None:
        self.tally = TALLY
        self.members = [_part("a", 1), _part("b", 2, status="FAILED"), _part("c", 3, dead=True)]
        self.thens = [_part("then", 3, created_s=3, counts=TALLY.counts)]
        self.refused = False

    def told(self) -> Story:
        """Tell of the group from its begin to its last look."""
        story = Story()
        first = Args(group="g", next=(Follow(content="a"),))
        story.op(F.BEGIN_GROUP, (0, 1), Type.OK, first, Out(tally=TALLY))
        more = Args(group="g", next=(Follow(content="b"), Follow(content="c", key="k")))
        kind = Type.FAIL if self.refused else Type.OK
        story.op(F.ADD_MEMBERS, (1, 2), kind, more, Out(tally=TALLY))
        look = Args(group="g", final=True)
        story.op(F.GROUP, (20, 21), Type.OK, look, Out(tally=self.tally))
        for command, parts in ((MEMBER_COMMAND, self.members), (THEN_COMMAND, self.thens)):
            args = Args(command=command, final=True)
            story.op(F.PARTS, (22, 23), Type.OK, args, Out(parts=tuple(parts)))
        return story


def _part(
    name: str,
    ended_s: float,
    *,
    created_s: float = 0.5,
    status: str = "COMPLETED",
    dead: bool = False,
    counts: tuple[int, int, int, int, int] | None = None,
) -> Part:
    return Part(
        task=name,
        group="g",
        content=name,
        status="FAILED" if dead else status,
        dead=dead,
        created_ms=round(created_s * 1000),
        changed_ms=round(ended_s * 1000),
        counts=counts,
    )


def a_member_is_counted_twice(world: World) -> None:
    world.tally = replace(TALLY, counts=(4, 2, 1, 0, 1))


def a_member_is_made_twice(world: World) -> None:
    world.members.append(replace(world.members[0], task="twin"))


def a_member_is_lost(world: World) -> None:
    del world.members[0]


def a_member_comes_of_a_refused_request(world: World) -> None:
    world.refused = True


def the_group_is_gone(world: World) -> None:
    world.tally = None  # type: ignore[assignment]


def nobody_completes(world: World) -> None:
    world.tally, world.thens = replace(TALLY, status="SEALED", then=""), []


def it_completes_twice(world: World) -> None:
    world.thens.append(replace(world.thens[0], task="twin"))


def it_completes_before_it_is_sealed(world: World) -> None:
    world.tally = replace(TALLY, status="OPEN")


def it_completes_too_early(world: World) -> None:
    world.thens = [replace(world.thens[0], created_ms=2000)]


def its_completion_is_told_something_else(world: World) -> None:
    world.thens = [replace(world.thens[0], counts=(2, 1, 1, 0, 0))]


PLOTS = (
    a_member_is_counted_twice,
    a_member_is_made_twice,
    a_member_is_lost,
    a_member_comes_of_a_refused_request,
    the_group_is_gone,
    nobody_completes,
    it_completes_twice,
    it_completes_before_it_is_sealed,
    it_completes_too_early,
    its_completion_is_told_something_else,
)


@pytest.mark.parametrize("plot", PLOTS)
def test_a_planted_violation_is_found(plot: Callable[[World], None]) -> None:
    """The checker objects, and names the events that show it."""
    world = World()
    plot(world)
    verdict = verdicts(world.told().history())["G27"]

    assert verdict.valid is False
    assert all(violation.events for violation in verdict.violations)


def test_the_twin_without_a_violation_breaks_nothing() -> None:
    """The same story is judged, and no checker objects to it."""
    found = verdicts(World().told().history())

    assert (True, 4) == (found["G27"].valid, found["G27"].checked)
    assert [] == [each for each in found.values() if each.valid is False]


def test_members_that_nobody_listed_are_not_judged() -> None:
    """The verdict stays open; it is not taken for kept."""
    story = Story()
    story.op(F.GROUP, (20, 21), Type.OK, Args(group="g", final=True), Out(tally=TALLY))
    verdict = verdicts(story.history())["G27"]

    assert verdict.valid is None
    assert "nobody listed" in verdict.note
