"""What is set aside, as its tenant's admin and an operator see and retry it."""

from __future__ import annotations

from pathlib import Path

import pytest

from codeq_cluster.core.items import NO_OWNER
from codeq_cluster.settings import LimitSettings
from tests.integration.http.asides import set_aside
from tests.integration.http.client import OPERATOR, eventually, running_node, single

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_task_set_aside_is_listed_shown_and_retried(tmp_path: Path) -> None:
    """It is due again after the retry, which is on record; the page and the metrics knew of it."""
    async with running_node(single(tmp_path / "node", LimitSettings())) as (node, client):
        shards = node.parts.calls.router
        task_id = await client.create("later", delaySeconds=3600)
        aside_id = await set_aside(shards, task_id, tenant="acme")
        listed = (await client.get("admin/aside")).json
        status = (await client.get("raft/status")).json
        scraped = (await client.get("/metrics")).body.decode()
        explained = (await client.get(f"tasks/{task_id}/explain")).json

        [shown] = listed["asides"]
        assert (aside_id, "task", task_id) == tuple(shown[name] for name in ("id", "kind", "item"))
        assert "a test" in shown["reason"]
        assert ("set-aside", True) == (explained["reason"], explained["waiting"])
        assert f"aside show {aside_id}" in explained["message"]
        assert 1 == sum(group["aside"] for group in status["groups"])
        assert 'codeq_items_aside{kind="task",shard="' in scraped

        retried = await client.post("admin/aside/retry", {"ids": [aside_id, "task.none"]})
        again = await client.post("admin/aside/retry", {"all": True})
        left = (await client.get("admin/aside")).json
        waiting = (await client.get(f"tasks/{task_id}/explain")).json
        record = (await client.get("admin/audit")).json["records"][0]

    assert [{"retried": 1}, {"retried": 0}] == [retried.json, again.json]
    assert [] == left["asides"]
    assert "scheduled" == waiting["reason"]
    assert ("aside.retry", aside_id) == (record["action"], record["target"])


async def test_a_task_without_a_known_owner_is_the_operators(tmp_path: Path) -> None:
    """No tenant sees it; an operator retries it, and the operator's tenant has the record."""
    async with running_node(single(tmp_path / "node", LimitSettings())) as (node, client):
        task_id = await client.create("later", delaySeconds=3600)
        aside_id = await set_aside(node.parts.calls.router, task_id, tenant=NO_OWNER)
        hidden = (await client.get("admin/aside")).json
        listed = (await client.get("admin/cluster/aside", token=OPERATOR)).json
        retried = await client.post("admin/cluster/aside/retry", {"all": True}, token=OPERATOR)
        status = await eventually(lambda: client.get("raft/status"))

    assert [] == hidden["asides"]
    assert [aside_id] == [each["id"] for each in listed["asides"]]
    assert {"retried": 1} == retried.json
    assert 0 == sum(group["aside"] for group in status.json["groups"])
