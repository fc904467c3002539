"""Any node: every node answers every request itself, and reads are not stale."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from tests.harness.client import ClientAnswer, RecordingClient, answered
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import ClusterError, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER = WORKER_TOKENS["worker-0"]
NODES = ("n1", "n2", "n3")
ROUNDS = 40

Step = tuple[str, str, str, Callable[[str], object]]


def _claim(command: str) -> object:
    return {"commands": [command], "count": 1}


def _says(body: object) -> Callable[[str], object]:
    return lambda _: body


GIVEN_BACK: tuple[Step, ...] = (
    ("POST", "/tasks/claim", WORKER, _claim),
    ("POST", "/tasks/{id}/heartbeat", WORKER, _says({})),
    ("POST", "/tasks/{id}/nack", WORKER, _says({"delaySeconds": 600})),
    ("POST", "/tasks/{id}/cancel", PRODUCER_TOKEN, _says({})),
)
REJECTED: tuple[Step, ...] = (
    ("POST", "/tasks/claim", WORKER, _claim),
    ("POST", "/tasks/{id}/reject", WORKER, _says({"reason": "never"})),
)
FINISHED: tuple[Step, ...] = (
    ("POST", "/tasks/claim", WORKER, _claim),
    ("POST", "/tasks/{id}/abandon", WORKER, _says({})),
    ("POST", "/tasks/claim/batch", WORKER, _claim),
    ("POST", "/tasks/{id}/result", WORKER, _says({"status": "COMPLETED", "result": 1})),
    ("GET", "/tasks/{id}", PRODUCER_TOKEN, _says(None)),
    ("GET", "/tasks/{id}/result", PRODUCER_TOKEN, _says(None)),
    ("GET", "/admin/queues/{command}", ADMIN_TOKEN, _says(None)),
    ("GET", "/raft/status", PRODUCER_TOKEN, _says(None)),
)


async def test_what_was_answered_is_read_on_every_node_at_once(
    cluster: LocalCluster, client: RecordingClient
) -> None:
    """Every node knows a task once its create is answered, and its end once its result is."""
    command = f"read-{time.time_ns()}"
    for number in range(ROUNDS):
        at, then, last = (NODES[(number + step) % 3] for step in range(3))
        made = await client.created(at, PRODUCER_TOKEN, command)
        path = f"/tasks/{made['id']}"
        reads = await asyncio.gather(
            *(client.done("GET", node, path, PRODUCER_TOKEN) for node in NODES)
        )
        held = await client.claimed(then, WORKER, [command])
        await client.finished(last, WORKER, held, {"n": number})
        results = await asyncio.gather(
            *(client.done("GET", node, f"{path}/result", PRODUCER_TOKEN) for node in NODES)
        )
        depths = await asyncio.gather(*(client.depth(node, ADMIN_TOKEN, command) for node in NODES))

        assert [made["id"]] * 3 == [read["id"] for read in reads], reads
        assert held["id"] == made["id"]
        assert [{"n": number}] * 3 == [result["result"]["result"] for result in results]
        assert [(0, 0, 0, 0)] * 3 == [tuple(depth.values()) for depth in depths]


async def test_no_node_sends_a_caller_to_another(
    cluster: LocalCluster, client: RecordingClient
) -> None:
    """A client that follows no redirect can use every route on every node, leader or not."""
    command = f"routed-{time.time_ns()}"
    for node in NODES * cluster.shards:
        said: list[ClientAnswer] = []
        for steps in (GIVEN_BACK, REJECTED, FINISHED):
            made = await client.created(node, PRODUCER_TOKEN, command, payload=1)
            for method, path, token, body in steps:
                at = path.format(id=made["id"], command=command)
                sent = partial(client.call, method, node, at, token, body(command))
                said.append(await answered(sent))

        assert [200] * len(said) == [answer.status for answer in said], said


async def test_the_tiers_of_a_topic_hold_on_every_node_at_once(
    cluster: LocalCluster, client: RecordingClient
) -> None:
    """A put through one node binds all nodes on every shard at once; so does the deletion."""
    command = f"tiered-{time.time_ns()}"
    topic = f"/admin/topics/{command}"
    made: list[int] = []
    for number in range(ROUNDS // 2):
        at, then, last = (NODES[(number + step) % 3] for step in range(3))
        await client.done("PUT", at, topic, ADMIN_TOKEN, {"priorityTiers": [number % 9 + 1]})
        wanted = {"command": command, "payload": 1, "priority": number % 9 + 1}
        for node in (at, then, last):
            send = partial(client.call, "POST", node, "/tasks", PRODUCER_TOKEN)
            refused = await answered(partial(send, wanted | {"priority": 0}))
            taken = await answered(partial(send, wanted))
            made += [refused.status, taken.status]

    assert [400, 202] * 3 * (ROUNDS // 2) == made


async def test_the_gauges_of_all_nodes_add_up_to_the_queue(
    cluster: LocalCluster, client: RecordingClient
) -> None:
    """Only a shard's leader counts its tasks, so a sum over nodes counts each task once."""
    command = f"gauged-{time.time_ns()}"
    items = [{"command": command, "payload": number} for number in range(60)]
    await client.done("POST", "n1", "/tasks/batch", PRODUCER_TOKEN, {"tasks": items})
    await client.claimed("n2", WORKER, [command])
    depth = f'codeq_queue_depth{{command="{command}",queue='
    wanted = {
        **{f'{depth}"{place}"}}': 0.0 for place in ("delayed", "dlq")},
        f'{depth}"ready"}}': 59.0,
        f'{depth}"in_progress"}}': 1.0,
        **{f'codeq_raft_is_leader{{shard="{shard}"}}': 1.0 for shard in range(cluster.shards)},
    }
    found: dict[str, float] = {}

    async def add_up() -> bool:
        # During a change of leader, two nodes may count a shard's tasks, or none.
        scrapes = await asyncio.gather(*(cluster.metrics(node) for node in NODES))
        found.update({name: sum(each.get(name, 0.0) for each in scrapes) for name in wanted})
        return found == wanted

    with suppress(ClusterError):
        await until(add_up, what="gauges that add up")
    assert wanted == found
