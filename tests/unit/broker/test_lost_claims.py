"""Lost claims: a claim that was never committed takes nothing."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.errors import NotLeader, OutcomeUnknown

from .conftest import Shard, claim, create, make_shard

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("handed_over", [True, False])
async def test_a_task_whose_claim_was_not_committed_is_claimed_by_the_next(
    shard: Shard, handed_over: bool
) -> None:
    """Whether or not the log had it: the next leader knows what is committed and nothing else."""
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
    """What it had decided goes with its reign; what it knows then is what is committed."""
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
