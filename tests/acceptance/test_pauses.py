"""Pauses: a leader that freezes and resumes neither blocks the others nor serves stale state."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.harness.accounting import RecordedOutcome, audit, repair_seconds
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.load import Load, workers
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAUSE_S = 10.0
WORKER = WORKER_TOKENS["worker-31"]


async def test_a_leader_frozen_for_ten_seconds_costs_no_request_and_no_task(
    cluster: LocalCluster, client: RecordingClient
) -> None:
    """The others go on, and the resumed leader gives no stale answer and no second one."""
    async with Load(
        cluster.urls,
        producer_token=PRODUCER_TOKEN,
        worker_tokens=workers(WORKER_TOKENS, 12),
        command="pauses",
        cycles_per_s=100.0,
    ) as load:
        probe = await client.created("n1", PRODUCER_TOKEN, "pause-probe")
        task_id, shard = probe["id"], probe["shard"]
        frozen = await cluster.leader_of(shard)
        others = [node for node in cluster.nodes if node != frozen]
        load.avoid(frozen)
        mark, struck_s = len(load.calls), time.monotonic()
        await cluster.pause(frozen)
        # These requests wait in the frozen node's sockets. On resuming it reads them first, while
        # it still believes that it leads.
        read = asyncio.create_task(client.task(frozen, PRODUCER_TOKEN, task_id))
        claim = asyncio.create_task(client.claim(frozen, WORKER, ["pause-probe"]))

        async def repaired() -> float | None:
            return repair_seconds(load.calls[mark:], struck_s=struck_s, shard=shard)

        await until(repaired, within_s=10, what=f"a write on shard {shard}")
        taken = await client.claimed(others[0], WORKER, ["pause-probe"])
        await client.finished(others[1], WORKER, taken, {"done": True})

        async def pause_is_over() -> bool:
            return time.monotonic() - struck_s >= PAUSE_S

        await until(pause_is_over, what="ten seconds")
        cluster.resume(frozen)
        old_read, old_claim = await read, await claim
        await cluster.wait_ready([frozen])
        load.allow(frozen)
        drained = await load.drain(within_s=90)
        verdict = audit(load.calls, await load.final_tasks())

    assert old_read.outcome is not RecordedOutcome.OK or old_read.body["status"] == "COMPLETED", (
        old_read
    )
    assert not (old_claim.outcome is RecordedOutcome.OK and old_claim.body), old_claim
    assert verdict.clean, str(verdict)
    assert drained
    await cluster.wait_converged()
