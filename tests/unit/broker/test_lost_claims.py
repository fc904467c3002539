"""Lost claims: a claim that was never committed takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.ports import Head
from codeq_cluster.broker.requests.claims import Claims
from codeq_cluster.broker.waiters import Waiters
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.errors import (
    CodeqError,
    LinkLost,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
)
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.routing.router import Router
from tests.fakes.memory_store import MemoryShard
from tests.simulator.clock import SimClock
from tests.simulator.loop import new_loop
from tests.unit.no_peers import NoPeers

from .conftest import Shard, TestClock, claim, create, make_shard, shards_of


@pytest.mark.parametrize("handed_over", [True, False])
async def test_a_task_whose_claim_was_not_committed_is_claimed_by_the_next(
    shard: Shard, handed_over: bool
) -> None:
    """Whether or not the entry is in the log, the next leader knows only committed entries."""
    await shard.engine.operate([create("t1")])
    shard.log.held = True
    lost = asyncio.ensure_future(shard.engine.operate([claim("r1", worker="ann")]))
    await asyncio.sleep(0)
    assert shard.engine.head("acme", ("render",)) is None
    if handed_over:
        shard.log.take()
    shard.log.depose()
    with pytest.raises(OutcomeUnknown if handed_over else NotLeader):
        await lost
    following = make_shard(shard.store, shard.clock)
    following.log.term = shard.log.term
    following.log.lead()

    [claimed] = await following.engine.operate([claim("r2", worker="bob")])

    assert isinstance(claimed, Claimed)
    assert [("t1", 1, 1, "bob")] == [
        (task.id, task.attempts, task.lease_token, task.worker) for task in claimed.tasks
    ]
    following.engine.stop()


async def test_the_leader_that_was_deposed_offers_the_task_again(shard: Shard) -> None:
    """A leader's uncommitted decisions end with its leadership."""
    await shard.engine.operate([create("t1")])
    shard.log.held = True
    lost = asyncio.ensure_future(shard.engine.operate([claim("r1")]))
    await asyncio.sleep(0)
    shard.log.depose()
    with pytest.raises(NotLeader):
        await lost
    shard.log.held = False
    shard.log.lead()

    [claimed] = await shard.engine.operate([claim("r2")])

    assert isinstance(claimed, Claimed)
    assert ["t1"] == [task.id for task in claimed.tasks]


async def test_a_claim_that_may_have_leased_a_task_hands_out_no_other() -> None:
    """The claim fails with an unknown outcome, although another shard has a task."""
    clock = TestClock()
    shards = [make_shard(MemoryShard(), clock, number=number, shards=2) for number in range(2)]
    for number, shard in enumerate(shards):
        shard.log.lead()
        task_id = next(f"t{n}" for n in range(9) if shard_of(f"t{n}", 2) == number)
        await shard.engine.operate([create(task_id)])
        clock.pass_ms(1)
    forwarder = shards_of(*shards, is_out={0}.__contains__)
    background = Background()
    claims = Claims(forwarder, Waiters(waiters_max=1), background)
    first, second = shards
    first.log.held = True
    claiming = asyncio.ensure_future(
        claims.claim(
            "acme",
            "ann",
            commands=("render",),
            count=1,
            lease_ms=60_000,
            wait_s=0,
            timeout_s=5,
        )
    )
    for _ in range(5):
        await asyncio.sleep(0)
    first.log.take()
    first.log.depose()

    with pytest.raises(OutcomeUnknown):
        await claiming
    counted = second.engine.replica.counters["render", "acme"]
    assert (1, 0) == (counted.ready, counted.leased)
    await background.stop()


class Asking(Router):
    """Shards that count how often all leaders are asked for work."""

    asked = 0

    async def heads(
        self, tenant: str, queues: tuple[str, ...], *, deadline: float
    ) -> Sequence[Head]:
        """Count and ask."""
        self.asked += 1
        return await super().heads(tenant, queues, deadline=deadline)


async def test_a_claim_waits_in_a_place_only_after_it_has_looked_in_vain(shard: Shard) -> None:
    """Until then it is a request in progress, whose look at every queue has its turn."""
    forwarder = shards_of(shard, kind=Asking)
    background = Background()
    claims = Claims(forwarder, Waiters(waiters_max=1), background)
    looks: list[int] = []

    @contextmanager
    def full() -> Iterator[None]:
        looks.append(forwarder.asked)
        raise Overloaded("the list of waiting requests")
        yield

    with pytest.raises(Overloaded):
        await claims.claim(
            "acme",
            "ann",
            commands=("render",),
            count=1,
            lease_ms=60_000,
            wait_s=30,
            timeout_s=5,
            place=full,
        )

    assert [1] == looks
    await background.stop()


class Follower:
    """A replica that shows a task, and follows another node, or none."""

    leads = False

    def __init__(self, shard: int, leader: str | None) -> None:
        self.shard = shard
        self.leader = leader

    def head(self, tenant: str, queues: tuple[str, ...]) -> Head:
        """Return the first ready task, whatever the queue."""
        return Head(shard=self.shard, priority=0, seq=self.shard)

    def on_leader(self, call: Callable[[], None]) -> None:
        """Nothing changes."""


class Breaking(NoPeers):
    """A link to a leader that breaks under the first `losses` calls; then no task is left."""

    def __init__(self, losses: int) -> None:
        self._losses = losses

    def ask(
        self, peer: str, method: str, body: bytes, *, timeout_s: float, topic: int | None = None
    ) -> asyncio.Future[bytes]:
        """Answer at once."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._losses:
            self._losses -= 1
            answered.set_exception(LinkLost("reset"))
        else:
            answered.set_result(msgspec.msgpack.encode([Claimed(())]))
        return answered


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("losses", "error"), [(0, NoLeader), (1, OutcomeUnknown)])
async def test_who_may_have_leased_a_task_does_not_hear_that_nothing_was_done(
    losses: int, error: type[CodeqError], count: int
) -> None:
    """A repeated claim finds no lease any more, and the next shard has no leader."""
    replicas: list[Any] = [Follower(0, "n2"), Follower(1, None)]
    leaders = Leaders(replicas)
    leaders.ask_peers(while_out={1}.__contains__, peers=tuple)
    router = Router(
        node_id="n1",
        engines=replicas,
        leaders=leaders,
        calls=Breaking(losses),
        on_answered=lambda method, seconds: None,
    )
    background = Background()
    claims = Claims(router, Waiters(waiters_max=1), background)

    with pytest.raises(error):
        await claims.claim(
            "acme",
            "ann",
            commands=("render",),
            count=count,
            lease_ms=60_000,
            wait_s=0,
            timeout_s=60,
        )
    await background.stop()


class Slow(NoPeers):
    """A link to a leader that has no task left, and says so only just in time."""

    def ask(
        self, peer: str, method: str, body: bytes, *, timeout_s: float, topic: int | None = None
    ) -> asyncio.Future[bytes]:
        """Answer at nine tenths of the time."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[bytes] = loop.create_future()
        nothing = [Claimed(())] if method == "operate" else [[], []]
        loop.call_later(0.9 * timeout_s, answered.set_result, msgspec.msgpack.encode(nothing))
        return answered


def test_all_looks_of_a_waiting_claim_end_within_its_wait_and_one_timeout() -> None:
    """A look that begins when the wait is over has only what the one before left of it."""
    clock = SimClock()
    loop = new_loop(clock)
    begun = clock.now
    wait_s, timeout_s = 0.5, 5.0

    async def claimed() -> float:
        replicas: list[Any] = [Follower(0, "n2")]
        router = Router(
            node_id="n1",
            engines=replicas,
            leaders=Leaders(replicas),
            calls=Slow(),
            on_answered=lambda method, seconds: None,
        )
        got = await Claims(router, Waiters(waiters_max=1), Background()).claim(
            "acme",
            "ann",
            commands=("render",),
            count=1,
            lease_ms=60_000,
            wait_s=wait_s,
            timeout_s=timeout_s,
        )
        assert not got.tasks
        return loop.time()

    claiming = loop.create_task(claimed())
    clock.run_until(begun + 60)

    # The first look, and what the second has time for.
    assert begun + 0.9 * timeout_s < claiming.result() <= begun + wait_s + timeout_s
