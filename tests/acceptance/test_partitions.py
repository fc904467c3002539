"""Partitions: a cut-off node returns nothing stale, and the others serve without it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from codeq_cluster.settings import LimitSettings
from tests.harness.accounting import RecordedOutcome, audit, repair_seconds
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.http import HttpClient
from tests.harness.load import Load, workers
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER = WORKER_TOKENS["worker-31"]
# Longer than an election timeout, so that leadership really moves during the cut.
CUT_S = 4.0
REQUEST_S = LimitSettings().request_timeout_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The node to cut off, and the direction to leave open."""

    leader: bool
    hears: bool = False
    speaks: bool = False


CUTS = {
    "leader": Cut(leader=True),
    "follower": Cut(leader=False),
    "leader-that-only-speaks": Cut(leader=True, speaks=True),
    "leader-that-only-hears": Cut(leader=True, hears=True),
    "follower-that-only-speaks": Cut(leader=False, speaks=True),
}


@pytest_asyncio.fixture(loop_scope="module")
async def cut_client(cuttable_cluster: LocalCluster) -> AsyncIterator[RecordingClient]:
    """Yield a client of the cluster whose links can be cut."""
    async with RecordingClient(cuttable_cluster.urls) as session:
        yield session


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
async def test_a_node_cut_off_and_healed_costs_no_request_and_no_task(
    cuttable_cluster: LocalCluster, cut_client: RecordingClient, cut: Cut
) -> None:
    """The majority keeps serving; the node refuses or answers correctly, and agrees once healed."""
    cluster, client = cuttable_cluster, cut_client
    command = f"cut-{time.time_ns()}"
    probe = await client.created("n1", PRODUCER_TOKEN, f"{command}-probe")
    task_id, shard = probe["id"], probe["shard"]
    leader = await cluster.leader_of(shard)
    alone = leader if cut.leader else next(node for node in cluster.nodes if node != leader)
    others = [node for node in cluster.nodes if node != alone]
    async with Load(
        cluster.urls,
        producer_token=PRODUCER_TOKEN,
        worker_tokens=workers(WORKER_TOKENS, 8),
        command=command,
        cycles_per_s=60.0,
    ) as load:
        load.avoid(alone)
        mark, struck_s = len(load.calls), time.monotonic()
        cluster.cut(alone, hears=cut.hears, speaks=cut.speaks)

        async def repaired() -> float | None:
            return repair_seconds(load.calls[mark:], struck_s=struck_s, shard=shard)

        await until(repaired, within_s=10, what=f"a write on shard {shard}")
        taken = await client.claimed(others[0], WORKER, [f"{command}-probe"])
        await client.finished(others[1], WORKER, taken, {"done": True})
        write = asyncio.create_task(
            client.create(alone, PRODUCER_TOKEN, f"{command}-alone", idempotencyKey=command)
        )
        read = asyncio.create_task(client.task(alone, PRODUCER_TOKEN, task_id))

        async def cut_is_over() -> bool:
            return time.monotonic() - struck_s >= CUT_S

        await until(cut_is_over, what="the length of the cut")
        answers_during_cut = [task.result() for task in (write, read) if task.done()]
        cluster.heal(alone)
        written, told = await write, await read
        await cluster.wait_ready([alone])
        load.allow(alone)
        drained = await load.drain(within_s=90)
        verdict = audit(load.calls, await load.final_tasks())

    # With either direction closed, no round trip to a majority is possible.
    assert all(answer.outcome is not RecordedOutcome.OK for answer in answers_during_cut)
    assert told.outcome is not RecordedOutcome.OK or told.body["status"] == "COMPLETED", told
    assert verdict.clean, str(verdict)
    assert drained
    await cluster.wait_converged()
    again = await client.created(
        others[0], PRODUCER_TOKEN, f"{command}-alone", idempotencyKey=command
    )
    assert written.outcome is not RecordedOutcome.OK or written.body["id"] == again["id"]


async def test_a_node_without_peers_says_so_in_time(
    cuttable_cluster: LocalCluster, cut_client: RecordingClient
) -> None:
    """A write and a read at a cut-off node end in a retryable 503 and do not hang."""
    task = await cut_client.created("n1", PRODUCER_TOKEN, "no-quorum")
    cuttable_cluster.cut("n3")
    begun_s = time.monotonic()
    write, read = await asyncio.gather(
        cut_client.create("n3", PRODUCER_TOKEN, "no-quorum"),
        cut_client.task("n3", PRODUCER_TOKEN, task["id"]),
    )
    elapsed_s = time.monotonic() - begun_s

    assert (503, True) == (write.status, write.body["retryable"]), write
    assert write.body["code"] in {"no-leader", "outcome-unknown"}
    assert 503 == read.status, read
    assert elapsed_s < REQUEST_S + 4


async def test_a_follower_that_hears_no_leader_is_not_ready(cuttable_cluster: LocalCluster) -> None:
    """A node that hears no leaders reports not ready, so that load balancers avoid it."""
    leaders = {await cuttable_cluster.leader_of(shard) for shard in range(cuttable_cluster.shards)}
    follower = next(node for node in cuttable_cluster.nodes if node not in leaders)
    cuttable_cluster.cut(follower)

    async def says_it_is_not_ready() -> bool:
        return not await cuttable_cluster.ready(follower)

    await until(says_it_is_not_ready, within_s=8, what=f"{follower} not ready")


async def test_a_follower_that_cannot_dial_its_leaders_is_not_ready(
    cuttable_cluster: LocalCluster,
) -> None:
    """It hears them, but can forward nothing to them: each request would wait in vain."""
    leaders = {await cuttable_cluster.leader_of(shard) for shard in range(cuttable_cluster.shards)}
    follower = next(node for node in cuttable_cluster.nodes if node not in leaders)
    cuttable_cluster.wall_in(follower)

    async def says_why() -> bool:
        async with HttpClient() as http:
            answer = await http.send("GET", cuttable_cluster.urls[follower], "/readyz")
        return answer.status == 503 and b"which this node cannot reach" in answer.body

    await until(says_why, within_s=8, what=f"{follower} not ready")
