"""Work of many holders begins in turns, and nobody keeps others out."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.errors import Overloaded
from codeq_cluster.fair_turns import GUEST, FairTurns

WITHIN_S = 30.0
STRANGERS = f"{GUEST}strangers"


@dataclass
class Bench:
    """Turns whose clock is moved, and work that ends when it is told to.

    Attributes:
        step_s: The clock goes on by this much whenever it is looked at.
        begun: Holders, in the order in which their work began.
        members: Within the holders, in the same order.
    """

    units: int
    now_s: float = 100.0
    step_s: float = 0.0
    begun: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = FairTurns(self.units, name="the room", now_s=self._now)
        self.has_begun: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._ends: dict[str, list[asyncio.Event]] = {}
        self.work: list[asyncio.Task[None]] = []

    def _now(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    async def start(self, holder: str, units: int = 1, member: str = "") -> asyncio.Task[None]:
        """Start work, and let it come as far as it can."""
        work = self.begin(holder, units, member)
        await settled()
        return work

    def begin(self, holder: str, units: int = 1, member: str = "") -> asyncio.Task[None]:
        """Start work as soon as the loop comes to it."""
        end = asyncio.Event()

        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            try:
                if not self.turns.begin(task, holder, units):
                    await self.turns.turn(task, holder, units, member=member, within_s=WITHIN_S)
                self.begun.append(holder)
                self.members.append(member)
                self.has_begun[holder].set()
                self._ends.setdefault(holder, []).append(end)
                await end.wait()
            finally:
                self.turns.end(task)

        self.work.append(asyncio.create_task(work()))
        return self.work[-1]

    async def end(self, holder: str) -> None:
        """End the oldest work of a holder."""
        self._ends[holder].pop(0).set()
        await settled()

    async def end_all(self) -> None:
        """End everything, also what begins meanwhile."""
        while not all(each.done() for each in self.work):
            for ends in self._ends.values():
                while ends:
                    ends.pop().set()
            await settled()


async def settled() -> None:
    """Let everything that is ready run, and what that makes ready."""
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_holder_that_is_alone_has_all_the_room() -> None:
    """Nobody else needs it; more work waits."""
    bench = Bench(4)
    for _ in range(6):
        await bench.start("a")

    assert (["a"] * 4, 2) == (bench.begun, bench.turns.waiting)

    await bench.end_all()

    assert (["a"] * 6, 0, 4) == (bench.begun, bench.turns.waiting, bench.turns.free)


async def test_beside_others_a_holder_has_half() -> None:
    """Whoever comes next finds room at once."""
    bench = Bench(4)
    await bench.start("b")
    await bench.end("b")
    for _ in range(4):
        await bench.start("a")
    await bench.start("b")

    assert ["b", "a", "a", "b"] == bench.begun

    bench.now_s += 2.0
    await bench.end("b")

    assert ["b", "a", "a", "b", "a", "a"] == bench.begun
    await bench.end_all()


async def test_holders_take_turns_however_much_they_have() -> None:
    """A holder with one request waits for one end, not for all that came before."""
    bench = Bench(2)
    for _ in range(20):
        await bench.start("a")
    await bench.start("b")
    await bench.start("c")
    await bench.end("a")
    await bench.end("a")

    assert ["a", "a"] == bench.begun[:2]
    assert {"b", "c"} == set(bench.begun[2:4])
    await bench.end_all()


async def test_large_work_is_not_passed_by_small_work() -> None:
    """It begins as soon as a unit is free, and what it took beyond is missing until it ends."""
    bench = Bench(4)
    for _ in range(4):
        await bench.start("a")
    await bench.start("b", 100)
    await bench.start("a")
    await bench.end("a")

    assert ["a"] * 4 + ["b"] == bench.begun
    assert -1 == bench.turns.free
    await bench.end_all()
    assert 4 == bench.turns.free


async def test_what_work_turns_out_to_take_is_counted_until_it_ends() -> None:
    """A batch is known by its items, once it is decoded; it takes half of the room at most."""
    bench = Bench(6)
    first = await bench.start("a")
    bench.turns.add(first, 1)
    assert 4 == bench.turns.free

    bench.turns.add(first, 5)
    assert 3 == bench.turns.free

    await bench.end("a")
    bench.turns.add(first, 5)
    assert 6 == bench.turns.free


async def test_beside_others_a_holder_rests_after_heavy_work() -> None:
    """Its pieces are long; others have the loop meanwhile, and all of the room."""
    bench = Bench(64)
    await bench.start("b")
    await bench.start("a", 100)
    bench.now_s += 0.01
    await bench.end("a")
    await bench.start("a", 100)
    await bench.start("b")

    assert (["b", "a", "b"], 62) == (bench.begun, bench.turns.free)

    bench.has_begun["a"].clear()
    async with asyncio.timeout(WITHIN_S):
        await bench.has_begun["a"].wait()
    await bench.end_all()


async def test_a_thousand_strangers_have_one_tenants_turns() -> None:
    """Each has an address of its own, and a tenant beside them still has every second turn."""
    bench = Bench(1)
    await bench.start("running")
    for number in range(1000):
        bench.begin(STRANGERS, member=f"2001:db8:0:{number:x}::/64")
    await settled()
    for _ in range(10):
        bench.begin("a")
    await settled()
    await bench.end("running")
    for _ in range(19):
        await bench.end(bench.begun[-1])

    assert ["running", *[STRANGERS, "a"] * 10] == bench.begun
    await bench.end_all()
    assert (1, 0) == (bench.turns.free, bench.turns.waiting)


async def test_members_of_a_holder_take_turns_among_themselves() -> None:
    """One with a single request waits for one of another's, each member's in its order."""
    bench = Bench(1)
    await bench.start("a")
    for member in ["greedy"] * 4 + ["late", "later", "late"]:
        await bench.start(STRANGERS, member=member)
    await bench.end("a")
    for _ in range(6):
        await bench.end(STRANGERS)

    assert ["greedy", "late", "later", "greedy", "late", "greedy", "greedy"] == bench.members[1:]
    await bench.end_all()


async def test_a_member_that_gives_work_up_keeps_its_turn() -> None:
    """A client that loses patience with one request does not set its others back."""
    bench = Bench(1)
    await bench.start("a")
    gone = await bench.start(STRANGERS, member="hasty")
    for member in ("hasty", "patient"):
        await bench.start(STRANGERS, member=member)
    gone.cancel()
    await settled()
    await bench.end("a")

    assert ["", "hasty"] == bench.members
    await bench.end_all()


async def test_strangers_together_leave_half_of_the_room() -> None:
    """A tenant that comes at any time begins at once, even if no other tenant is there."""
    bench = Bench(4)
    for number in range(4):
        await bench.start(STRANGERS, member=f"10.0.0.{number}")
    await bench.start("a")

    assert ([STRANGERS, STRANGERS, "a"], 1) == (bench.begun, bench.turns.free)
    await bench.end_all()


async def test_work_that_is_given_up_is_kept_no_longer() -> None:
    """Clients that come and go while nothing may begin do not add up."""
    bench = Bench(1)
    await bench.start("a")
    await bench.start(STRANGERS, member="stays")
    gone = [await bench.start(STRANGERS, member=f"10.0.0.{n % 7}") for n in range(100)]
    kept = [weakref.ref(each) for each in gone]
    for each in gone:
        each.cancel()
    await settled()
    del each, bench.work[2:], gone
    gc.collect()

    assert [None] * 100 == [each() for each in kept]
    assert 1 == bench.turns.waiting
    await bench.end_all()
    assert ["a", STRANGERS] == bench.begun


async def test_a_guest_is_nobodys_neighbour() -> None:
    """Probes and scrapes come at all times; they take turns, and cost a lone tenant nothing."""
    bench = Bench(4)
    for _ in range(2):
        await bench.start("a")
    await bench.start("@10.0.0.1")
    await bench.end("@10.0.0.1")
    for _ in range(3):
        await bench.start("a")
    await bench.start("@10.0.0.1")
    await bench.end("a")

    assert ["a", "a", "@10.0.0.1", "a", "a", "a"] == bench.begun
    await bench.end("a")
    assert "@10.0.0.1" == bench.begun[-1]
    await bench.end_all()


async def test_a_holder_that_is_alone_does_not_rest() -> None:
    """Nobody has anything of it."""
    bench = Bench(64)
    for _ in range(2):
        await bench.start("a", 100)
        bench.now_s += 0.01
        await bench.end("a")

    assert ["a", "a"] == bench.begun


@pytest.mark.parametrize("turn", ["later", "before", "after"])
async def test_work_that_is_given_up_leaves_no_room_taken(turn: str) -> None:
    """A client may go while its request waits, or right before or after its turn comes."""
    bench = Bench(1)
    await bench.start("a")
    gone = await bench.start("b")
    await bench.start("c")
    if turn == "before":
        bench.turns.end(bench.work[0])
    gone.cancel()
    if turn == "after":
        bench.turns.end(bench.work[0])
    await settled()
    await bench.end("a")

    assert ["a", "c"] == bench.begun
    await bench.end_all()
    assert (1, 0) == (bench.turns.free, bench.turns.waiting)


async def test_a_turn_that_does_not_come_in_time_is_refused() -> None:
    """Nothing waits without end."""
    turns = FairTurns(1, name="the room")
    task, late = (asyncio.ensure_future(settled()) for _ in range(2))
    assert turns.begin(task, "a", 1)
    assert not turns.begin(late, "b", 1)

    with pytest.raises(Overloaded, match="the room"):
        await turns.turn(late, "b", 1, member="", within_s=0.01)

    turns.end(task)
    assert (1, 0) == (turns.free, turns.waiting)
    await asyncio.gather(task, late)


async def test_room_of_work_that_waits_for_something_else_is_given_on() -> None:
    """The loop is punctual, so whoever has room for long does not use the loop."""
    turns = FairTurns(1, name="the room")
    stuck, task = (asyncio.ensure_future(asyncio.Event().wait()) for _ in range(2))
    assert turns.begin(stuck, "a", 1)
    assert not turns.begin(task, "b", 1)

    await turns.turn(task, "b", 1, member="", within_s=WITHIN_S)
    turns.end(stuck)
    assert 0 == turns.free

    turns.end(task)
    assert 1 == turns.free
    for each in (stuck, task):
        each.cancel()


async def test_room_is_kept_while_the_loop_is_late() -> None:
    """The more is in progress on a busy loop, the later everything is."""
    bench = Bench(1)
    await bench.start("a")
    begun_s, bench.step_s = bench.now_s, 0.5
    await bench.start("b")
    async with asyncio.timeout(WITHIN_S):
        await bench.has_begun["b"].wait()

    assert 2.0 < bench.now_s - begun_s
    await bench.end_all()


Work = tuple[str, str, int]


@given(
    units=st.integers(1, 8),
    works=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(1, 9)), max_size=30
    ),
)
def test_all_work_is_done_and_the_room_is_never_overfilled(units: int, works: list[Work]) -> None:
    """Everything that waits gets its turn, whoever's it is."""

    async def run() -> None:
        bench = Bench(units)
        for holder, member, each in works:
            await bench.start(holder, each, member)
            assert 1 - max(1, units // 2) <= bench.turns.free <= units
        await bench.end_all()

        begun = zip(bench.begun, bench.members, strict=True)
        assert Counter((holder, member) for holder, member, _ in works) == Counter(begun)
        assert (units, 0) == (bench.turns.free, bench.turns.waiting)

    asyncio.run(run())
