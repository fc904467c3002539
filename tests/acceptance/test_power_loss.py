"""Power loss: all nodes die at once, and everything acknowledged exists when they are back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.harness.accounting import audit
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.load import Load, workers
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TASKS_OF_A_KIND = 25
WORKER = WORKER_TOKENS["worker-0"]


async def test_every_acknowledged_state_survives_the_death_of_all_nodes(
    cluster: LocalCluster, client: RecordingClient
) -> None:
    """Ready, delayed, leased and finished tasks are read back as acknowledged."""
    nodes = list(cluster.nodes)
    expected: dict[str, tuple[str, str]] = {}

    async def create(n: int, command: str, **fields: object) -> str:
        made = await client.created(nodes[n % 3], PRODUCER_TOKEN, command, **fields)
        return str(made["id"])

    for n in range(TASKS_OF_A_KIND):
        expected[await create(n, "loss-ready")] = ("PENDING", "PENDING_LIST")
        expected[await create(n, "loss-delayed", delaySeconds=3600)] = ("PENDING", "DELAYED_ZSET")
        await create(n, "loss-work")
    leases: dict[str, object] = {}
    for n in range(TASKS_OF_A_KIND):
        task = await client.claimed(nodes[n % 3], WORKER, ["loss-work"], leaseSeconds=3600)
        if n % 2:
            await client.finished(nodes[(n + 1) % 3], WORKER, task, {"of": task["id"]})
            expected[task["id"]] = ("COMPLETED", "NONE")
        else:
            leases[task["id"]] = task["leaseUntil"]
            expected[task["id"]] = ("IN_PROGRESS", "INPROG_SET")

    await _kill_all_and_restart(cluster)

    for n, (task_id, state) in enumerate(expected.items()):
        read = await client.done("GET", nodes[n % 3], f"/tasks/{task_id}", PRODUCER_TOKEN)
        assert state == (read["status"], read["lastKnownLocation"])
        assert leases.get(task_id) == read.get("leaseUntil")
    leased = TASKS_OF_A_KIND - TASKS_OF_A_KIND // 2
    for command, depth in {
        "loss-ready": (TASKS_OF_A_KIND, 0, 0, 0),
        "loss-delayed": (0, TASKS_OF_A_KIND, 0, 0),
        "loss-work": (0, 0, leased, 0),
    }.items():
        counters = await client.depth(nodes[0], ADMIN_TOKEN, command)
        assert depth == tuple(counters.values()), command
    await cluster.wait_converged()


async def test_a_load_goes_on_where_the_power_loss_cut_it_off(cluster: LocalCluster) -> None:
    """After the death of all nodes nothing acknowledged before is lost or done twice."""
    async with Load(
        cluster.urls,
        producer_token=PRODUCER_TOKEN,
        worker_tokens=workers(WORKER_TOKENS, 12),
        command="power-loss",
        cycles_per_s=150.0,
    ) as load:
        await until(_calls(load, 900), what="load before the loss")
        for node in cluster.nodes:
            load.avoid(node)
        await _kill_all_and_restart(cluster)
        for node in cluster.nodes:
            load.allow(node)
        seen = len(load.calls)
        await until(_calls(load, seen + 900), what="load after the loss")
        drained = await load.drain(within_s=90)
        verdict = audit(load.calls, await load.final_tasks())

    assert verdict.clean, str(verdict)
    assert drained
    await cluster.wait_converged()


def _calls(load: Load, count: int) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        return len(load.calls) >= count

    return reached


async def _kill_all_and_restart(cluster: LocalCluster) -> None:
    await asyncio.gather(*(cluster.kill(node) for node in cluster.nodes))
    for node in cluster.nodes:
        cluster.start(node)
    await cluster.wait_ready()
