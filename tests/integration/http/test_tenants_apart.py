"""Tenants apart: a token gives access to its own tenant only."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from tests.integration.http.client import BASE, Client

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_admin_sees_the_queues_of_its_tenant_alone(node: Client) -> None:
    """Another tenant's queue of the same name counts only for that tenant."""
    other = Client(node.port, "other")
    await node.create("theirs-and-mine")
    for _ in range(2):
        await other.create("theirs-and-mine")
    await other.create("theirs-alone")

    listed = await node.get("admin/queues")
    mine = await node.depth("theirs-and-mine")
    not_mine = await node.depth("theirs-alone")

    queues = {queue["command"]: queue["ready"] for queue in _array(listed.body)}
    assert queues["theirs-and-mine"] == mine["ready"] == 1
    assert "theirs-alone" not in queues
    assert 0 == not_mine["ready"]


async def test_a_worker_of_the_same_name_in_another_tenant_is_another(node: Client) -> None:
    """Both tokens have the subject `w`; neither can claim or end the other's tasks."""
    other = Client(node.port, "other")
    task_id = await node.create("namesake")
    nothing = await other.post("tasks/claim", {"commands": ["namesake"]})
    held = await node.claim("namesake")
    stolen = await other.post(
        f"tasks/{task_id}/result",
        {"status": "COMPLETED", "result": {}, "leaseToken": held["leaseToken"]},
    )

    assert 204 == nothing.status
    assert (404, "task not found") == (stolen.status, stolen.error)
    assert "IN_PROGRESS" == (await node.get(f"tasks/{task_id}")).json["status"]


async def test_a_cleanup_deletes_ended_tasks_of_its_tenant_alone(node: Client) -> None:
    """Living tasks and another tenant's tasks stay, for any caller."""
    other = Client(node.port, "other")
    ended = [await client.create("swept") for client in (node, other)]
    for client, task_id in zip((node, other), ended, strict=True):
        assert 200 == (await client.post(f"tasks/{task_id}/cancel")).status
    alive = await node.create("swept")
    # The answer of a later request proves that the instant of the end has passed.
    said = str((await node.get(f"tasks/{ended[0]}")).json["updatedAt"])
    before = (datetime.fromisoformat(said) + timedelta(milliseconds=1)).isoformat()
    while True:
        answer = await node.post("admin/tasks/cleanup", {"before": before, "limit": 10_000})
        if answer.status == 200:
            break
        assert "invalid 'before' (must not be in the future)" == answer.error

    assert 404 == (await node.get(f"tasks/{ended[0]}")).status
    assert "PENDING" == (await node.get(f"tasks/{alive}")).json["status"]
    assert "FAILED" == (await other.get(f"tasks/{ended[1]}")).json["status"]


async def test_what_a_tenant_has_beside_tasks_is_its_own(node: Client) -> None:
    """Another tenant's subscriptions, dead letters and pauses are neither shown nor changed."""
    other = Client(node.port, "other")
    url = {"callbackUrl": "https://example.com/wake", "ttlSeconds": 600}
    made = (await other.post("workers/subscriptions", url)).json["subscriptionId"]
    task_id = await other.create("both", maxAttempts=1)
    await other.claim("both")
    await other.post(f"tasks/{task_id}/abandon")
    await node.post("admin/queues/both/pause")

    renewed = await node.post(f"workers/subscriptions/{made}/heartbeat", {})
    ended = await node.send("DELETE", f"{BASE}/workers/subscriptions/{made}", b"")
    listed = await node.get("workers/subscriptions?limit=500")
    letters = await node.get("admin/queues/both/dlq")
    revived = await node.post("admin/queues/both/dlq/requeue", {})
    after = await other.get(f"tasks/{task_id}")
    await other.create("both")

    assert (404, 404) == (renewed.status, ended.status)
    assert str(made) not in listed.body.decode()
    assert [] == letters.json["tasks"]
    assert 0 == revived.json["requeued"]
    assert "DLQ_SET" == after.json["lastKnownLocation"]
    assert "IN_PROGRESS" == (await other.claim("both"))["status"]


@pytest.mark.parametrize("header", ["X_Role", "X_User_Role", "X_Tenant_Id", "X_Codeq_Tenant"])
@pytest.mark.parametrize("value", ["ADMIN", "acme"])
async def test_no_header_makes_anybody_more_than_the_token_says(
    node: Client, header: str, value: str
) -> None:
    """No header makes a caller an admin, authenticates one, or changes its tenant."""
    task_id = await node.create("secret")
    extra = {header: value}
    admin = await node.get("admin/queues", token="narrow", **extra)
    nobody = await node.get("admin/queues", token="", **extra)
    stranger = await node.get(f"tasks/{task_id}", token="other", **extra)
    homeless = await node.send("GET", f"{BASE}/tasks/{task_id}", b"", token="homeless", **extra)

    assert (401, "unauthorized. Admin only") == (admin.status, admin.error)
    assert (401, "missing Authorization header") == (nobody.status, nobody.error)
    assert (404, "not found") == (stranger.status, stranger.error)
    assert (403, "invalid tenant claims") == (homeless.status, homeless.error)


def _array(body: bytes) -> list[dict[str, object]]:
    value = json.loads(body)
    assert isinstance(value, list)
    return value
