"""Events of tasks on a real node: streams, pages, cursors, filters, bounds and tenants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codeq_cluster.client import Client as Sdk
from codeq_cluster.client import EventKind, Refused, TaskEvent
from codeq_cluster.settings import LimitSettings, RaftSettings
from tests.integration.http.client import (
    BASE,
    DEADLINE_S,
    Answer,
    Client,
    eventually,
    running_node,
    single,
)
from tests.integration.http.conftest import Running
from tests.integration.http.nodes import three_nodes

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def sdk(node: Client, token: str = "acme") -> AsyncIterator[Sdk]:
    """Yield an SDK client of a node."""
    async with Sdk([f"http://127.0.0.1:{node.port}"], token=token, discover=False) as client:
        yield client


async def until(
    client: Sdk, done: Callable[[list[TaskEvent]], bool], **asked: Any
) -> list[TaskEvent]:
    """Return the events of a stream up to the one with which they are done."""
    found: list[TaskEvent] = []
    async with asyncio.timeout(DEADLINE_S), aclosing(client.events(**asked)) as stream:
        async for event in stream:
            found.append(event)
            if done(found):
                break
    return found


def ended(found: list[TaskEvent]) -> bool:
    """Return whether the last event is an end."""
    return found[-1].is_end


async def cursor(node: Client, **headers: str) -> str:
    """Return the cursor of this moment."""
    answer = await node.get("events", **headers)
    assert 200 == answer.status, answer.body
    return str(answer.json["cursor"])


async def page(node: Client, query: str, **headers: str) -> Answer:
    """Return the next events."""
    return await node.get(f"events?{query}", **headers)


def rows(answer: Answer) -> list[dict[str, Any]]:
    """Return the events of a page."""
    assert 200 == answer.status, answer.body
    found: list[dict[str, Any]] = json.loads(answer.body)["events"]
    return found


async def finish(node: Client, command: str, **fields: object) -> str:
    """Create, claim, extend and complete a task."""
    task_id = await node.create(command, **fields)
    await node.claim(command)
    beat = {"extendSeconds": 90, "progress": {"done": 1, "total": 2}}
    assert 200 == (await node.post(f"tasks/{task_id}/heartbeat", beat)).status
    result = {"status": "COMPLETED", "result": {"secret": 1}}
    assert 200 == (await node.post(f"tasks/{task_id}/result", result)).status
    return task_id


async def test_a_stream_tells_the_life_of_a_task(node: Client) -> None:
    """Each change is an event, in order, without payload and result."""
    async with sdk(node) as client:
        after = await client.events_cursor()
        task_id = await finish(node, "told-life", tags={"env": "prod"})
        found = await until(client, ended, command="told-life", after=after)

    assert ["ready", "claimed", "updated", "completed"] == [each.kind for each in found]
    assert {task_id} == {each.task_id for each in found}
    assert sorted(each.index for each in found) == [each.index for each in found]
    assert (1, 2) == (found[2].progress.done, found[2].progress.total)  # type: ignore[union-attr]
    assert {"env": "prod"} == found[3].tags
    assert (1, 1, "COMPLETED") == (found[3].attempts, found[3].endings, found[3].status)


async def test_every_way_to_end_is_told(node: Client) -> None:
    """Failed, dead, cancelled and deleted tasks have kinds of their own."""
    after = await cursor(node)
    failed = await node.create("told-ends")
    await node.claim("told-ends")
    await node.post(f"tasks/{failed}/result", {"status": "FAILED", "error": "no"})
    dead = await node.create("told-ends", maxAttempts=1)
    await node.claim("told-ends")
    await node.post(f"tasks/{dead}/nack", {"reason": "never"})
    cancelled = await node.create("told-ends")
    await node.post(f"tasks/{cancelled}/cancel")
    deleted = await node.send("DELETE", f"admin/queues/told-ends/dlq/{dead}", b"")
    assert 200 == deleted.status, deleted.body
    kinds = "failed,dead,cancelled,deleted"
    asked = f"command=told-ends&kinds={kinds}&waitSeconds=10&after="
    found: list[dict[str, Any]] = []
    while len(found) < 4:
        answer = await page(node, asked + after)
        found += rows(answer)
        after = str(answer.json["cursor"])

    assert {
        (failed, "failed", "no"),
        (dead, "dead", "never"),
        (cancelled, "cancelled", "CANCELLED"),
        (dead, "deleted", ""),
    } == {(each["taskId"], each["kind"], each.get("error", "")) for each in found}


async def test_a_filter_selects_by_queue_tag_task_and_group(node: Client) -> None:
    """Each part of the query narrows what is told."""
    after = await cursor(node)
    plain = await node.create("told-Filter")
    tagged = await node.create("told-filter", tags={"user": "42", "env": "prod"})
    made = await node.post("groups", {"then": {"command": "told-after", "payload": 1}})
    group = str(made.json["id"])
    added = await node.post(
        f"groups/{group}/tasks", {"tasks": [{"command": "told-filter", "payload": 1}]}
    )
    assert 202 == added.status, added.body

    async def told(query: str) -> list[str]:
        found = rows(await page(node, f"{query}&waitSeconds=5&after={after}"))
        return [str(each["taskId"]) for each in found]

    assert 3 == len(await told("command=TOLD-filter"))
    assert [tagged] == await told("tag=user:42")
    assert [] == rows(await page(node, f"tag=user:42&tag=env:test&after={after}"))
    assert [plain] == await told(f"task={plain}")
    [member] = await told(f"group={group}")
    assert member not in {plain, tagged}


async def test_a_cursor_goes_on_where_it_was(node: Client) -> None:
    """Two readers that go by pages of their own see the same events, each once."""
    after = await cursor(node)
    tasks = [await node.create("told-pages") for _ in range(5)]
    first = rows(await page(node, f"command=told-pages&after={after}"))
    last_id = await node.get("events?command=told-pages", Last_Event_ID=after)
    again = await page(node, f"command=told-pages&after={last_id.json['cursor']}")

    assert sorted(tasks) == sorted(each["taskId"] for each in first)
    assert first == rows(last_id)
    assert [] == rows(again)


async def test_a_wait_ends_with_the_first_event(node: Client) -> None:
    """A page that waits is answered when something happens, and otherwise in time."""
    after = await cursor(node)
    waiting = asyncio.create_task(page(node, f"command=told-wait&waitSeconds=60&after={after}"))
    task_id = await node.create("told-wait")

    assert [task_id] == [each["taskId"] for each in rows(await waiting)]
    assert [] == rows(await page(node, "command=told-wait&waitSeconds=0"))


async def test_a_stream_is_of_server_sent_events(node: Client) -> None:
    """It begins with a cursor; the last event of a batch has the cursor after it."""
    reader, writer = await node.connect()
    path = f"{BASE}/events?command=told-raw"
    writer.write(node.head("GET", path, 0, Accept="text/event-stream"))
    async with asyncio.timeout(DEADLINE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        text = b""
        while b"\n\n" not in text:
            text += await reader.readline()
        task_id = await node.create("told-raw")
        while b"data: " not in text or not text.endswith(b"}\n"):
            text += await reader.readline()
    writer.close()
    lines = [line for line in text.decode().splitlines() if ": " in line]
    fields = [line.partition(": ")[0] for line in lines]
    shown = json.loads(lines[-1].partition(": ")[2])
    last = lines[-2].partition(": ")[2]

    assert b"text/event-stream" in head
    assert ["retry", "id", "id", "data"] == fields
    assert (task_id, "ready") == (shown["taskId"], shown["kind"])
    assert [] == rows(await page(node, f"command=told-raw&after={last}"))


async def test_no_tenant_sees_another(node: Client) -> None:
    """Neither with the other's cursor nor by the id of its task."""
    after = await cursor(node)
    task_id = await node.create("told-tenant")
    theirs = await page(node, f"task={task_id}&after={after}", token="other")
    mine = await page(node, f"task={task_id}&after={after}")

    assert [] == rows(theirs)
    assert [task_id] == [each["taskId"] for each in rows(mine)]


@pytest.mark.parametrize("headers", [{}, {"Accept": "text/event-stream"}], ids=["page", "stream"])
async def test_a_task_that_is_not_there_is_not_waited_for(
    node: Client, headers: dict[str, str]
) -> None:
    """Another tenant's is not there either."""
    task_id = await node.create("told-absent")
    theirs = await page(node, f"task={task_id}&waitSeconds=60", token="other", **headers)
    unknown = await page(node, f"task={task_id[:-8]}00000000&waitSeconds=60", **headers)

    assert [(404, "not-found")] * 2 == [
        (each.status, each.json["code"]) for each in (theirs, unknown)
    ]


async def test_a_token_that_names_commands_sees_only_their_tasks(node: Client) -> None:
    """Another command is refused; without one, the tasks of the token's own are told."""
    after = await cursor(node)
    await node.create("told-secret")
    allowed = await node.create("ALLOWED")
    found = rows(await page(node, f"after={after}", token="narrow"))
    refused = await page(node, "command=told-secret", token="narrow")

    assert [allowed] == [each["taskId"] for each in found]
    assert (403, "event-type-not-allowed") == (refused.status, refused.json["code"])


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("command=no%20command", "invalid-command"),
        ("tag=none", "invalid-tag"),
        ("task=no%20id", "invalid-task"),
        ("group=no%20group", "invalid-group"),
        ("kinds=ready,unready", "invalid-kinds"),
        ("waitSeconds=soon", "invalid-query"),
        ("after=nothing", "invalid-cursor"),
        ("after=%C3%A4", "invalid-cursor"),
    ],
)
async def test_what_cannot_be_asked_is_refused(node: Client, query: str, code: str) -> None:
    """The refusal names what is wrong."""
    answer = await page(node, query)

    assert (400, code) == (answer.status, answer.json["code"])


async def test_a_cursor_of_another_cluster_is_refused(node: Client, node_with: Running) -> None:
    """Its log is another one, however its positions compare."""
    async with node_with() as elsewhere:
        for _ in range(3):
            await elsewhere.create("told-else")
        foreign = await cursor(elsewhere)
    for _ in range(6):
        await node.create("told-else")
    behind = await page(node, f"after={foreign}")
    async with sdk(node) as client:
        with pytest.raises(Refused) as refused:
            await until(client, ended, after=foreign)

    assert (410, "other-history") == (behind.status, behind.json["code"])
    assert "begin without a cursor" in str(behind.error)
    assert (410, "other-history") == (refused.value.status, refused.value.code)


async def test_a_cursor_from_the_future_is_of_another_cluster(
    node: Client, node_with: Running
) -> None:
    """A log that ends before it never had it."""
    for _ in range(9):
        await node.create("told-long")
    ahead = await cursor(node)
    async with node_with() as elsewhere:
        answer = await page(elsewhere, f"after={ahead}")

    assert (410, "other-history") == (answer.status, answer.json["code"])


async def test_no_tenant_takes_all_streams(node_with: Running) -> None:
    """Beyond its share a watcher is refused; another tenant still gets in."""
    async with node_with(event_streams_max=4) as node:
        waiting = asyncio.create_task(page(node, "waitSeconds=60"))
        refused = await eventually(
            lambda: page(node, "waitSeconds=0"), lambda answer: answer.status == 503
        )
        other = await page(node, "waitSeconds=0", token="other")
        await node.create("told-share")

        assert ("overloaded", "the room for watchers of events is full") == (
            refused.json["code"],
            refused.json["detail"],
        )
        assert 200 == other.status
        assert 1 == len(rows(await waiting))


async def test_a_node_that_stops_ends_its_streams_in_order(tmp_path: Path) -> None:
    """What was told stays told, and no stream delays the stop."""
    found: list[TaskEvent] = []
    async with running_node(single(tmp_path / "node", LimitSettings())) as (_, node):
        client = Sdk([f"http://127.0.0.1:{node.port}"], token="acme", discover=False)
        after = await client.events_cursor()

        async def watch() -> None:
            async with aclosing(client.events(after=after, within_s=0)) as stream:
                async for event in stream:
                    found.append(event)  # noqa: PERF401 - each as it comes

        watching = asyncio.create_task(watch())
        task_id = await node.create("told-stop")
        await eventually(lambda: asyncio.sleep(0, list(found)))
    with pytest.raises(Exception, match="no node takes a connection"):
        async with asyncio.timeout(DEADLINE_S):
            await watching
    await client.close()

    assert [(task_id, EventKind.READY)] == [(each.task_id, each.kind) for each in found]


async def test_a_watcher_costs_nothing_once_it_has_gone(tmp_path: Path) -> None:
    """Entries are decoded while somebody watches, and at no other time."""
    async with running_node(single(tmp_path / "node", LimitSettings())) as (node, client):
        engines = node.parts.replicas.engines
        before = [engine.tap for engine in engines]
        waiting = asyncio.create_task(page(client, "command=told-gone&waitSeconds=60"))
        await eventually(lambda: asyncio.sleep(0, [engine.tap for engine in engines]), all)
        await client.create("told-gone")
        await waiting
        after = [engine.tap for engine in engines]

    assert [None, None] == before == after


async def test_a_watcher_goes_on_at_any_node_even_one_whose_log_is_shorter(tmp_path: Path) -> None:
    """The cursor of one node is good at the others, which ask each other for older entries."""
    async with three_nodes(tmp_path, raft=RaftSettings(log_entries_max=1000)) as nodes:
        first, last = nodes.clients["n1"], nodes.clients["n3"]
        after = await cursor(first)
        task_id = await first.create("told-moved")
        for n in range(260):
            await first.send("PATCH", f"tasks/{task_id}/tags", b'{"set":{"n":"%d"}}' % n)
        shown = (await first.get(f"tasks/{task_id}")).json
        group = nodes.running["n3"].parts.replicas.groups[int(str(shown["shard"]))]
        await eventually(
            lambda: asyncio.sleep(0, group.status().applied_index), lambda at: at > 255
        )
        group._replica.journal.trim(group.status().applied_index)
        oldest = group.oldest_index
        found: list[dict[str, Any]] = []
        while len(found) < 261:
            answer = await page(last, f"task={task_id}&after={after}")
            found += rows(answer)
            after = str(answer.json["cursor"])

    assert oldest > found[0]["index"]
    assert ["ready", *["updated"] * 260] == [each["kind"] for each in found]
    assert {"n": "259"} == found[-1]["tags"]
