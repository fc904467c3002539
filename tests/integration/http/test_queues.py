"""Queues of a tenant: their number is bounded, and their list comes whole or page by page."""

from __future__ import annotations

import json

import pytest

from codeq_cluster.client.connection import part
from tests.integration.http.client import Client
from tests.integration.http.conftest import Running

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_tenant_begins_no_more_queues_than_its_bound(node_with: Running) -> None:
    """The refusal says what to do; tasks for the queues it has and other tenants are served."""
    async with node_with(queues_max=20) as node:
        answers = [
            await node.post("tasks", {"command": f"q{number}", "payload": 1})
            for number in range(100)
        ]
        refused = next(answer for answer in answers if answer.status != 202)
        batch = await node.post(
            "tasks/batch", {"tasks": [{"command": f"new{n}", "payload": 1} for n in range(3)]}
        )
        await node.create("Q0")
        await Client(node.port, "other").create("another")
        listed = json.loads((await node.get("admin/queues")).body)

    assert (409, "too-many") == (refused.status, refused.json["code"])
    assert "at most 20" in str(refused.error)
    assert "limits.queuesMax" in str(refused.error)
    assert {"too-many"} == {item["code"] for item in batch.json["results"]}
    # The bound is one of each of the two shards.
    assert 20 <= len(listed) <= 40


async def test_queues_are_listed_page_by_page(node: Client) -> None:
    """Pages hold what the whole list holds, a paused and empty queue included."""
    lister = Client(node.port, "rulers")
    for name in ("b", "d", "a"):
        await lister.create(name)
    await lister.post("admin/queues/c/pause")
    whole = json.loads((await lister.get("admin/queues")).body)
    paged: list[object] = []
    cursor = ""
    for _ in range(4):
        page = (await lister.get(f"admin/queues?limit=2&cursor={cursor}")).json
        paged += page["queues"]
        cursor = page.get("cursor", "")
        if not cursor:
            break
    wrong = [await lister.get(f"admin/queues?{said}") for said in ("limit=0", "cursor=x")]

    assert ["a", "b", "c", "d"] == [row["command"] for row in whole]
    assert whole == paged
    assert [400, 400] == [answer.status for answer in wrong]


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_queue_named_like_a_step_in_a_path_is_refused_and_can_be_worked_with(
    node: Client, name: str
) -> None:
    """No path can hold such a name, so `~` stands before it; an imported queue may have it."""
    created = await node.post("tasks", {"command": name, "payload": 1})
    topic = await node.send("PUT", f"/v1/codeq/admin/topics/~{name}", b"{}")
    paused = await node.post(f"admin/queues/~{name}/pause")
    listed = json.loads((await node.get("admin/queues")).body)
    depth = await node.get(f"admin/queues/~{name}")
    resumed = await node.post(f"admin/queues/~{name}/resume")

    assert (400, "invalid-command") == (created.status, created.json["code"])
    assert (422, "topicName") == (topic.status, topic.json["field"])
    assert {"command": name, "paused": True, "changed": True} == paused.json
    assert name in {row["command"] for row in listed}
    assert (name, True) == (depth.json["command"], depth.json["paused"])
    assert resumed.json["changed"]
    assert f"~{name}" == part(name)
