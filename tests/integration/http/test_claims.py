"""Claims: a worker gets the tasks its token allows, waits for them, and gets as many as it asks."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.http.client import Client
from tests.integration.http.conftest import Running

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_worker_for_everything_needs_no_list_of_commands(node_with: Running) -> None:
    """A `*` token without commands claims from every queue, whatever its name."""
    async with node_with() as node:
        names = ["invoice.send", "RESIZE:large", "a", "generate_master"]
        made = {name: await node.create(name) for name in names}
        bodies: list[object] = [{}, {"commands": []}, {"commands": None}, {"waitSeconds": 1}]
        got = [(await node.post("tasks/claim", body)).json for body in bodies]

        assert made == {task["command"]: task["id"] for task in got}
        assert 204 == (await node.post("tasks/claim", {})).status


async def test_a_worker_for_everything_is_woken_by_a_queue_nobody_has_used(
    node_with: Running,
) -> None:
    """The claim waits for any queue of the tenant, even one that did not exist yet."""
    async with node_with() as node:
        waiting = asyncio.ensure_future(node.post("tasks/claim", {"waitSeconds": 15}))
        # This request's answer proves that the node has read the claim before it.
        await node.depth("new")
        task_id = await node.create("new")
        answer = await waiting

        assert (200, task_id) == (answer.status, answer.json["id"])


async def test_a_batch_claim_waits_for_its_first_task(node: Client) -> None:
    """Without any task, the answer is empty and has no body."""
    body = {"count": 100, "commands": ["later"], "waitSeconds": 15}
    waiting = asyncio.ensure_future(node.post("tasks/claim/batch", body))
    await node.depth("later")
    task_id = await node.create("later")
    answer = await waiting
    nothing = await node.post("tasks/claim/batch", {**body, "waitSeconds": 0})

    tasks = answer.json["tasks"]
    assert isinstance(tasks, list)
    assert [task_id] == [task["id"] for task in tasks]
    assert (204, b"") == (nothing.status, nothing.body)


async def test_a_batch_claim_gets_a_hundred_tasks_at_once(node: Client) -> None:
    """Tasks of every shard are claimed, each once."""
    # Keys spread the tasks over the shards; without keys, tasks created together stay together.
    items = [{"command": "many", "payload": {}, "idempotencyKey": f"k{n}"} for n in range(100)]
    await node.post("tasks/batch", {"tasks": items})
    answer = await node.post("tasks/claim/batch", {"count": 100, "commands": ["many"]})

    tasks = answer.json["tasks"]
    assert isinstance(tasks, list)
    assert 100 == len({task["id"] for task in tasks})
    assert {0, 1} == {task["shard"] for task in tasks}


async def test_a_worker_is_who_its_token_says(node: Client) -> None:
    """A name in the body does not give access to another worker's lease."""
    task_id = await node.create("owned-by-a-token")
    claimed = await node.claim("owned-by-a-token", workerId="m")
    taken = await Client(node.port, "mate").post(
        f"tasks/{task_id}/heartbeat", {"workerId": "w", "extendSeconds": 60}
    )

    assert "w" == claimed["workerId"]
    assert (403, "not-owner") == (taken.status, taken.error)


async def test_a_worker_is_shown_by_its_name_and_owns_by_its_token(node: Client) -> None:
    """Another process with the token may end the lease; the attempt names the one that held it."""
    made = await node.create("named")
    claimed = await node.claim("named", workerName="resizer@host-1:7")
    explained = (await node.get(f"tasks/{made}/explain")).json["message"]
    other = await node.post("tasks/claim", {"commands": ["named"], "workerName": "host-2:8"})
    await node.post(f"tasks/{made}/nack", {"reason": "busy"})
    after = (await node.get(f"tasks/{made}")).json
    attempt = after["history"][0]

    assert "resizer@host-1:7" == claimed["workerName"]
    assert f"{claimed['workerId']}/resizer@host-1:7 holds it" == explained
    assert 204 == other.status
    assert "workerName" not in after
    assert (claimed["workerId"], "resizer@host-1:7") == (attempt["worker"], attempt["workerName"])


@pytest.mark.parametrize("name", ["a name", "a/b", "n" * 129, "é", "a\n"])
async def test_a_worker_s_name_out_of_bounds_is_refused(node: Client, name: str) -> None:
    """Nothing is claimed under a name that a page or a log could not show."""
    answer = await node.post("tasks/claim", {"commands": ["named"], "workerName": name})

    assert (400, "invalid-worker-name") == (answer.status, answer.json["code"])
