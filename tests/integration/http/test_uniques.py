"""Unique keys: one task holds each, whichever node is asked, and the last payload wins."""

from __future__ import annotations

import asyncio
import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from codeq_cluster.core.sharding import shard_of_lane, shard_of_queue
from tests.integration.http.client import Answer, Client
from tests.integration.http.nodes import three_nodes

pytestmark = pytest.mark.asyncio(loop_scope="session")

DONE = {"status": "COMPLETED", "result": {}}


async def make(node: Client, command: str, payload: object, of: str = "u", **said: Any) -> Answer:
    """Create a task with a unique key; what is no term of it is a field of the task."""
    terms = {name: said.pop(name) for name in ("on", "until") if name in said}
    terms |= {name: said.pop(name) for name in [*said] if name.endswith("Seconds")}
    body = {"command": command, "payload": payload, "unique": {"key": of, **terms}, **said}
    return await node.post("tasks", body)


async def end(node: Client, task: object) -> None:
    assert isinstance(task, dict)
    answer = await node.post(f"tasks/{task['id']}/result", DONE)
    assert 200 == answer.status, answer.body


def told(answer: Answer) -> tuple[int, object, object]:
    return answer.status, answer.json["unique"], answer.json["id"]


async def test_a_create_returns_the_task_that_holds_its_key(node: Client) -> None:
    """Another queue, unique key or `key`, and a later time have tasks of their own."""
    first = await make(node, "once", 1)
    again = await make(node, "once", 2)
    key = await make(node, "once", 3, of="v")
    lane = await make(node, "once", 4, key="ann")
    queue = await make(node, "twice", 5)
    name = first.json["id"]

    assert (202, "created", name) == told(first)
    assert (202, "returned", name) == told(again)
    assert ("1", "u") == (again.json["payload"], again.json["uniqueKey"])
    assert ["created"] * 3 == [each.json["unique"] for each in (key, lane, queue)]

    while (task := await node.post("tasks/claim", {"commands": ["once"]})).status == 200:
        await end(node, task.json)
    later = await make(node, "once", 6)
    assert (202, "created") == told(later)[:2]
    assert name != later.json["id"]


async def test_a_held_key_is_refused_with_the_task_that_holds_it(node: Client) -> None:
    """The answer names its id, its state and its age."""
    first = await make(node, "strict-one", 1)
    refused = await make(node, "strict-one", 2, on="reject")

    assert (409, "unique-conflict") == (refused.status, refused.json["code"])
    assert first.json["id"] == refused.json["taskId"]
    assert f"{first.json['id']} (READY, created " in str(refused.json["error"])


async def test_the_last_payload_waits_while_a_worker_has_the_first(node: Client) -> None:
    """At most one runs, one waits, and those in between leave nothing."""
    first = await make(node, "sync", {"n": 1}, on="keepLast")
    running = await node.claim("sync")
    second = await make(node, "sync", {"n": 2}, on="keepLast")
    third = await make(node, "sync", {"n": 3}, on="keepLast", priority=7)
    explained = await node.get(f"tasks/{second.json['id']}/explain")
    none = await node.post("tasks/claim", {"commands": ["sync"]})
    depth = await node.depth("sync")

    assert first.json["id"] == running["id"]
    assert (202, "queued") == told(second)[:2]
    assert (202, "replaced", second.json["id"]) == told(third)
    assert (1, '{"n": 3}') == (third.json["revision"], third.json["payload"])
    assert "HELD_SET" == third.json["lastKnownLocation"]
    assert "key-busy" == explained.json["reason"]
    assert str(running["id"]) in str(explained.json["message"])
    assert 204 == none.status
    assert 1 == depth["held"]

    await end(node, running)
    following = await node.claim("sync")
    assert (second.json["id"], '{"n": 3}', 7) == tuple(
        following[name] for name in ("id", "payload", "priority")
    )
    await end(node, following)


async def test_a_debounced_task_moves_with_each_create(node: Client) -> None:
    """Its start is told, and a flood in one batch leaves one task."""
    first = await make(node, "index", 1, on="replace", debounceSeconds=600, maxWaitSeconds=900)
    one = {"command": "index", "unique": {"key": "u", "on": "replace", "debounceSeconds": 600}}
    batch = {"tasks": [one | {"payload": number} for number in range(2, 6)]}
    flood = await node.post("tasks/batch", batch)
    results = flood.json["results"]
    assert isinstance(results, list)
    last = results[-1]["task"]

    assert "DELAYED_ZSET" == first.json["lastKnownLocation"]
    assert ["replaced"] * 4 == [each["task"]["unique"] for each in results]
    assert {first.json["id"]} == {each["task"]["id"] for each in results}
    assert (4, "5") == (last["revision"], last["payload"])
    assert first.json["readyAt"] <= last["readyAt"]
    assert 1 == (await node.depth("index"))["delayed"]


async def test_a_repeated_create_replaces_nothing_twice(node: Client) -> None:
    """Its idempotency key leads to the task, also when others have replaced it since."""
    first = await make(node, "merge", 1, on="replace", idempotencyKey="a")
    second = await make(node, "merge", 2, on="replace", idempotencyKey="b")
    third = await make(node, "merge", 3, on="replace", idempotencyKey="c")
    again = await make(node, "merge", 2, on="replace", idempotencyKey="b")
    other = await make(node, "merge", 9, on="replace", idempotencyKey="b")

    assert ["created", "replaced", "replaced", "replaced"] == [
        each.json["unique"] for each in (first, second, third, again)
    ]
    assert "true" == again.headers["x-codeq-idempotent-replay"]
    assert ("3", 2) == (again.json["payload"], again.json["revision"])
    assert 409 == other.status
    assert "idempotency-conflict" == other.json["code"]


async def test_a_dead_letter_lets_go_and_its_requeue_asks_for_the_key(node: Client) -> None:
    """One requeue is refused with the holder; of several, that one stays dead."""
    dead = await make(node, "frail", 1, maxAttempts=1)
    await node.claim("frail")
    await node.post(f"tasks/{dead.json['id']}/nack", {"reason": "broken"})
    holder = await make(node, "frail", 2)
    path = "admin/queues/frail/dlq"
    one = await node.post(f"{path}/{dead.json['id']}/requeue")
    patched = await node.post(f"{path}/requeue", {"ids": [dead.json["id"]], "payload": 3})
    both = await node.post(f"{path}/requeue")
    await end(node, await node.claim("frail"))
    then = await node.post(f"{path}/{dead.json['id']}/requeue")

    assert "created" == holder.json["unique"]
    for refused in (one, patched):
        assert (409, "unique-conflict") == (refused.status, refused.json["code"])
        assert holder.json["id"] == refused.json["taskId"]
    assert (200, 1, 0) == (both.status, both.json["matched"], both.json["requeued"])
    assert (200, 1) == (then.status, then.json["requeued"])
    assert ("returned", dead.json["id"]) == told(await make(node, "frail", 4))[1:]


async def test_a_dead_letter_from_before_a_limit_is_not_requeued(node: Client) -> None:
    """Its unique key is decided on the queue's shard now, and another task may hold it there."""
    shards = (await node.get("raft/status")).json["numGroups"]
    home = shard_of_queue("", "narrow", shards)
    key = next(
        each for each in map(str, range(1000)) if shard_of_lane("", "narrow", each, shards) != home
    )
    dead = await make(node, "narrow", 1, key, maxAttempts=1)
    await node.claim("narrow")
    await node.post(f"tasks/{dead.json['id']}/nack", {"reason": "broken"})
    put = await node.send("PUT", "admin/topics/narrow", b'{"flow":{"maxRunning":1}}')
    holder = await make(node, "narrow", 2, key)
    path = "admin/queues/narrow/dlq"
    one = await node.post(f"{path}/{dead.json['id']}/requeue")
    all_ = await node.post(f"{path}/requeue")

    assert put.status in (200, 201)
    assert (202, "created") == told(holder)[:2]
    assert (409, "keys-elsewhere") == (one.status, one.json["code"])
    assert (200, 1, 0) == (all_.status, all_.json["matched"], all_.json["requeued"])
    await end(node, await node.claim("narrow"))


@pytest.mark.parametrize(
    "terms",
    [
        {"key": ""},
        {"key": "k" * 257},
        {"on": "return"},
        {"key": "k", "on": "sometimes"},
        {"key": "k", "until": "throttle"},
        {"key": "k", "until": "never"},
        {"key": "k", "debounceSeconds": 0},
        {"key": "k", "throttleSeconds": 604_801},
        {"key": "k", "maxWaitSeconds": 5},
        {"key": "k", "debounceSeconds": 5, "maxWaitSeconds": 4},
        {"key": "k", "debounceSeconds": 5, "on": "reject"},
        {"key": "k", "often": 1},
        "k",
    ],
)
async def test_terms_that_contradict_each_other_are_refused(node: Client, terms: object) -> None:
    """The detail says what is wrong, and no task is made."""
    refused = await node.post("tasks", {"command": "bad-terms", "payload": 1, "unique": terms})
    depth = await node.depth("bad-terms")

    assert 400 == refused.status, refused.body
    assert "invalid 'unique'" == refused.json["error"]
    assert refused.json["detail"]
    if isinstance(terms, dict) and "until" in terms:
        assert "until must be one of ended, claimed" == refused.json["detail"]
    assert 0 == depth["ready"]


async def test_other_ways_to_create_refuse_a_unique_key(node: Client) -> None:
    """A group, a graph, a schedule, a result's next and a start of its own beside a debounce."""
    task = {"command": "lonely", "payload": 1, "unique": {"key": "k"}}
    parent = await node.create("lonely-parent")
    await node.claim("lonely-parent")
    late = {"key": "k", "debounceSeconds": 5}
    answers = [
        await node.post("tasks", task | {"group": "none"}),
        await node.post("tasks", task | {"dependsOn": [parent]}),
        await node.post("tasks", task | {"unique": late, "delaySeconds": 5}),
        await node.post("tasks/graph", {"tasks": [task | {"ref": "a"}]}),
        await node.post("groups", {"id": "g", "then": task}),
        await node.post(f"tasks/{parent}/result", DONE | {"next": [task]}),
        await node.send(
            "PUT", "admin/schedules/s", b'{"every":"1m","task":%b}' % json.dumps(task).encode()
        ),
    ]

    assert [400] * len(answers) == [each.status for each in answers]
    assert all("unique" in each.body.decode() for each in answers)


async def test_any_node_finds_the_holder_and_only_one_is_made(tmp_path: Path) -> None:
    """Thirty creates at once on three nodes make one task, whose payload one of them said."""
    async with three_nodes(tmp_path) as nodes:
        clients = cycle(nodes.clients.values())
        answers = await asyncio.gather(
            *(make(next(clients), "storm", number, on="replace") for number in range(30))
        )
        last = await make(nodes.clients["n2"], "storm", 99, on="replace")
        task = await nodes.clients["n3"].claim("storm")
        scraped = [
            (await client.get("/metrics")).body.decode() for client in nodes.clients.values()
        ]

        assert ["created", *["replaced"] * 29] == sorted(str(told(each)[1]) for each in answers)
        assert {last.json["id"]} == {each.json["id"] for each in answers}
        assert (last.json["id"], "99") == (task["id"], task["payload"])
        counted = [
            float(line.rsplit(" ", 1)[1])
            for text in scraped
            for line in text.splitlines()
            if line.startswith('codeq_unique_creates_total{outcome="replaced"}')
        ]
        assert 30 == sum(counted)
