"""Follow-ups: a result and the tasks it makes are one, on this shard and on another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codeq_cluster.api.routes.follow_ups import BYTES_MAX
from codeq_cluster.core.bounds import EFFECTS_BYTES_MAX
from codeq_cluster.core.task import FOLLOW_UPS_MAX
from codeq_cluster.settings import LimitSettings, RateLimitSettings, TenantRateLimit
from tests.integration.http.client import Answer, Client, eventually, serving, single

pytestmark = pytest.mark.asyncio(loop_scope="session")

DONE = {"status": "COMPLETED", "result": {}}
KEYS = 8  # Of two shards, each has one of them; all but certainly.


def following(command: str, **fields: object) -> dict[str, object]:
    """Return a task of `next`."""
    return {"command": command, "payload": {"of": command}, **fields}


async def leased(node: Client, command: str, **fields: object) -> dict[str, Any]:
    """Create a task and claim it."""
    await node.create(command, **fields)
    return await node.claim(command)


async def finish(node: Client, task: dict[str, Any], **fields: object) -> Answer:
    """End a task."""
    return await node.post(f"tasks/{task['id']}/result", {**DONE, **fields})


async def test_a_result_makes_the_tasks_that_follow_it(node: Client) -> None:
    """They are on its shard, name their origin, and take over its trace."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = {"command": "first", "payload": {}}
    await node.post("tasks", body, traceparent=trace)
    first = await node.claim("first")
    answer = await finish(node, first, next=[following("second"), following("third", priority=7)])
    second, third = await node.claim("second"), await node.claim("third")
    last = await finish(node, second, next=[following("last")])
    of_last = await node.claim("last")
    for task in (third, of_last):
        await finish(node, task)

    assert 200 == answer.status, answer.body
    assert [{"id": second["id"]}, {"id": third["id"]}] == answer.json["next"]
    assert [{"id": of_last["id"]}] == last.json["next"]
    assert {first["shard"]} == {task["shard"] for task in (second, third, of_last)}
    assert 7 == third["priority"]
    assert {trace} == {task["traceParent"] for task in (second, third, of_last)}
    assert (first["id"], first["id"]) == (second["parentId"], second["rootId"])
    assert (second["id"], first["id"]) == (of_last["parentId"], of_last["rootId"])
    assert "parentId" not in first


async def test_a_failed_task_may_be_followed_too(node: Client) -> None:
    """The worker says what is to be undone."""
    task = await leased(node, "charged")
    failed = {"status": "FAILED", "error": "no stock", "next": [following("refunded")]}
    answer = await node.post(f"tasks/{task['id']}/result", failed)
    refund = await node.claim("refunded")
    await finish(node, refund)

    assert 200 == answer.status
    assert task["id"] == refund["parentId"]


async def test_a_repeated_result_makes_nothing_twice(node: Client) -> None:
    """It gets the stored record; another `next` is another result."""
    task = await leased(node, "once")
    first = await finish(node, task, next=[following("followed")])
    again = await finish(node, task, next=[following("followed")])
    other = await finish(node, task, next=[following("another")])
    without = await finish(node, task)
    stored = await node.get(f"tasks/{task['id']}/result")
    follow_up = await node.claim("followed")
    await finish(node, follow_up)

    assert first.json == again.json
    assert (409, 409) == (other.status, without.status)
    assert stored.json["result"] == first.json
    assert 0 == (await node.depth("followed"))["ready"]
    assert 0 == (await node.depth("another"))["ready"]


async def test_follow_ups_with_keys_reach_the_shards_of_their_keys(node: Client) -> None:
    """Each key makes one task, also when two results name it; the answer names it by the key."""
    tasks = [await leased(node, "fan") for _ in range(2)]
    wanted = [following("keyed", idempotencyKey=f"fan-{number}") for number in range(KEYS)]
    answers = [await finish(node, task, next=wanted) for task in tasks]
    await eventually(lambda: node.depth("keyed"), lambda depth: depth["ready"] == KEYS)
    made = [await node.claim("keyed") for _ in range(KEYS)]
    replayed = await node.post("tasks", following("keyed", idempotencyKey="fan-0"))
    waiting = (await node.depth("keyed"))["ready"]
    for task in made:
        await finish(node, task)

    named = [{"idempotencyKey": f"fan-{number}"} for number in range(KEYS)]
    assert [named, named] == [answer.json["next"] for answer in answers]
    assert {0, 1} == {task["shard"] for task in made}
    assert {tasks[0]["id"], tasks[1]["id"]} >= {task["parentId"] for task in made}
    assert "true" == replayed.headers["x-codeq-idempotent-replay"]
    assert 0 == waiting


async def test_a_key_that_is_taken_names_the_task_that_has_it(node: Client) -> None:
    """The work of the result is done, so a conflict refuses nothing."""
    task_id = await node.create("holder", idempotencyKey="held", payload={"other": True})
    task = await leased(node, "late")
    answer = await finish(node, task, next=[following("holder", idempotencyKey="held")])
    holder = await node.claim("holder")
    await finish(node, holder)

    assert 200 == answer.status
    assert task_id == holder["id"]
    assert "parentId" not in holder


async def test_a_refused_follow_up_refuses_the_result(node: Client) -> None:
    """Nothing is done: the task is still held, and its worker can send the result again."""
    await node.send("PUT", "admin/topics/tiered", b'{"priorityTiers": [3]}')
    task = await leased(node, "strict")
    many = [following("c")] * (FOLLOW_UPS_MAX + 1)
    large = [following("c", payload="x" * (BYTES_MAX // 4))] * 4
    twice = [following("c", idempotencyKey="k")] * 2
    refused = {
        "payload": await finish(node, task, next=[{"command": "c"}]),
        "priority": await finish(node, task, next=[following("c"), following("tiered")]),
        "many": await finish(node, task, next=many),
        "large": await finish(node, task, next=large),
        "twice": await finish(node, task, next=twice),
    }
    heartbeat = await node.post(f"tasks/{task['id']}/heartbeat", {})
    done = await finish(node, task, next=[following("tiered", priority=3)])
    made = await node.claim("tiered")
    await finish(node, made)
    await node.send("DELETE", "admin/topics/tiered", b"")

    assert {
        "payload": 400,
        "priority": 400,
        "many": 400,
        "large": 413,
        "twice": 400,
    } == {name: answer.status for name, answer in refused.items()}
    assert "priority" in str(refused["priority"].error)
    assert (200, 200) == (heartbeat.status, done.status)
    assert 0 == (await node.depth("c"))["ready"]


async def test_the_largest_result_and_what_follows_it_fit_one_entry(tmp_path: Path) -> None:
    """A large result leaves less room, and the refusal says how much."""
    settings = single(tmp_path, LimitSettings())
    settings = replace(settings, raft=replace(settings.raft, entry_bytes_max=2**21))
    size = 600_000
    room = 2**21 - 2 * EFFECTS_BYTES_MAX - 2 * size
    bare = len(json.dumps(following("c", payload="")))
    share = (2**20 - 2048) // FOLLOW_UPS_MAX - bare
    async with serving(settings) as node:
        hook = "http://127.0.0.1:9/done"
        tasks = [await leased(node, "large", webhook=hook) for _ in range(2)]
        result = "x" * (size - 2)
        too_much = following("c", payload="x" * (room - bare + 1))
        refused = await finish(node, tasks[0], result=result, next=[too_much])
        fitting = following("c", payload="x" * (room - bare))
        largest = await finish(node, tasks[0], result=result, next=[fitting])
        small = following("c", payload="x" * share)
        many = await finish(node, tasks[1], next=[small] * FOLLOW_UPS_MAX)
        ready = (await node.depth("c"))["ready"]

    said = f"'next' exceeds {room} bytes beside this result"
    assert (413, said) == (refused.status, refused.error)
    assert (200, 200) == (largest.status, many.status), (largest.body[:200], many.body[:200])
    assert FOLLOW_UPS_MAX + 1 == ready


async def test_a_token_without_the_scope_makes_no_follow_ups(node: Client) -> None:
    """A worker's right to end tasks is no right to create any, nor any of other commands."""
    task = await leased(node, "allowed")
    scopeless = Client(node.port, "ender")
    abroad = Client(node.port, "narrow-ender")
    lacking = await finish(scopeless, task, next=[following("allowed")])
    outside = await finish(abroad, task, next=[following("elsewhere")])
    await finish(node, task)

    assert (403, "missing scope codeq:enqueue") == (lacking.status, lacking.error)
    assert (403, "event type not allowed") == (outside.status, outside.error)


async def test_results_of_a_batch_have_their_own_follow_ups(node: Client) -> None:
    """One refused item does not affect the others."""
    tasks = [await leased(node, "batched") for _ in range(3)]
    sent = [[following("after")], [{"command": "after"}], [following("after")] * 2]
    answer = await node.post(
        "tasks/batch/results",
        {
            "results": [
                {**DONE, "taskId": task["id"], "next": each}
                for task, each in zip(tasks, sent, strict=True)
            ]
        },
    )
    ready = (await node.depth("after"))["ready"]
    made = await asyncio.gather(*(node.claim("after") for _ in range(3)))
    for task in (tasks[1], *made):
        await finish(node, task)
    results = answer.json["results"]

    assert isinstance(results, list)
    assert [1, None, 2] == [
        len(each["result"]["next"]) if "result" in each else None for each in results
    ]
    assert 3 == ready


async def test_a_batch_makes_no_more_tasks_than_a_batch_of_creates(node: Client) -> None:
    """A hundred results with a hundred follow-ups each would stop a leader for seconds."""
    tasks = [await leased(node, "wide") for _ in range(2)]
    half = [following("c")] * (FOLLOW_UPS_MAX // 2 + 1)
    results = [{**DONE, "taskId": task["id"], "next": half} for task in tasks]
    refused = await node.post("tasks/batch/results", {"results": results})
    for task in tasks:
        await finish(node, task)

    assert (400, "batch-too-large") == (refused.status, refused.json["code"])
    assert 0 == (await node.depth("c"))["ready"]


async def test_follow_ups_count_against_the_rate_of_creates(tmp_path: Path) -> None:
    """A refused result is not done, and may be sent again when there is room."""
    few = TenantRateLimit(tenant="acme", scope="producer", requests_per_minute=1, burst_size=4)
    limits = RateLimitSettings(tenants=(few,))
    settings = replace(single(tmp_path, LimitSettings()), rate_limit=limits)
    async with serving(settings) as node:
        first, second = [await leased(node, "paced") for _ in range(2)]
        allowed = await finish(node, first, next=[following("c")])
        refused = await finish(node, second, next=[following("c")] * 2)
        never = await finish(node, second, next=[following("c")] * 5)
        without = await finish(node, second)

    assert (200, 429, 400, 200) == (allowed.status, refused.status, never.status, without.status)
    assert "not-applied" == refused.headers["x-outcome"]


async def test_follow_ups_begin_no_more_queues_than_creates(
    node_with: Callable[..., AbstractAsyncContextManager[Client]],
) -> None:
    """The refusal names the bound, and nothing of the result is done."""
    async with node_with(queues_max=2) as node:
        task = await leased(node, "one")
        refused = await finish(node, task, next=[following("two"), following("three")])
        done = await finish(node, task, next=[following("two")])

    assert (409, "too-many") == (refused.status, refused.json["code"])
    assert "queues with tasks" in str(refused.error)
    assert 200 == done.status
