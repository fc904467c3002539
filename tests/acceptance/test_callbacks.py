"""Callbacks: what leaves the cluster survives its leaders, and keeps no producer waiting."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio
from aiohttp import web

from codeq_cluster.core.sharding import home_shard, shard_of
from tests.harness.client import RecordingClient, answered
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until
from tests.integration.webhooks.target import fine, listening

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER = WORKER_TOKENS["worker-0"]
TASKS = 24
TENANT = ""  # The default tenant.
SUBSCRIBER_TOKEN = "acceptance-subscriber"
_SCOPES = ["codeq:claim", "codeq:result", "codeq:subscribe"]
_WORKERS = [
    {"token": WORKER, "subject": "worker", "scopes": _SCOPES, "eventTypes": ["*"]},
    {"token": SUBSCRIBER_TOKEN, "subject": "ears", "scopes": _SCOPES, "eventTypes": ["*"]},
]
_PRODUCERS = [
    {"token": PRODUCER_TOKEN, "subject": "producer"},
    {"token": ADMIN_TOKEN, "subject": "admin", "scopes": ["codeq:admin"]},
]
_SETTINGS = {
    "auth": {
        "tenantFallback": "default",
        "producer": [{"kind": "static", "tokens": _PRODUCERS}],
        "worker": [{"kind": "static", "tokens": _WORKERS}],
    },
    "webhooks": {"allowPrivate": True, "timeoutSeconds": 30, "perHostConcurrency": 32},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calling_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes that may call this machine."""
    directory = tmp_path_factory.mktemp("calling")
    async with LocalCluster(directory, settings=_SETTINGS) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(calling_cluster: LocalCluster) -> AsyncIterator[LocalCluster]:
    """Yield the module's cluster and undo every fault afterwards."""
    yield calling_cluster
    await calling_cluster.restore()


@pytest.mark.parametrize("round_number", range(2))
async def test_no_callback_is_lost_with_the_leader_that_was_making_it(
    cluster: LocalCluster, client: RecordingClient, round_number: int
) -> None:
    """The leader dies between the task's end and the target's answer; the next leader calls."""
    shard = round_number
    nodes = itertools.cycle(cluster.nodes)
    ended: set[str] = set()
    dead = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        if not dead.is_set():
            # The target receives the call and does not answer, so the caller dies in the call or
            # sees it fail.
            await dead.wait()
            if request.transport is not None:
                request.transport.abort()
        return await fine(request)

    async with listening(serve) as target:
        while len(ended) < TASKS:
            task_id = await finished(client, next(nodes), webhook=f"{target.url}/hook")
            if shard_of(task_id, cluster.shards) == shard:
                ended.add(task_id)
        await target.arrived(1)
        victim = await cluster.leader_of(shard)
        await cluster.kill(victim)
        heard_before = len(target.heard)
        before = {each.headers["X-CodeQ-Delivery"] for each in target.heard}
        dead.set()
        survivor = next(node for node in cluster.nodes if node != victim)

        async def all_heard() -> bool:
            after = {each.headers["X-CodeQ-Delivery"] for each in target.heard[heard_before:]}
            return {f"{task_id}.1" for task_id in ended} <= after

        await until(all_heard, what="every callback of the killed leader's shard")

        async def outbox_empty() -> bool:
            answer = await client.call("GET", survivor, "/admin/deliveries", ADMIN_TOKEN)
            return answer.status == 200 and not answer.body["deliveries"]

        await until(outbox_empty, what="an empty outbox")

    assert before & {f"{task_id}.1" for task_id in ended}
    bodies: dict[str, set[bytes]] = {}
    for each in target.heard:
        bodies.setdefault(each.headers["X-CodeQ-Delivery"], set()).add(each.body)
    assert all(len(found) == 1 for found in bodies.values())


async def test_a_subscriber_that_hangs_keeps_no_producer_waiting(
    cluster: LocalCluster, client: RecordingClient
) -> None:
    """All creates on all nodes are answered before the hanging calls to it end."""
    let_go = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        await let_go.wait()
        return await fine(request)

    async with listening(hang) as hole:
        for mode in ("fanout", "hash"):
            await client.done(
                "POST",
                "n1",
                "/workers/subscriptions",
                SUBSCRIBER_TOKEN,
                {"callbackUrl": hole.url, "deliveryMode": mode, "minIntervalSeconds": 0},
            )
        await client.created("n2", PRODUCER_TOKEN, "holed-first")
        await hole.arrived(1)
        answers = [
            await answered(partial(client.create, node, PRODUCER_TOKEN, f"holed-{number}"))
            for number in range(40)
            for node in cluster.nodes
        ]
        let_go.set()

    assert {202} == {answer.status for answer in answers}


async def test_a_queue_filled_while_its_tenant_had_no_leader_is_notified(
    cluster: LocalCluster, client: RecordingClient
) -> None:
    """The next leader of the tenant's home shard sends the notice, on any shard of the task."""
    victim = await cluster.leader_of(home_shard(TENANT, cluster.shards))
    survivors = [node for node in cluster.nodes if node != victim]
    async with listening() as target:
        body = {"callbackUrl": target.url, "eventTypes": ["orphaned"], "minIntervalSeconds": 0}
        await client.done("POST", survivors[0], "/workers/subscriptions", SUBSCRIBER_TOKEN, body)
        await cluster.kill(victim)
        for node in survivors:
            await client.created(node, PRODUCER_TOKEN, "orphaned")
        await target.arrived(1)

    assert target.heard[0].headers["X-CodeQ-Delivery"]


async def finished(client: RecordingClient, node: str, *, webhook: str) -> str:
    """Create a task and complete it; return its id."""
    await client.created(node, PRODUCER_TOKEN, "called-back", webhook=webhook)
    claimed = await client.claimed(node, WORKER, ["called-back"])
    await client.finished(node, WORKER, claimed, {"n": 1})
    return str(claimed["id"])
