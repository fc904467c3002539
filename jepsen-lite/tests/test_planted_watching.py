"""Planted violations of G35, and their repaired twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from jepsen_lite.checker.judging import verdicts
from jepsen_lite.history import Args, F, Out, Told, Type
from jepsen_lite.story import Story
from jepsen_lite.watching import WATCHED


def told(kind: str, index: int) -> Told:
    """Return an event of the only task, on the only shard."""
    return Told(task="t", kind=kind, shard=0, index=index)


class World:
    """A task, a watcher who has begun before its create, and one who has begun later.

    Attributes:
        pages: What each watcher was told after its first cursor.
        came_to_the_end: The watchers of whom that is known.
    """

    def __init__(self) -> None:
        whole = [told("ready", 5), told("claimed", 6), told("completed", 7)]
        self.pages = {"early": [whole[:1], whole[1:2], whole[2:]], "late": [whole[1:], [], []]}
        self.came_to_the_end = {"early", "late"}

    def told(self) -> Story:
        """Tell of the task's life and of the pages."""
        story = Story()
        story.create("t", (2, 2.1))
        story.claim("t", (4, 4.1))
        story.result("t", (6, 6.1), content='{"n":1}')
        for name, pages in self.pages.items():
            begun = 1.0 if name == "early" else 3.0
            args = Args(command=WATCHED, name=name)
            story.op(F.WATCH, (begun, begun + 0.1), Type.OK, args, Out(cursor="0"))
            for n, page in enumerate(pages, 1):
                args = replace(args, after=str(n - 1))
                out = Out(told=tuple(page), cursor=str(n))
                story.op(F.WATCH, (8.0 + n, 8.1 + n), Type.OK, args, out)
            if name in self.came_to_the_end:
                args = replace(args, after=str(len(pages)), final=True)
                story.op(F.WATCH, (20, 20.1), Type.OK, args, Out(cursor=args.after))
        story.read("t", (22, 23), status="COMPLETED", content='{"n":1}', final=True)
        return story


def an_end_is_missing(world: World) -> None:
    for pages in world.pages.values():
        pages[-1] = []
        pages[0] = pages[0][:1]


def one_watcher_lacks_a_claim(world: World) -> None:
    world.pages["early"][1] = []


def a_later_entry_comes_first(world: World) -> None:
    first, second, third = world.pages["early"]
    world.pages["early"] = [second, first, third]


def an_event_comes_again_after_the_cursor(world: World) -> None:
    world.pages["early"][1] = [*world.pages["early"][0], *world.pages["early"][1]]


PLOTS: tuple[Callable[[World], None], ...] = (
    an_end_is_missing,
    one_watcher_lacks_a_claim,
    a_later_entry_comes_first,
    an_event_comes_again_after_the_cursor,
)


@pytest.mark.parametrize("plot", PLOTS, ids=lambda each: each.__name__)
def test_a_planted_violation_is_found(plot: Callable[[World], None]) -> None:
    """Each breaks the guarantee in a way of its own."""
    world = World()
    plot(world)

    assert verdicts(world.told().history())["G35"].valid is False


def test_the_repaired_twin_breaks_nothing() -> None:
    """The same story is judged, and no checker objects to it."""
    found = verdicts(World().told().history())

    assert found["G35"].valid is True, found["G35"]
    assert [] == [each for each in found.values() if each.valid is False]


def test_a_watcher_whose_way_ended_early_owes_nothing() -> None:
    """What it was told still binds the other one."""
    world = World()
    world.pages["early"] = world.pages["early"][:1]
    world.came_to_the_end = {"late"}
    assert verdicts(world.told().history())["G35"].valid is True
    world.came_to_the_end = set()

    assert verdicts(world.told().history())["G35"].valid is None
