"""Planted violations of G37 and G38, and their repaired twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from jepsen_lite.checker.judging import verdicts
from jepsen_lite.history import Args, F, Out, Sent, Stepped, Type
from jepsen_lite.orders import ORDER_COMMAND
from jepsen_lite.story import Story

CHARGE = Stepped(name="charge", content='{"n":1}', at_ms=2_000)
WAITS = Stepped(name="go", signal="go", at_ms=3_000, until_ms=5_000, open=True)
WOKEN = replace(WAITS, content='{"s":1}', at_ms=4_000, open=False)
NAP = Stepped(name="nap", at_ms=6_000, until_ms=6_000)


class World:
    """An order that is charged, waits for a signal that comes, and has another one unread."""

    def __init__(self) -> None:
        self.begins: list[tuple[float, tuple[Stepped, ...]]] = [
            (1, ()),
            (4.5, (CHARGE, WOKEN)),
            (7, (CHARGE, WOKEN, NAP)),
        ]
        self.recorded = CHARGE
        self.final: list[Stepped] = [CHARGE, WOKEN, NAP]
        self.signals = [Sent(name="go", read=True), Sent(name="go", content='{"s":2}')]
        self.kinds: dict[str, Type] = {}

    def told(self) -> Story:
        """Tell of the deliveries, the steps, the signals and the last look."""
        story = Story()
        for at, steps in self.begins:
            out = Out(task="t", token=int(at), steps=steps)
            story.op(F.BEGIN, (at, at + 0.1), Type.OK, Args(command=ORDER_COMMAND), out)
        kind = self.kinds.get("charge", Type.OK)
        args = Args(task="t", token=1, name="charge", content=CHARGE.content)
        story.op(F.RECORD, (2, 2.1), kind, args, Out(steps=(self.recorded,)))
        park = Args(task="t", token=1, name="go", signal="go")
        story.op(F.PARK, (3, 3.1), Type.OK, park, Out(steps=(WAITS,)))
        for number, at in ((1, 4), (2, 8)):
            sent = Args(task="t", name="go", content=f'{{"s":{number}}}')
            kind = self.kinds.get(f"signal {number}", Type.OK)
            story.op(F.SIGNAL, (at, at + 0.1), kind, sent, Out())
        look = Args(command=ORDER_COMMAND, task="t", final=True)
        out = Out(steps=tuple(self.final), signals=tuple(self.signals))
        story.op(F.STEPS, (22, 23), Type.OK, look, out)
        return story


def a_delivery_lacks_a_step(world: World) -> None:
    world.begins[1] = (4.5, (WOKEN,))


def a_step_is_gone_at_the_end(world: World) -> None:
    world.final.remove(CHARGE)


def a_step_has_another_value_later(world: World) -> None:
    world.final[0] = replace(CHARGE, content='{"n":2}')


def a_step_has_what_was_refused(world: World) -> None:
    world.kinds["charge"] = Type.FAIL


def a_wait_is_not_handed_out(world: World) -> None:
    world.begins[1] = (4.5, (CHARGE,))


def a_waiting_order_is_handed_out(world: World) -> None:
    world.begins[1] = (3.5, (CHARGE, WAITS))


def a_wait_is_too_short(world: World) -> None:
    world.final[2] = replace(NAP, at_ms=5_990)
    world.begins[2] = (7, (CHARGE, WOKEN, world.final[2]))


def a_wait_ends_twice(world: World) -> None:
    world.final[1] = replace(WOKEN, content='{"s":2}')


def a_wait_reads_what_nobody_sent(world: World) -> None:
    world.final[1] = replace(WOKEN, content='{"s":3}')


def a_signal_is_lost(world: World) -> None:
    del world.signals[1]


def a_signal_is_read_and_kept(world: World) -> None:
    world.signals[0] = Sent(name="go", content='{"s":1}')


def a_signal_is_read_that_was_refused(world: World) -> None:
    world.kinds["signal 1"] = Type.FAIL


PLOTS: tuple[tuple[str, Callable[[World], None]], ...] = (
    ("G37", a_delivery_lacks_a_step),
    ("G37", a_step_is_gone_at_the_end),
    ("G37", a_step_has_another_value_later),
    ("G37", a_step_has_what_was_refused),
    ("G37", a_wait_is_not_handed_out),
    ("G38", a_waiting_order_is_handed_out),
    ("G38", a_wait_is_too_short),
    ("G38", a_wait_ends_twice),
    ("G38", a_wait_reads_what_nobody_sent),
    ("G38", a_signal_is_lost),
    ("G38", a_signal_is_read_and_kept),
    ("G38", a_signal_is_read_that_was_refused),
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

    assert found["G37"].valid is found["G38"].valid is True, [found["G37"], found["G38"]]
    assert [] == [each for each in found.values() if each.valid is False]


def test_a_lost_answer_excuses_what_it_may_have_done() -> None:
    """A step or a signal of which nobody knows may be there, or not."""
    for name in ("charge", "signal 1", "signal 2"):
        world = World()
        world.kinds[name] = Type.INFO
        assert [] == [
            each for each in verdicts(world.told().history()).values() if each.valid is False
        ]
        if name == "signal 2":
            a_signal_is_lost(world)
            assert verdicts(world.told().history())["G38"].valid is True
