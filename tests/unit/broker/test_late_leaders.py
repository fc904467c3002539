"""Claims on a node that learns of a policy earlier than the leader of the shard with the task."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.ports import LocalShard
from codeq_cluster.broker.requests.claims import Claims
from codeq_cluster.broker.waiters import Waiters
from codeq_cluster.core.operations import PauseQueue, ResumeQueue
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.routing.router import Router
from tests.fakes.memory_store import MemoryShard

from .conftest import Shard, TestClock, create, make_shard, shards_of

pytestmark = pytest.mark.asyncio


class _Apart(Router):
    """Sends claims to the leader, and looks for tasks in a replica that is ahead of it."""

    replica: Shard

    def local(self, shard: int) -> LocalShard:
        assert 0 == shard
        return self.replica.engine


def _claiming(leader: Shard, replica: Shard) -> asyncio.Future[Claimed]:
    """Start a claim on the replica's node, where no further event will happen."""
    shards = shards_of(leader, kind=_Apart)
    shards.replica = replica
    background = Background()
    claims = Claims(shards, Waiters(waiters_max=10), background)
    return asyncio.ensure_future(
        claims.claim(
            "acme",
            "ann",
            commands=("render",),
            count=1,
            lease_ms=60_000,
            wait_s=3,
            timeout_s=5,
        )
    )


async def test_a_claim_woken_before_the_leader_has_heard_asks_it_again(shard: Shard) -> None:
    """A queue opens here, the leader learns of it later, and no event wakes the claim."""
    pause = PauseQueue(request="p", tenant="acme", queue="render", by="op")
    await shard.engine.operate([create("t1")])
    replica = make_shard(MemoryShard(), TestClock())
    replica.log.lead()
    await replica.engine.operate([create("t1")])
    await shard.engine.operate([pause])
    waiting = _claiming(shard, replica)
    for _ in range(30):
        await asyncio.sleep(0)
    await shard.engine.operate([ResumeQueue(request="r", tenant="acme", queue="render", by="op")])

    assert ["t1"] == [task.id for task in (await waiting).tasks]
