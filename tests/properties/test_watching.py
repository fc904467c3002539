"""Watching: a holder hears of each lease that it did not end itself, at once, and of no other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from codeq_cluster.broker.questions import Watch, Watched
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.operations import Abandon, Advance, Cancel, Heartbeat, Operation
from codeq_cluster.core.outcomes import Claimed
from tests.fakes.memory_store import MemoryShard
from tests.unit.broker.conftest import TestClock, claim, create, make_shard, submit

_LEASE_MS = 60_000
_OWN_ENDS = ("completed", "failed", "nacked", "abandoned")

_numbers = st.integers(0, 4)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("renewed"), _numbers),
        st.tuples(st.sampled_from((*_OWN_ENDS, "cancelled", "asked", "asked")), _numbers),
        st.tuples(
            st.sampled_from(["watched", "watched, knowing"]),
            st.sets(_numbers, min_size=1, max_size=2),
        ),
        st.tuples(st.just("claimed"), st.sampled_from(["ann", "bob"])),
        st.tuples(st.just("expired"), st.none()),
    ),
    min_size=4,
    max_size=30,
)


@dataclass
class _Wait:
    """A wait for some leases; what it has to answer, once it has to.

    Attributes:
        knows: Its tasks of which the holder knows that they are to end.
    """

    left: set[int]
    knows: set[int]
    answer: asyncio.Task[Watched]
    lost: set[int] | None = None


@dataclass
class _World:
    """A shard, and the obvious model: who holds what, and which wait hears of it.

    Attributes:
        asked: The tasks in progress that are to end; those of all times are in `told`.
    """

    held: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    waits: list[_Wait] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = TestClock()
        self.shard = make_shard(MemoryShard(), self.clock)
        self.shard.log.term = 4
        self.shard.log.lead()

    async def take(self, name: str, about: object) -> None:
        """Carry out a step, then compare every wait with the model."""
        match about:
            case str():
                await self._claim(about)
            case set():
                self._watch(about, about & self.asked if "knowing" in name else set())
            case int() if about in self.tokens:
                await self.shard.engine.operate([_operation(name, f"t{about}")])
                self._happened(name, about)
            case None:
                self.clock.pass_ms(_LEASE_MS + 1)
                await self.shard.engine.operate([Advance(count=100)])
                self._lose(set(self.held))
        for _ in range(10):
            await asyncio.sleep(0)
        watched: set[int] = set()
        for wait in self.waits:
            assert wait.answer.done() == (wait.lost is not None)
            if wait.lost is None:
                watched |= wait.left
            else:
                said = wait.answer.result()
                news = {int(task_id[1:]) for task_id, _ in (*said.lost, *said.cancelling)}
                assert wait.lost == news
                for task_id, asked in said.cancelling:
                    assert int(task_id[1:]) in self.told - wait.knows
                    assert "why" == asked.reason
        assert {f"t{number}" for number in watched} == set(self.shard.engine._state.watches.of)

    async def _claim(self, worker: str) -> None:
        number = len(self.tokens)
        if number > 4:
            return
        queue = f"q{number}"
        await self.shard.engine.operate([create(f"t{number}", command=queue)])
        [claimed] = await self.shard.engine.operate(
            [claim(queue, commands=(queue,), worker=worker, lease_ms=_LEASE_MS)]
        )
        assert isinstance(claimed, Claimed)
        self.tokens[number], self.held[number] = claimed.tasks[0].lease_token, worker

    def _watch(self, numbers: set[int], knows: set[int]) -> None:
        leases = tuple((f"t{number}", self.tokens.get(number, 0)) for number in sorted(numbers))
        known = tuple(f"t{number}" for number in knows)
        asked = Watch(tenant="acme", worker="ann", leases=leases, wait_ms=600_000, known=known)
        wait = _Wait(set(numbers), knows, asyncio.ensure_future(self.shard.engine.answer(asked)))
        lost = {
            number
            for number in numbers
            if self.held.get(number) != "ann" or number in self.asked - knows
        }
        if lost:
            wait.lost = lost
        else:
            for number in numbers:
                self._let_go(number)
        self.waits.append(wait)

    def _happened(self, name: str, number: int) -> None:
        if name == "cancelled":
            self._lose({number} & self.held.keys())
        elif name == "asked" and number in self.held:
            self.asked.add(number)
            self.told.add(number)
            for wait in self.waits:
                if wait.lost is None and number in wait.left - wait.knows:
                    wait.lost = {number}
        elif name in _OWN_ENDS and self.held.get(number) == "ann":
            del self.held[number]
            self.asked.discard(number)
            self._let_go(number)

    def _lose(self, numbers: set[int]) -> None:
        for number in numbers:
            del self.held[number]
        self.asked -= numbers
        for wait in self.waits:
            if wait.lost is None and wait.left & numbers:
                wait.lost = wait.left & numbers

    def _let_go(self, number: int) -> None:
        for wait in self.waits:
            if wait.lost is None and number in wait.left:
                wait.left.remove(number)
                if not wait.left:
                    wait.lost = set()


def _operation(name: str, task_id: str) -> Operation:
    """Return what ann, or for a cancel a producer, says about a task."""
    match name:
        case "cancelled":
            return Cancel(request=f"c-{task_id}", id=task_id, tenant="acme")
        case "asked":
            return AskCancel(
                request=f"x-{task_id}",
                id=task_id,
                tenant="acme",
                grace_ms=10 * _LEASE_MS,
                reason="why",
            )
        case "renewed":
            return Heartbeat(id=task_id, tenant="acme", worker="ann", extend_ms=_LEASE_MS)
        case "nacked":
            return Nack(request=f"n-{task_id}", id=task_id, tenant="acme", worker="ann")
        case "abandoned":
            return Abandon(request=f"a-{task_id}", id=task_id, tenant="acme", worker="ann")
        case _:
            return submit(task_id, status=name.upper())


async def _live(steps: list[tuple[str, object]]) -> None:
    world = _World()
    for name in ("ann", "ann", "ann", "bob"):
        await world.take("claimed", name)
    for name, about in steps:
        await world.take(name, about)
    world.shard.engine.stop()
    for wait in world.waits:
        wait.answer.cancel()
    await asyncio.gather(*(wait.answer for wait in world.waits), return_exceptions=True)


@settings(max_examples=150)
@given(_steps)
def test_a_holder_hears_of_what_it_did_not_end_itself(steps: list[tuple[str, object]]) -> None:
    """Whatever others do, in whatever order; and no lease is watched for a wait that is over."""
    asyncio.run(_live(steps))
