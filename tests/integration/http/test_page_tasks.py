"""Tasks on the page, by its own routes on a real node: searched, shown, cancelled, purged."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from operator import itemgetter
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from codeq_cluster.core.instants import rfc3339
from tests.integration.http.client import eventually
from tests.integration.http.page import PageWorld, Session, logged_in_world

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOUR_MS = 3_600_000


class World(PageWorld):
    """A node, and what a user of the page does to its tasks."""

    async def search(self, path: str = "/tasks", **query: object) -> list[dict[str, Any]]:
        """Return all tasks of a list, page by page."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            answer = await self.viewer.get(f"{path}?{urlencode({**query, 'cursor': cursor})}")
            assert 200 == answer.status, answer.body
            page = json.loads(answer.body)
            found += page["tasks"]
            cursor = page.get("cursor", "")
            if not cursor:
                return found

    async def look(self, task_id: str, session: Session | None = None) -> dict[str, Any]:
        """Return the task's view."""
        shown = await (session or self.admin).view(f"task&id={task_id}")
        view: dict[str, Any] = shown["view"]
        return view


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run a node for this file alone."""
    async with logged_in_world(tmp_path_factory.mktemp("tasks"), World) as world:
        yield world


async def created(world: World, command: str, **fields: object) -> str:
    """Create a task as the tenant's producer."""
    body = {"command": command, "payload": {"secret": "of " + command}, **fields}
    answer = await world.client.post("tasks", body, token="producer")
    assert 202 == answer.status, answer.body
    return str(answer.json["id"])


async def ended(
    world: World, command: str, status: str, *, following: Sequence[object] = (), **fields: object
) -> str:
    """Create a task and end it."""
    task_id = await created(world, command, **fields)
    await world.client.claim(command)
    result = {"result": {"n": 12345678901234567890}} if status == "COMPLETED" else {}
    error = {"error": "no way"} if status == "FAILED" else {}
    body = {"status": status, **result, **error, "next": following}
    assert 200 == (await world.client.post(f"tasks/{task_id}/result", body)).status
    return task_id


async def test_tasks_are_found_by_state(world: World) -> None:
    """Each state's list has its own tasks, and the list of all has every task."""
    found = {
        "completed": await ended(world, "states", "COMPLETED"),
        "failed": await ended(world, "states", "FAILED"),
        "delayed": await created(world, "states", delaySeconds=600),
        "in-progress": await created(world, "states"),
    }
    await world.client.claim("states")
    found["ready"] = await created(world, "states")
    by_state = {
        state: [row["id"] for row in await world.search(command="STATES", state=state)]
        for state in found
    }
    every = {row["id"]: row["state"] for row in await world.search(command="states")}

    assert {state: [task_id] for state, task_id in found.items()} == by_state
    assert {task_id: state for state, task_id in found.items()} == every
    unknown = await world.viewer.get("/tasks?state=lost")
    assert (400, "invalid-query") == (unknown.status, unknown.json["code"])


async def test_tasks_are_found_by_a_part_of_their_error_their_age_and_their_worker(
    world: World,
) -> None:
    """Several filters narrow the list further."""
    failed = await ended(world, "filters", "FAILED")
    await ended(world, "filters", "COMPLETED")
    held = await created(world, "filters")
    await world.client.claim("filters")
    now = (await world.look(held))["task"]["createdAt"]
    later = rfc3339(4_000_000_000_000)

    async def ids(**query: object) -> list[str]:
        return [row["id"] for row in await world.search(command="filters", **query)]

    assert [failed] == await ids(error="NO WAY")
    assert [] == await ids(error="no way", state="completed")
    assert [held] == await ids(worker="w")
    assert [] == await ids(worker="somebody")
    assert held in await ids(createdFrom=now)
    assert [] == await ids(createdFrom=later)
    assert [] == await ids(createdBefore=rfc3339(1))
    assert 3 == len(await ids(createdBefore=later))
    assert 400 == (await world.viewer.get("/tasks?createdFrom=yesterday")).status


async def test_tasks_are_found_by_their_tags_which_a_viewer_sees(world: World) -> None:
    """With the other filters, the newest first; the metadata is for admins."""
    made = [
        await created(world, "chips", tags={"user": "4 2", "n": str(n)}, metadata={"secret": n})
        for n in range(3)
    ]
    await created(world, "chips")
    rows = await world.search(tag="user:4 2", limit=2)
    by_id = sorted(rows, key=itemgetter("id"))
    one = [row["id"] for row in await world.search(tag="user:4 2", command="CHIPS", error="no")]
    seen = (await world.look(made[0], world.viewer))["task"]

    assert [sorted(made), []] == [[row["id"] for row in by_id], one]
    # Those of one millisecond come by their ids.
    assert sorted(by_id, key=itemgetter("createdAt"), reverse=True) == rows
    assert {"n": "0", "user": "4 2"} == seen["tags"]
    assert "metadata" not in seen
    assert {"secret": 0} == (await world.look(made[0]))["task"]["metadata"]
    assert 400 == (await world.viewer.get("/tasks?tag=user")).status


async def test_a_rare_match_is_found_page_by_page(world: World) -> None:
    """A match is found however many other tasks come before it."""
    tasks = [{"command": "rare", "payload": n} for n in range(100)]
    for _ in range(3):
        await world.client.post("tasks/batch", {"tasks": tasks}, token="producer")
    needle = await ended(world, "rare", "FAILED", priority=9)

    found = await world.search(command="rare", error="no way", limit=5)
    assert [needle] == [row["id"] for row in found]


async def test_delayed_tasks_come_by_when_they_are_due_whatever_their_queue(world: World) -> None:
    """The list is paged over all shards, or over one queue."""
    due = {
        await created(world, f"due.{n % 3}", delaySeconds=1000 - 37 * (n % 13) - n): n
        for n in range(24)
    }
    rows = await world.search("/delayed", limit=5)
    of_one = await world.search("/delayed", command="DUE.1", limit=5)
    instants = [row["until"] for row in rows]

    assert due.keys() <= {row["id"] for row in rows}
    assert sorted(instants) == instants
    assert {"due.1"} == {row["command"] for row in of_one}
    assert 8 == len(of_one)


async def test_a_task_is_shown_with_its_reason_and_its_attempts(world: World) -> None:
    """A viewer sees them too."""
    task_id = await created(world, "shown", webhook="http://127.0.0.1:9/path?token=x")
    claimed = await world.client.claim("shown")
    body = {"reason": "not now", "delaySeconds": 600, "leaseToken": claimed["leaseToken"]}
    await world.client.post(f"tasks/{task_id}/nack", body)
    shown = await world.look(task_id, world.viewer)
    task = shown["task"]

    assert ("delayed", 1, 5) == (task["state"], task["attempts"], task["maxAttempts"])
    assert "backing-off" == shown["explanation"]["reason"]
    assert [("NACKED", "not now")] == [(each["outcome"], each["error"]) for each in task["history"]]
    assert "http://127.0.0.1/…" == task["webhook"]
    assert (await world.look(task_id))["task"]["webhook"].endswith("?token=x")


async def test_a_task_and_those_that_its_result_made_lead_to_each_other(world: World) -> None:
    """A viewer sees the parent; what a result made is a part of the result."""
    following = [
        {"command": "second", "payload": {}},
        {"command": "second", "payload": {}, "idempotencyKey": "only-once"},
    ]
    first = await ended(world, "first", "COMPLETED", following=following)
    second = (await world.client.claim("second"))["id"]
    content = await world.admin.get(f"/tasks/{first}/content")
    shown = (await world.look(second, world.viewer))["task"]
    unfollowed = await world.admin.get(f"/tasks/{second}/content")

    assert [{"idempotencyKey": "only-once"}] == content.json["next"][1:]
    assert (first, first) == (shown["parentId"], shown["rootId"])
    assert "parentId" not in (await world.look(first))["task"]
    assert [] == unfollowed.json["next"]


async def test_the_shown_part_of_an_id_is_enough(world: World) -> None:
    """The page shows 13 characters of an id, and people paste those."""
    task_id = await created(world, "short-id")
    look = await world.look(task_id[:13])

    assert task_id == look["task"]["id"]


async def test_a_viewer_sees_no_payload_and_no_result(world: World) -> None:
    """No route shows a viewer payloads or results; an admin gets every digit."""
    task_id = await ended(world, "carried", "COMPLETED")
    paths = [
        "/tasks?command=carried",
        f"/now?view=task&id={task_id}",
        "/now?view=queue&queue=carried",
        f"/tasks/{task_id}/content",
    ]
    told = [await world.viewer.get(path) for path in paths]
    content = await world.admin.get(f"/tasks/{task_id}/content")

    assert [200, 200, 200, 403] == [each.status for each in told]
    assert not [each for each in told if b"secret" in each.body or b"1234567890" in each.body]
    assert '{"secret": "of carried"}' == content.json["payload"]
    assert '{"n": 12345678901234567890}' == content.json["result"]


async def test_another_tenants_task_does_not_exist(world: World) -> None:
    """It cannot be shown or changed, and no list has it."""
    task_id = await created(world, "mine")
    await created(world, "mine", delaySeconds=600)
    shown = json.loads((await world.stranger.get(f"/now?view=task&id={task_id}")).body)
    content = await world.stranger.get(f"/tasks/{task_id}/content")
    cancelled = await world.stranger.write("POST", f"/tasks/{task_id}/cancel")
    lists = [await world.stranger.get(path) for path in ("/tasks", "/delayed", "/now?view=queues")]

    assert 404 == shown["trouble"]["status"]
    assert "view" not in shown
    assert (404, 404) == (content.status, cancelled.status)
    assert not [each for each in lists if b"mine" in each.body]
    assert "ready" == (await world.look(task_id))["task"]["state"]


async def test_a_cancelled_task_is_on_record(world: World) -> None:
    """The record has the actor; an ended task cannot be cancelled."""
    task_id = await created(world, "cancelled")
    first = await world.admin.write("POST", f"/tasks/{task_id}/cancel")
    second = await world.admin.write("POST", f"/tasks/{task_id}/cancel")
    audit = await world.client.get("admin/audit", token="admin")

    assert (200, 409) == (first.status, second.status)
    assert [("a admin", "task.cancel")] == [
        (each["actor"], each["action"])
        for each in json.loads(audit.body)["records"]
        if each["target"] == task_id
    ]


async def test_a_purge_cancels_as_many_as_were_confirmed(world: World) -> None:
    """Ready tasks go first, then delayed ones; the answer says whether there are more."""
    for n in range(6):
        await created(world, "purged", delaySeconds=600 * (n % 2))
    first = await world.admin.write("POST", "/queues/PURGED/purge", {"limit": 4})
    depth = (await world.client.get("admin/queues/purged", token="admin")).json
    rest = await world.admin.write("POST", "/queues/purged/purge", {"limit": 10_000})

    assert (4, True) == (first.json["changed"], first.json["more"])
    assert (0, 2) == (depth["ready"], depth["delayed"])
    assert (2, False) == (rest.json["changed"], rest.json["more"])


@pytest.mark.parametrize("body", [{}, {"limit": 0}, {"limit": 10_001}, {"limit": "all"}, []])
async def test_a_purge_without_a_number_is_refused(world: World, body: object) -> None:
    """A purge without its number of tasks is refused."""
    await created(world, "kept")
    refused = await world.admin.write("POST", "/queues/kept/purge", body)

    assert 400 == refused.status
    assert (await world.client.get("admin/queues/kept", token="admin")).json["ready"] >= 1


async def _graph_of(world: World, task_id: str) -> list[dict[str, Any]]:
    graph: list[dict[str, Any]] = (await world.look(task_id))["graph"]
    return graph


async def test_a_task_shows_its_graph_and_who_holds_it_up(world: World) -> None:
    """Of two parents one is done, and the other is what the rest waits for."""
    tasks = [
        {"ref": "done", "command": "graph-done", "payload": {}},
        {"ref": "open", "command": "graph-open", "payload": {}},
        {"command": "graph-last", "payload": {}, "dependsOn": ["done", "open"]},
    ]
    made = await world.client.post("tasks/graph", {"tasks": tasks}, token="producer")
    done, other, last = (str(each["id"]) for each in made.json["tasks"])
    await world.client.claim("graph-done")
    body = {"status": "COMPLETED", "result": {}}
    assert 200 == (await world.client.post(f"tasks/{done}/result", body)).status
    # The next entry tells the one that waits.
    shown = await eventually(
        lambda: _graph_of(world, last), lambda graph: graph[0]["waitsFor"][0]["verdict"] == "met"
    )
    plain = await created(world, "no-graph")

    found = {each["command"]: (each["state"], each.get("blocks", False)) for each in shown}
    assert last == shown[0]["id"]
    assert {
        "graph-done": ("completed", False),
        "graph-open": ("ready", True),
        "graph-last": ("held", False),
    } == found
    assert [{"id": done, "verdict": "met"}, {"id": other, "verdict": "waits"}] == shown[0][
        "waitsFor"
    ]
    assert {"done", "open"} == {each["name"] for each in shown[1:]}
    assert [] == (await world.look(plain))["graph"]
