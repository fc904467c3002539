"""Rate limits of a real cluster: per tenant, over all nodes that are alive."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from codeq_cluster.core.sharding import home_shard
from codeq_cluster.ratelimit.limiter import OWNER_TIMEOUT_S
from codeq_cluster.ratelimit.token_lease import HOLD_NS
from tests.harness.client import ClientAnswer, RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN
from tests.harness.waiting import until

T = TypeVar("T")

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARDS = 4
BURST = 20
# One token a minute: during a test the bucket gains at most one.
LIMIT = {"requestsPerMinute": 1, "burstSize": BURST}
# Each scenario has its own tenants; a disturbed one is repeated with others.
TENANTS = [f"tenant-{number}" for number in range(200)]
UNDISTURBED_WITHIN_S = 120.0
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


class Timed(RecordingClient):
    """A client that records the duration of its slowest call."""

    slowest_s = 0.0

    async def call(
        self,
        method: str,
        node: str,
        path: str,
        token: str,
        body: object = None,
        **headers: str,
    ) -> ClientAnswer:
        """Send one request."""
        begun_s = time.monotonic()
        answer = await super().call(method, node, path, token, body, **headers)
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)
        return answer


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[Timed]:
    """Yield a client of the module's cluster."""
    async with Timed(cluster.urls) as session:
        yield session


@pytest.fixture(scope="module")
def tenants() -> Iterator[str]:
    """Return tenants that have made no requests yet."""
    return iter(TENANTS)


async def undisturbed(
    cluster: LocalCluster, client: Timed, tell: Callable[[], Awaitable[T]]
) -> tuple[T, float]:
    """Run a scenario, repeated until no node had to count by itself, and return its result.

    A node that cannot reach the counting leader uses its own share for a while, and a new leader
    starts with full buckets. Neither has disturbed the scenario if every call was answered fast
    enough, no leader was elected, and any earlier disturbance is long over.

    Returns:
        The scenario's result, and how many tokens the buckets may have gained meanwhile.
    """

    async def terms() -> list[list[int]]:
        found = [await cluster.status(node) for node in cluster.nodes]
        return [[each.term for each in (groups or {}).values()] for groups in found]

    begins_s = time.monotonic() + HOLD_NS / 10**9

    async def told() -> tuple[T, float] | None:
        nonlocal begins_s
        if time.monotonic() < begins_s:
            return None
        before, client.slowest_s, begun_s = await terms(), 0.0, time.monotonic()
        end = await tell()
        brought = (time.monotonic() - begun_s) / 60 * LIMIT["requestsPerMinute"]
        calm = client.slowest_s < OWNER_TIMEOUT_S and all(before) and await terms() == before
        begins_s = time.monotonic() + HOLD_NS / 10**9
        return (end, brought) if calm else None

    return await until(told, within_s=UNDISTURBED_WITHIN_S, what="a story that nothing disturbed")


async def created(client: RecordingClient, tenant: str, asks: int) -> int:
    """Create through the nodes in turn; return how many were allowed."""
    nodes = itertools.cycle(client.urls)
    answers = [await client.create(next(nodes), tenant, "limited") for _ in range(asks)]
    return sum(answer.status == 202 for answer in answers)


async def hits(cluster: LocalCluster) -> float:
    """Return the refused creates that the nodes have counted."""
    name = 'codeq_rate_limit_hits_total{operation="create_task",scope="producer"}'
    return sum([(await cluster.metrics(node)).get(name, 0.0) for node in cluster.nodes])


async def test_a_tenant_gets_its_burst_over_all_nodes_together(
    cluster: LocalCluster, client: Timed, tenants: Iterator[str]
) -> None:
    """The burst is granted once, not once per node, and each refusal is counted."""

    async def asked() -> tuple[int, float]:
        before = await hits(cluster)
        let_by = await created(client, next(tenants), 2 * BURST)
        return let_by, await hits(cluster) - before

    (let_by, counted), brought = await undisturbed(cluster, client, asked)

    assert BURST <= let_by <= BURST + brought
    assert 2 * BURST - let_by == counted


async def test_a_tenant_beyond_its_limit_changes_nothing_for_another(
    cluster: LocalCluster, client: Timed, tenants: Iterator[str]
) -> None:
    """Its own claims are not affected either, since they are counted separately."""

    async def asked() -> tuple[int, ClientAnswer]:
        beyond = next(tenants)
        await created(client, beyond, BURST + 1)
        let_by = await created(client, next(tenants), BURST)
        return let_by, await client.claim("n1", beyond, ["limited"])

    (let_by, claimed), _ = await undisturbed(cluster, client, asked)

    assert BURST == let_by
    assert 200 == claimed.status
    assert 2 * BURST == await created(client, FREE, 2 * BURST)


async def test_a_refusal_says_what_is_limited_and_until_when(
    cluster: LocalCluster, client: Timed, tenants: Iterator[str]
) -> None:
    """On every node it has the contract's words, and the header agrees with them."""

    async def asked() -> list[tuple[int, str, Any]]:
        tenant = next(tenants)
        await created(client, tenant, BURST + 1)
        body = {"command": "limited", "payload": {}}
        return [
            await client.call("POST", node, "/tasks", tenant, body, X_Request_Id="r")
            for node in cluster.urls
        ]

    said, _ = await undisturbed(cluster, client, asked)

    for answer in said:
        after = answer.headers["retry-after"]
        assert 429 == answer.status
        assert 1 <= int(after) <= 60
        assert {
            "error": "rate limit exceeded",
            "code": "rate-limited",
            "retryable": True,
            "requestId": "r",
            "scope": "producer",
            "operation": "create_task",
            "retryAfterSeconds": int(after),
        } == answer.body


async def test_claims_are_limited_a_request_and_batches_as_one(
    cluster: LocalCluster, client: Timed, tenants: Iterator[str]
) -> None:
    """A claim counts as one whatever it returns."""
    batch = {"commands": ["nothing"], "count": 100}

    async def asked() -> tuple[set[int], list[ClientAnswer]]:
        tenant, nodes = next(tenants), itertools.cycle(cluster.nodes)
        claims = {
            (await client.claim(next(nodes), tenant, ["nothing"])).status for _ in range(BURST - 1)
        }
        batches = [
            await client.call("POST", next(nodes), "/tasks/claim/batch", tenant, batch)
            for _ in range(4)
        ]
        return claims, batches

    (claims, batches), _ = await undisturbed(cluster, client, asked)

    assert {204} == claims
    assert 204 == batches[0].status
    assert [429, 429] == [answer.status for answer in batches[2:]]
    assert "worker" == batches[3].body["scope"]
    assert "claim" == batches[3].body["operation"]


async def test_a_batch_of_creates_counts_its_tasks_and_is_let_by_as_a_whole(
    cluster: LocalCluster, client: Timed, tenants: Iterator[str]
) -> None:
    """A batch that is larger than the bucket is refused for good."""

    async def asked() -> list[ClientAnswer]:
        tenant = next(tenants)

        async def batch(node: str, count: int) -> ClientAnswer:
            tasks = [{"command": "limited", "payload": {}}] * count
            return await client.call("POST", node, "/tasks/batch", tenant, {"tasks": tasks})

        return [
            await batch("n1", BURST + 1),
            await batch("n2", BURST - 5),
            await batch("n3", 8),
            await batch("n1", 5),
            await client.create("n2", tenant, "limited"),
        ]

    (too_large, *answers), _ = await undisturbed(cluster, client, asked)

    assert (400, "batch-too-large") == (too_large.status, too_large.detail)
    assert f"batch size exceeds maximum of {BURST}" == too_large.body["error"]
    assert [200, 429, 200, 429] == [answer.status for answer in answers]


async def test_creates_go_on_when_the_node_that_counts_is_killed(
    cluster: LocalCluster, client: RecordingClient, tenants: Iterator[str]
) -> None:
    """The others' shares allow creates at once; the next counting leader has a full bucket."""
    tenant = next(tenants)
    home = home_shard(tenant, SHARDS)
    owner = await cluster.leader_of(home)
    survivors = [node for node in cluster.nodes if node != owner]
    await created(client, tenant, BURST + 1)
    await cluster.kill(owner)

    async def let_by() -> bool:
        answers = [await client.create(node, tenant, "limited") for node in survivors]
        assert {answer.status for answer in answers} <= {202, 429}
        return any(answer.status == 202 for answer in answers)

    await until(let_by, what="a create of a tenant whose limit nobody counted")
    new_owner = await cluster.leader_of(home, among=survivors)
    assert new_owner != owner

    async def counted_again() -> bool:
        # A new leader serves others a moment before its own requests know that it leads.
        return (await client.create(new_owner, tenant, "limited")).status == 202

    await until(counted_again, what="a create that the new owner has counted")
    statuses = [
        (await client.create(new_owner, tenant, "limited")).status for _ in range(3 * BURST)
    ]
    assert 429 == statuses[-1]
