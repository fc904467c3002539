"""Lost claims: a claim that was never committed takes nothing."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.requests.consumer import Consumer
from codeq_cluster.broker.requests.uploads import Uploads
from codeq_cluster.broker.waiters import Waiters
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.errors import NotLeader, OutcomeUnknown
from tests.fakes.memory_store import MemoryShard

from .conftest import Shard, TestClock, claim, create, make_shard, shards_of

pytestmark = pytest.mark.asyncio


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
    consumer = Consumer(
        forwarder,
        Waiters(waiters_max=1),
        background,
        Uploads(forwarder, None, background, base=""),
    )
    first, second = shards
    first.log.held = True
    claiming = asyncio.ensure_future(
        consumer.claim(
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
