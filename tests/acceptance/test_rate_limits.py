"""Rate limits of a real cluster: a tenant's, whichever nodes it asks and whichever of them live."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from codeq_cluster.core.sharding import home_shard
from codeq_cluster.testing.client import Answer, Client
from codeq_cluster.testing.cluster import ADMIN_TOKEN, LocalCluster, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARDS = 4
BURST = 20
# One token a minute: what the rate brings while a test runs is none or one.
LIMIT = {"requestsPerMinute": 1, "burstSize": BURST}
TENANTS = [f"tenant-{number}" for number in range(8)]
FREE = "unlimited"

_SCOPES = ["codeq:claim", "codeq:heartbeat", "codeq:abandon", "codeq:nack", "codeq:result"]
_PROVIDER = {
    "kind": "static",
    "tokens": [
        {"token": ADMIN_TOKEN, "subject": "admin", "tenant": "admin", "scopes": ["codeq:admin"]},
        *(
            {"token": each, "subject": each, "tenant": each, "scopes": _SCOPES, "eventTypes": ["*"]}
            for each in (*TENANTS, FREE)
        ),
    ],
}
_SETTINGS = {
    "auth": {"producer": [_PROVIDER], "worker": [_PROVIDER]},
    "rateLimit": {
        "producer": LIMIT,
        "worker": LIMIT,
        "tenants": {FREE: {"producer": {"requestsPerMinute": 0, "burstSize": 0}}},
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def limited_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes that limit every tenant but one."""
    directory = tmp_path_factory.mktemp("limited")
    async with LocalCluster(directory, shards=SHARDS, settings=_SETTINGS) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(limited_cluster: LocalCluster) -> AsyncIterator[LocalCluster]:
    """Yield the module's cluster and undo every fault afterwards."""
    yield limited_cluster
    await limited_cluster.restore()


async def created(client: Client, tenant: str, asks: int) -> tuple[int, list[Answer], int]:
    """Create through the nodes in turn.

    Returns:
        How many were let by, the answers of those that were not, and how many tokens the rate may
        have brought meanwhile.
    """
    begun_s = time.monotonic()
    nodes = itertools.cycle(client.urls)
    answers = [await client.create(next(nodes), tenant, "limited") for _ in range(asks)]
    refused = [answer for answer in answers if answer.status != 202]
    brought = int((time.monotonic() - begun_s) / 60 * LIMIT["requestsPerMinute"])
    return asks - len(refused), refused, brought


async def hits(cluster: LocalCluster) -> float:
    """Return the refusals of creates that the nodes have counted."""
    name = 'codeq_rate_limit_hits_total{operation="create_task",scope="producer"} '
    total = 0.0
    async with aiohttp.ClientSession() as session:
        for url in cluster.urls.values():
            async with session.get(f"{url}/metrics") as response:
                text = await response.text()
            total += sum(
                float(line.removeprefix(name)) for line in text.splitlines() if name in line
            )
    return total


async def test_a_tenant_gets_its_burst_over_all_nodes_together(
    cluster: LocalCluster, client: Client
) -> None:
    """Not once a node; and each refusal is counted."""
    before = await hits(cluster)
    let_by, refused, brought = await created(client, TENANTS[0], 2 * BURST)

    assert BURST <= let_by <= BURST + brought
    assert await hits(cluster) - before == len(refused) == 2 * BURST - let_by


async def test_a_tenant_beyond_its_limit_changes_nothing_for_another(
    cluster: LocalCluster, client: Client
) -> None:
    """Nor do its claims, which are counted apart."""
    del cluster
    await created(client, TENANTS[1], BURST + 1)

    let_by, _, _ = await created(client, TENANTS[2], BURST)
    assert let_by == BURST
    assert (await created(client, FREE, 2 * BURST))[0] == 2 * BURST
    assert (await client.claim("n1", TENANTS[1], ["limited"])).status == 200


async def test_a_refusal_says_what_is_limited_and_until_when(
    cluster: LocalCluster, client: Client
) -> None:
    """In the words of the contract, on every node, with the header saying the same."""
    await created(client, TENANTS[3], BURST + 1)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TENANTS[3]}"}) as session:
        for url in cluster.urls.values():
            async with session.post(
                f"{url}/v1/codeq/tasks",
                json={"command": "limited", "payload": {}},
                headers={"X-Request-Id": "r"},
            ) as response:
                body = await response.json()
                after = int(response.headers["Retry-After"])

            assert response.status == 429
            assert 1 <= after <= 60
            assert body == {
                "error": "rate limit exceeded",
                "code": "rate-limited",
                "retryable": True,
                "requestId": "r",
                "scope": "producer",
                "operation": "create_task",
                "retryAfterSeconds": after,
            }


async def test_claims_are_limited_a_request_and_batches_as_one(
    cluster: LocalCluster, client: Client
) -> None:
    """Whatever they find."""
    nodes = itertools.cycle(cluster.nodes)
    claims = [
        (await client.claim(next(nodes), TENANTS[4], ["nothing"])).status for _ in range(BURST - 1)
    ]
    batch = {"commands": ["nothing"], "count": 100}
    batches = [
        await client.call("POST", next(nodes), "/tasks/claim/batch", TENANTS[4], batch)
        for _ in range(4)
    ]

    assert set(claims) == {204}
    assert batches[0].status == 204
    assert [answer.status for answer in batches[2:]] == [429, 429]
    assert batches[3].body["scope"] == "worker"
    assert batches[3].body["operation"] == "claim"


async def test_a_batch_of_creates_counts_its_tasks_and_is_let_by_as_a_whole(
    cluster: LocalCluster, client: Client
) -> None:
    """One that could never be let by is no matter of waiting."""
    del cluster

    async def batch(node: str, count: int) -> Answer:
        tasks = [{"command": "limited", "payload": {}}] * count
        return await client.call("POST", node, "/tasks/batch", TENANTS[5], {"tasks": tasks})

    too_large = await batch("n1", BURST + 1)
    answers = [await batch("n2", BURST - 5), await batch("n3", 8), await batch("n1", 5)]

    assert (too_large.status, too_large.detail) == (400, "batch-too-large")
    assert too_large.body["error"] == f"batch size exceeds maximum of {BURST}"
    assert [answer.status for answer in answers] == [200, 429, 200]
    assert (await client.create("n2", TENANTS[5], "limited")).status == 429


async def test_creates_go_on_when_the_node_that_counts_is_killed(
    cluster: LocalCluster, client: Client
) -> None:
    """At once by the shares of the others; the next one starts with a full bucket."""
    tenant = TENANTS[6]
    home = home_shard(tenant, SHARDS)
    owner = await cluster.leader_of(home)
    survivors = [node for node in cluster.nodes if node != owner]
    await created(client, tenant, BURST + 1)
    await cluster.kill(owner)

    async def let_by() -> bool:
        answers = [await client.create(node, tenant, "limited") for node in survivors]
        assert {answer.status for answer in answers} <= {202, 429}
        return any(answer.status == 202 for answer in answers)

    await until(let_by, within_s=20, what="a create of a tenant whose limit nobody counted")
    new_owner = await cluster.leader_of(home, among=survivors)
    assert new_owner != owner

    async def counted_anew() -> bool:
        # It leads a moment before its own requests know that it does.
        return (await client.create(new_owner, tenant, "limited")).status == 202

    await until(counted_anew, within_s=20, what="a create that the new owner has counted")
    statuses = [
        (await client.create(new_owner, tenant, "limited")).status for _ in range(3 * BURST)
    ]
    assert statuses[-1] == 429
