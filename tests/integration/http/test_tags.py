"""Tags: lists by what producers say of their tasks, on a real node and on three."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.http.client import Client
from tests.integration.http.nodes import three_nodes

pytestmark = pytest.mark.asyncio(loop_scope="session")

DONE = {"status": "COMPLETED", "result": {}}


async def listed(node: Client, *tags: str, **asked: object) -> list[str]:
    """Return the ids of a list by tag, walked to its end."""
    fields = [f"tag={quote(tag)}" for tag in tags]
    fields += [f"{name}={quote(str(value))}" for name, value in asked.items()]
    ids: list[str] = []
    cursor = ""
    while True:
        answer = await node.get(f"admin/tasks?{'&'.join(fields)}{cursor}")
        assert 200 == answer.status, answer.body
        ids += [task["id"] for task in answer.json["tasks"]]
        if "cursor" not in answer.json:
            return ids
        cursor = f"&cursor={answer.json['cursor']}"


async def test_a_list_has_the_tasks_with_all_of_its_tags(node: Client) -> None:
    """The newest first, over all queues and states; the other filters select among them."""
    made = [
        await node.create(
            command, tags={"order": "7", "env": env}, metadata={"n": 12345678901234567890123}
        )
        for command, env in (("bill", "test"), ("bill", "prod"), ("mail", "prod"))
    ]
    await node.create("bill", tags={"order": "77"})
    claimed = await node.claim("bill")
    await node.post(f"tasks/{claimed['id']}/result", DONE)
    shown = (await node.get(f"tasks/{made[0]}")).json
    later = (await node.get(f"tasks/{made[2]}")).json["createdAt"]

    assert [*reversed(made)] == await listed(node, "order:7")
    assert [*reversed(made)] == await listed(node, "order:7", limit=1)
    assert [made[2], made[1]] == await listed(node, "order:7", "env:prod")
    assert [made[1], made[0]] == await listed(node, "order:7", command="BILL")
    assert [made[0]] == await listed(node, "order:7", status="COMPLETED")
    assert [made[2]] == await listed(node, "order:7", "env:prod", createdAfter=later)
    assert [made[1], made[0]] == await listed(node, "order:7", createdBefore=later)
    assert [] == await listed(node, "order:7", createdAfter=later, createdBefore=later)
    assert [] == await listed(node, "order:8")
    assert {"env": "test", "order": "7"} == shown["tags"] == claimed["tags"]
    answer = await node.get(f"tasks/{made[0]}")
    assert b'"metadata":{"n":12345678901234567890123}' in answer.body.replace(b" ", b"")


async def test_a_value_may_be_any_text(node: Client) -> None:
    """Slashes, colons and letters of any kind do not mix values up."""
    values = ["a", "a/", "a:b", "größe", "a b", "ab" * 64]
    made = {value: await node.create("texts", tags={"text": value}) for value in values}

    assert made == {value: (await listed(node, f"text:{value}"))[0] for value in values}
    assert all([1 == len(await listed(node, f"text:{value}")) for value in values])


async def test_tags_change_while_the_task_goes_its_way(node: Client) -> None:
    """In whatever state it is; the same request again changes nothing, and its course goes on."""
    task = await node.create("changing", tags={"a": "1", "b": "2"})
    path = f"tasks/{task}/tags"
    await node.claim("changing")
    before = (await node.get(f"tasks/{task}")).json["updatedAt"]
    answers = [
        await node.send("PATCH", path, b'{"set":{"b":"3"},"remove":["a"]}') for _ in range(2)
    ]
    await node.post(f"tasks/{task}/result", DONE)
    ended = await node.send("PATCH", path, b'{"set":{"c":"4"}}')
    nothing = await node.send("PATCH", path, b"{}")
    after = (await node.get(f"tasks/{task}")).json

    assert [(200, {"id": task, "tags": {"b": "3"}})] * 2 == [
        (each.status, each.json) for each in answers
    ]
    assert {"b": "3", "c": "4"} == ended.json["tags"] == nothing.json["tags"] == after["tags"]
    assert "COMPLETED" == after["status"]
    assert before != after["updatedAt"]
    assert [task] == await listed(node, "c:4", "b:3")
    assert [[], []] == [await listed(node, tag) for tag in ("a:1", "b:2")]


async def test_a_deleted_task_leaves_no_row(node: Client) -> None:
    """Those of other tasks stay."""
    task = await node.create("gone", tags={"gone": "x"})
    await node.claim("gone")
    await node.post(f"tasks/{task}/result", {"status": "FAILED", "error": "x"})
    again = await node.create("gone", tags={"gone": "x"}, maxAttempts=1)
    await node.claim("gone")
    await node.post(f"tasks/{again}/nack", {})
    deleted = await node.send("DELETE", f"admin/queues/gone/dlq/{again}", b"")

    assert 200 == deleted.status, deleted.body
    assert [task] == await listed(node, "gone:x")


async def test_tenants_have_tags_of_their_own(node: Client) -> None:
    """Another tenant's list of the same tag is empty, and it changes no tag."""
    task = await node.create("apart", tags={"apart": "x"})
    other = Client(node.port, "other")
    answer = await other.send("PATCH", f"tasks/{task}/tags", b'{"set":{"apart":"y"}}')

    assert [] == await listed(other, "apart:x")
    assert 404 == answer.status
    assert [task] == await listed(node, "apart:x")


async def test_whatever_makes_a_task_takes_its_tags(node: Client) -> None:
    """Batches, graphs, groups, follow-ups, unique keys and schedules."""
    said: dict[str, Any] = {"payload": 1, "tags": {"made": "so"}, "metadata": [1]}
    items = [{"command": "batch", **said}, {"command": "batch", **said, "key": "k"}]
    batch = await node.post("tasks/batch", {"tasks": items})
    graph = await node.post("tasks/graph", {"tasks": [{"ref": "a", "command": "graph", **said}]})
    group = await node.post("groups", {"tasks": [{"command": "member", **said}]})
    unique = {"command": "unique", **said, "unique": {"key": "u", "on": "replace"}}
    first = await node.post("tasks", unique)
    second = await node.post("tasks", unique | {"tags": {"made": "anew"}})
    leader = await node.create("leader")
    await node.claim("leader")
    next_ = {**DONE, "next": [{"command": "follows", **said}]}
    result = await node.post(f"tasks/{leader}/result", next_)
    plan = {"every": "1d", "task": {"command": "planned", **said}}
    put = await node.send("PUT", "admin/schedules/tagged", json.dumps(plan).encode())
    run = await node.post("admin/schedules/tagged/trigger")
    await node.send("DELETE", "admin/schedules/tagged", b"")
    answers = (batch, graph, group, first, second, result, put, run)

    assert all(each.status < 300 for each in answers), [each.body for each in answers]
    found = await node.get("admin/tasks?tag=made:so")
    commands = sorted(task["command"] for task in found.json["tasks"])
    assert ["batch", "batch", "follows", "graph", "member", "planned"] == commands
    assert {"[1]"} == {json.dumps(task["metadata"]) for task in found.json["tasks"]}
    assert [second.json["id"]] == await listed(node, "made:anew")
    assert first.json["id"] == second.json["id"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"tags": {"a:b": "x"}}, "invalid-tags"),
        ({"tags": {"": "x"}}, "invalid-tags"),
        ({"tags": {"a": ""}}, "invalid-tags"),
        ({"tags": {"a" * 65: "x"}}, "invalid-tags"),
        ({"tags": {"a": "ö" * 65}}, "invalid-tags"),
        ({"tags": {f"n{number}": "x" for number in range(11)}}, "invalid-tags"),
        ({"tags": {"a": 1}}, "invalid-body"),
        ({"metadata": "x" * 4095}, "invalid-metadata"),
    ],
)
async def test_what_is_no_tag_is_refused(node: Client, said: dict[str, Any], code: str) -> None:
    """With a bound in its words; nothing is created."""
    answer = await node.post("tasks", {"command": "refused-tags", "payload": 1, **said})

    assert (400, code) == (answer.status, answer.json["code"])
    assert 0 == (await node.depth("refused-tags"))["ready"]


async def test_changes_and_lists_that_cannot_be_are_refused(node: Client) -> None:
    """A tag too many, a name twice, a tag without a value, a time without a tag or a command."""
    task = await node.create("full", tags={f"n{number}": "x" for number in range(10)})
    path = f"tasks/{task}/tags"
    one_more = await node.send("PATCH", path, b'{"set":{"more":"x"}}')
    swapped = await node.send("PATCH", path, b'{"set":{"more":"x"},"remove":["n0"]}')
    twice = await node.send("PATCH", path, b'{"set":{"n1":"x"},"remove":["n1"]}')
    colon = await node.send("PATCH", path, b'{"remove":["n1:x"]}')
    missing = await node.send("PATCH", "tasks/none/tags", b"{}")
    lists = [
        await node.get(f"admin/tasks?{query}")
        for query in (
            "tag=user",
            "tag=:x",
            "createdAfter=2026-01-01T00:00:00Z",
            "tag=a:b&createdAfter=x",
        )
    ]

    assert (409, "too-many-tags") == (one_more.status, one_more.json["code"])
    assert 200 == swapped.status
    assert (400, "invalid-tags") == (twice.status, twice.json["code"])
    bounds = "remove must have at most 10 names, each 1 to 64 bytes without a colon"
    assert (400, bounds) == (colon.status, colon.json["detail"])
    assert 404 == missing.status
    codes = ["invalid-tag", "invalid-tag", "tag-or-command-required", "invalid-query"]
    assert codes == [each.json["code"] for each in lists]


async def test_a_list_of_a_command_may_have_bounds_of_time(node: Client) -> None:
    """Without a tag the queue's own order stays."""
    made = [await node.create("timed-list") for _ in range(3)]
    times = [(await node.get(f"tasks/{task}")).json["createdAt"] for task in made]
    found = await listed(node, command="timed-list", createdAfter=times[1])

    assert [task for task, at in zip(made, times, strict=True) if at >= times[1]] == found


async def test_every_node_lists_what_any_node_made(tmp_path: Path) -> None:
    """Tasks of all shards in one order, and changes."""
    async with three_nodes(tmp_path) as nodes:
        clients = list(nodes.clients.values())
        around = cycle(clients)
        made = [await next(around).create("spread", tags={"run": "9"}) for _ in range(12)]
        shown = [(await clients[0].get(f"tasks/{task}")).json for task in made]
        lists = [await listed(each, "run:9", limit=5) for each in clients]
        await clients[1].send("PATCH", f"tasks/{made[0]}/tags", b'{"remove":["run"]}')
        after = [await listed(each, "run:9") for each in clients]

    order = sorted(shown, key=lambda task: (task["createdAt"], [-ord(c) for c in task["id"]]))
    assert 1 < len({task["shard"] for task in shown})
    assert [[task["id"] for task in reversed(order)]] * 3 == lists
    assert [sorted(made[1:])] * 3 == [sorted(each) for each in after]
