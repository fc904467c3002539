"""SDK: producers and workers survive the failures of nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from codeq_cluster.client import (
    Client,
    NewTask,
    State,
    SyncClient,
    Task,
    TaskRecord,
    Untrusted,
    Worker,
)
from tests.harness.certificates import Authority
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER_TOKEN = WORKER_TOKENS["worker-0"]
WITHIN_S = 60.0


async def _learned(connection: Client, cluster: LocalCluster) -> None:
    async def knows_all() -> bool:
        return set(cluster.urls.values()) <= set(connection.nodes)

    await until(knows_all, what="a client that knows every node")


async def test_a_client_of_one_node_goes_on_when_the_node_is_killed(cluster: LocalCluster) -> None:
    """The client has learned the other nodes: every call is answered, and no task made twice."""
    async with Client([cluster.urls["n1"]], token=PRODUCER_TOKEN) as client:
        await client.create("sdk-killed", 0)
        await _learned(client, cluster)

        async def produce(start: int) -> list[TaskRecord]:
            return [await client.create("sdk-killed", start + n) for n in range(20)]

        async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
            producing = [group.create_task(produce(100 * n)) for n in range(1, 5)]
            await cluster.kill("n1")
        made = [task for each in producing for task in each.result()]
        await client.create_many(NewTask("sdk-killed", n) for n in range(1000, 1150))
        seen: list[object] = []
        worker = Worker([cluster.urls["n2"]], token=WORKER_TOKEN, concurrency=10)

        @worker.task("sdk-killed")
        async def handler(task: Task[int]) -> None:
            seen.append(task.payload)

        async with asyncio.timeout(WITHIN_S):
            await worker.serve(tasks_max=1 + 80 + 150)
        ended = [await client.task(task.id) for task in made]

    assert {State.DONE} == {task.state for task in ended}
    payloads = [0, *range(1000, 1150), *(100 * n + m for n in range(1, 5) for m in range(20))]
    assert Counter(payloads) == Counter(seen)


async def test_a_worker_goes_on_when_its_node_is_killed(cluster: LocalCluster) -> None:
    """The worker reports its tasks and claims through the other nodes, and each task ends once."""
    begun = asyncio.Event()
    ended: Counter[int] = Counter()
    worker = Worker([cluster.urls["n3"]], token=WORKER_TOKEN, concurrency=4, lease_s=30, wait_s=2)

    @worker.task("sdk-moving")
    async def handler(task: Task[int]) -> int:
        begun.set()
        await client.task(task.id)
        ended[task.payload] += 1
        return task.payload

    others = [cluster.urls["n1"], cluster.urls["n2"]]
    async with asyncio.timeout(2 * WITHIN_S), Client(others, token=PRODUCER_TOKEN) as client:
        made = await client.create_many(NewTask("sdk-moving", n) for n in range(60))
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(worker.serve())
            await begun.wait()
            await _learned(worker._leases, cluster)  # type: ignore[arg-type]
            await cluster.kill("n3")
            results = [await client.wait(task.id) for task in made if isinstance(task, TaskRecord)]
            worker.stop()
            await serving

    assert list(range(60)) == [result.value for result in results]
    # Only a claim or a report whose answer was lost delivers a task twice.
    assert sum(ended.values()) <= 60 + 2 * 4


async def test_a_program_without_a_loop_goes_on_as_well(cluster: LocalCluster) -> None:
    """The synchronous interface is the same client."""

    def produce() -> list[TaskRecord]:
        with SyncClient(Client([cluster.urls["n2"]], token=PRODUCER_TOKEN)) as client:
            made = [client.create("sdk-sync", n) for n in range(20)]
            return [client.task(task.id) for task in made]

    async with asyncio.timeout(WITHIN_S):
        await cluster.kill("n1")
        made = await asyncio.to_thread(produce)

    assert [str(n) for n in range(20)] == [task.payload for task in made]


async def test_a_client_trusts_its_authority_on_every_node(tmp_path: Path) -> None:
    """Learned nodes are asked over TLS as well; without the authority nothing is sent."""
    async with LocalCluster(tmp_path, authority=Authority(), shards=1) as secure:
        node = secure.nodes["n1"]
        async with Client([node.url], token=PRODUCER_TOKEN) as mistrustful:
            with pytest.raises(Untrusted, match="no TLS with https"):
                await mistrustful.create("sdk-secure", 1)
        ca_file = node.directory / "ca.pem"
        async with Client([node.url], token=PRODUCER_TOKEN, ca_file=ca_file) as client:
            first = await client.create("sdk-secure", 1)
            await _learned(client, secure)
            await secure.kill("n1")
            second = await client.create("sdk-secure", 2)

    assert all(url.startswith("https://") for url in client.nodes)
    assert first.id != second.id
