"""Pauses: queues from which nobody can claim for a while."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.integration.http.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_paused_queue_gives_nothing_and_takes_everything(node: Client) -> None:
    """A pause holds until the queue is resumed."""
    task_id = await node.create("ps-one")
    paused = await node.post("admin/queues/PS-one/pause")
    again = await node.post("admin/queues/ps-one/pause")
    later = await node.create("ps-one")
    nothing = await node.post("tasks/claim", {"commands": ["ps-one"]})
    depth = await node.depth("ps-one")
    resumed = await node.post("admin/queues/ps-one/resume")
    once_more = await node.post("admin/queues/ps-one/resume")

    assert {"command": "PS-one", "paused": True, "changed": True} == paused.json
    assert {"command": "ps-one", "paused": True, "changed": False} == again.json
    assert 204 == nothing.status
    assert (2, True) == (depth["ready"], depth["paused"])
    assert {"command": "ps-one", "paused": False, "changed": True} == resumed.json
    assert {"command": "ps-one", "paused": False, "changed": False} == once_more.json
    assert "paused" not in await node.depth("ps-one")
    assert {task_id, later} == {(await node.claim("ps-one"))["id"] for _ in range(2)}


async def test_what_is_leased_from_a_paused_queue_goes_on(node: Client) -> None:
    """Heartbeats and results work as usual."""
    task_id = await node.create("ps-leased")
    await node.claim("ps-leased")
    await node.post("admin/queues/ps-leased/pause")
    beaten = await node.post(f"tasks/{task_id}/heartbeat", {})
    done = await node.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {}})
    await node.post("admin/queues/ps-leased/resume")

    assert (200, 200) == (beaten.status, done.status)


async def test_a_claim_that_waits_is_woken_by_the_resume(node: Client) -> None:
    """The claim is answered at once; its wait would outlast this test."""
    await node.post("admin/queues/ps-wait/pause")
    task_id = await node.create("ps-wait")
    waiting = asyncio.create_task(
        node.post("tasks/claim", {"commands": ["ps-wait"], "waitSeconds": 30})
    )
    await node.post("admin/queues/ps-wait/resume")
    answer = await waiting

    assert (200, task_id) == (answer.status, answer.json["id"])


async def test_paused_queues_are_listed_also_when_they_are_empty(node: Client) -> None:
    """An operator must be able to find paused queues."""
    lister = Client(node.port, "pauses")
    await lister.create("full")
    await lister.create("open")
    for queue in ("full", "empty"):
        await lister.post(f"admin/queues/{queue}/pause")
    listed = json.loads((await lister.get("admin/queues")).body)
    stranger = await Client(node.port, "other").depth("empty")

    assert {
        "empty": True,
        "full": True,
        "open": False,
    } == {each["command"]: each.get("paused", False) for each in listed}
    assert "paused" not in stranger


@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize("command", ["a%2Fb", "a%20b", "%00", "x" * 129])
async def test_an_invalid_command_is_not_paused(node: Client, verb: str, command: str) -> None:
    """An invalid command has no queue."""
    answer = await node.post(f"admin/queues/{command}/{verb}")

    assert (400, "invalid command") == (answer.status, answer.error)
