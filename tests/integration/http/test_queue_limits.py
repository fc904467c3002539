"""Limits of a whole queue: at most so many of its tasks at once, and so many in a time."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime

import pytest

from codeq_cluster.core.sharding import home_shard, shard_of, shard_of_lane, shard_of_queue
from tests.integration.http.client import Answer, Client, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

DONE = {"status": "COMPLETED", "result": {}}
SHARDS = 2


async def put(node: Client, queue: str, **flow: object) -> Answer:
    """Put the limits of a queue in force."""
    body = json.dumps({"flow": flow}).encode()
    answer = await node.send("PUT", f"admin/topics/{queue}", body)
    await eventually(
        lambda: node.get(f"admin/topics/{queue}"), lambda found: "settling" not in found.json
    )
    return answer


async def claim(node: Client, queue: str, **fields: object) -> Answer:
    return await node.post("tasks/claim", {"commands": [queue], **fields})


async def end(node: Client, task: dict[str, object], **fields: object) -> None:
    answer = await node.post(f"tasks/{task['id']}/result", {**DONE, **fields})
    assert 200 == answer.status, answer.body


def shards(ids: list[str]) -> set[int]:
    """Return the shards of tasks."""
    return {shard_of(each, SHARDS) for each in ids}


async def ids_of(node: Client, queue: str, count: int) -> list[str]:
    """Return the ids of a queue's tasks, once there are so many."""

    async def found() -> list[str]:
        page = await node.get(f"admin/tasks?command={queue}&limit=100")
        return [each["id"] for each in page.json["tasks"]]

    return await eventually(found, lambda ids: len(ids) == count)


async def test_no_more_run_at_once_than_the_queue_allows(node: Client) -> None:
    """What waits is explained, and goes as soon as another one ends."""
    made = await put(node, "at-once", maxRunning=2)
    created = [await node.create("at-once") for _ in range(4)]
    begun = [await node.claim("at-once") for _ in range(2)]
    none = await claim(node, "at-once")
    waiting = [each for each in created if each not in {task["id"] for task in begun}]
    explained = await node.get(f"tasks/{waiting[0]}/explain")
    following = asyncio.ensure_future(claim(node, "at-once", waitSeconds=20))
    await end(node, begun[0])
    third = await following
    await node.post("admin/queues/at-once/purge")

    assert {"maxRunning": 2} == made.json["policy"]["flow"]
    assert {shard_of_queue("", "at-once", SHARDS)} == shards(created)
    assert 204 == none.status
    assert "consumer-limit" == explained.json["reason"]
    assert third.json["id"] in waiting


async def test_a_larger_limit_lets_waiting_claims_go(node: Client) -> None:
    """Also where the shard of the queue hears of it after that of its topic."""
    far = (f"larger-{n}" for n in range(99))
    queue = next(each for each in far if shard_of_queue("", each, SHARDS) != home_shard("", SHARDS))
    await put(node, queue, maxRunning=1)
    for _ in range(3):
        await node.create(queue)
    begun = await node.claim(queue)
    waiting = asyncio.ensure_future(claim(node, queue, waitSeconds=15))
    await node.depth(queue)  # Its answer proves that the node has read the claim before it.
    await put(node, queue, maxRunning=2)
    second = await waiting
    await put(node, queue)
    third = await node.claim(queue)
    for task in (begun, second.json, third):
        await end(node, task)

    assert 200 == second.status


async def test_claims_wait_for_the_tokens_of_the_queue(node: Client) -> None:
    """A burst goes at once; after it, each task waits for the tokens that it costs."""
    rate = {"count": 2, "perSeconds": 3, "burst": 2}
    made = await put(node, "often", rate=rate)
    created = [await node.create("often") for _ in range(4)]
    first = [await node.claim("often") for _ in range(2)]
    none = await claim(node, "often")
    explained = await node.get(f"tasks/{created[2]}/explain")
    waiting = [claim(node, "often", waitSeconds=20) for _ in range(2)]
    rest = [each.json for each in await asyncio.gather(*waiting)]
    dear = await node.post("tasks", {"command": "often", "payload": 1, "cost": 3})

    assert {"rate": rate} == made.json["policy"]["flow"]
    assert 204 == none.status
    assert "rate-limited" == explained.json["reason"]
    assert set(created) == {each["id"] for each in (*first, *rest)}
    assert (422, "invalid-cost") == (dear.status, dear.json["code"])
    for task in (*first, *rest):
        await end(node, task)
    instants = []
    for task_id in created:
        [attempt] = (await node.get(f"tasks/{task_id}")).json["history"]
        instants.append(datetime.fromisoformat(attempt["startedAt"]).timestamp())
    instants.sort()
    assert 1.49 <= instants[2] - instants[0]
    assert 2.99 <= instants[3] - instants[0]


async def test_a_worker_holds_the_queue_of_its_task(node: Client) -> None:
    """Its API wants less: nobody gets a task of the queue before, and then it goes first."""
    await put(node, "held", maxRunning=9)
    first, second = [await node.create("held", maxAttempts=1) for _ in range(2)]
    task = await node.claim("held")
    held = {"hold": "queue", "delaySeconds": 2, "reason": "429", "leaseToken": task["leaseToken"]}
    answer = await node.post(f"tasks/{first}/nack", held)
    explained = [(await node.get(f"tasks/{each}/explain")).json for each in (first, second)]
    shown = await node.depth("held")
    none = await claim(node, "held")
    waiting = [asyncio.ensure_future(claim(node, "held", waitSeconds=20)) for _ in range(2)]
    again = [(await each).json for each in waiting]
    for each in again:
        await end(node, each)
    after = await node.depth("held")

    assert {"status": "requeued", "delaySeconds": 2} == answer.json
    assert {"queue-held"} == {each["reason"] for each in explained}
    assert {shown["heldUntil"]} == {each["until"] for each in explained}
    assert 204 == none.status
    assert {first, second} == {each["id"] for each in again}
    history = (await node.get(f"tasks/{first}")).json["history"]
    assert ("QUEUE_HELD", "429") == tuple(history[0][each] for each in ("outcome", "error"))
    assert history[1]["startedAt"] >= shown["heldUntil"]
    assert "heldUntil" not in after


@pytest.mark.parametrize(("hold", "field"), [("queue", "flow.maxRunning"), ("limit", "flow.limit")])
async def test_a_queue_without_a_limit_is_not_held(node: Client, hold: str, field: str) -> None:
    """The refusal says what to set; the task stays with its worker."""
    await node.create("unheld")
    task = await node.claim("unheld")
    body = {"hold": hold, "leaseToken": task["leaseToken"]}
    refused = await node.post(f"tasks/{task['id']}/nack", body)
    await end(node, task)

    assert (409, "nothing-to-hold") == (refused.status, refused.json["code"])
    assert field in refused.json["error"]


async def test_a_queue_in_use_gets_a_limit(node: Client) -> None:
    """Its tasks of before drain; what their keys made is found; new ones are on one shard."""
    home = shard_of_queue("", "in-use", SHARDS)
    keys = [f"k{number}" for number in range(9)]
    before = {key: await node.create("in-use", idempotencyKey=key) for key in keys}
    unique = {"unique": {"key": "u"}}
    held = await node.post("tasks", {"command": "in-use", "payload": 1, **unique})
    await put(node, "in-use", maxRunning=50)
    others = [
        each for each in (*before.values(), held.json["id"]) if shard_of(each, SHARDS) != home
    ]
    draining = (await node.get("admin/topics/in-use")).json.get("draining", [])
    again = {key: await node.create("in-use", idempotencyKey=key) for key in keys}
    returned = await node.post("tasks", {"command": "in-use", "payload": 2, **unique})
    new = [await node.create("in-use", idempotencyKey=f"new{number}") for number in range(9)]
    repeated = [await node.create("in-use", idempotencyKey=f"new{number}") for number in range(9)]
    batch = [{"command": "in-use", "payload": each} for each in range(5)]
    many = await node.post("tasks/batch", {"tasks": batch})
    while (task := await claim(node, "in-use")).status == 200:
        await end(node, task.json)
    after = (await node.get("admin/topics/in-use")).json
    gone = await node.send("DELETE", "admin/topics/in-use?deletionPolicy=Delete", b"")
    late = [await node.create("in-use") for _ in range(5)]
    await node.post("admin/queues/in-use/purge")

    assert others
    assert [1 - home] == draining
    assert before == again
    assert (held.json["id"], "returned") == (returned.json["id"], returned.json["unique"])
    assert new == repeated
    ids = [each["task"]["id"] for each in many.json["results"]]
    assert {home} == shards([*new, *ids, *late])
    assert "draining" not in after
    assert 204 == gone.status


@pytest.mark.parametrize("flow", [{}, {"maxRunning": 9}], ids=["without", "with"])
async def test_a_topic_that_is_made_again_shows_what_drains(
    node: Client, flow: dict[str, object]
) -> None:
    """With a limit and without one, until the last task of before has ended."""
    queue = f"again-{len(flow)}"
    home = shard_of_queue("", queue, SHARDS)
    made: list[str] = []
    while 1 - home not in shards(made):
        made.append(await node.create(queue))
    await put(node, queue, maxRunning=50)
    await node.send("DELETE", f"admin/topics/{queue}?deletionPolicy=Delete", b"")
    again = await put(node, queue, **flow)
    repeated = await put(node, queue, **flow)
    await node.post(f"admin/queues/{queue}/purge")
    after = await node.get(f"admin/topics/{queue}")

    assert [1 - home] == again.json["draining"] == repeated.json["draining"]
    assert "draining" not in after.json


async def test_whatever_makes_a_task_puts_it_where_its_queue_is(node: Client) -> None:
    """A result, a group and its completion, a graph, a schedule; with keys and without."""
    await put(node, "brought", maxRunning=50, perKey={})
    home = shard_of_queue("", "brought", SHARDS)
    task = {"command": "brought", "payload": {}}
    each = [task, {**task, "key": "k"}, {**task, "idempotencyKey": "once"}]
    parents = [await node.create("bringer") for _ in range(4)]
    for _ in parents:
        await end(node, await node.claim("bringer"), next=[task, {**task, "key": "k"}])
    group = await node.post("groups", {"id": "brought", "tasks": each, "then": task, "seal": True})
    graphs = [
        await node.post(
            "tasks/graph",
            {"tasks": [{"ref": "a", **task}, {"ref": "b", **task, "dependsOn": [{"ref": "a"}]}]},
        )
        for _ in range(3)
    ]
    body = json.dumps({"task": task, "cron": "0 0 1 1 *"}).encode()
    scheduled = await node.send("PUT", "admin/schedules/brought", body)
    fired = await node.post("admin/schedules/brought/trigger", {})
    ids = await ids_of(node, "brought", 8 + 3 + 6 + 1)
    await node.send("DELETE", "admin/schedules/brought", b"")
    ended = 0
    while ended < len(ids) + 1:
        await end(node, await node.claim("brought", waitSeconds=20))
        ended += 1

    assert (201, 200) == (scheduled.status, fired.status)
    assert {202} == {answer.status for answer in (group, *graphs)}
    assert {home} == shards(await ids_of(node, "brought", len(ids) + 1))


async def test_keys_and_the_queue_are_limited_at_once(node: Client) -> None:
    """A key may have a rule of its own there too; keys that are on many shards already may not."""
    await put(node, "both", maxRunning=3, perKey={"maxRunning": 2})
    own = await node.send("PUT", "admin/queues/both/keys/bob", b'{"paused": true}')
    for key in ("ann", "ann", "ann", "bob", "cid", "dan"):
        await node.create("both", key=key)
    begun = [(await node.claim("both"))["key"] for _ in range(3)]
    none = await claim(node, "both")
    shown = await node.get("admin/queues/both/keys/bob")
    await node.post("admin/queues/both/purge")
    await put(node, "keyed", perKey={})
    refused = await put(node, "keyed", maxRunning=3, perKey={})

    assert 200 == own.status
    assert {"ann", "cid", "dan"} == set(begun)
    assert 204 == none.status
    assert (1, True) == (shown.json["held"], shown.json["own"]["paused"])
    assert (409, "keys-elsewhere") == (refused.status, refused.json["code"])


async def test_a_key_of_a_limited_queue_keeps_its_rule_over_another_topic(node: Client) -> None:
    """The queue stays on its shard without a topic, and so does what is said of its keys then."""
    home = shard_of_queue("", "again", SHARDS)
    keys = (f"k{number}" for number in range(99))
    key = next(each for each in keys if shard_of_lane("", "again", each, SHARDS) != home)
    await put(node, "again", maxRunning=3, perKey={})
    gone = await node.send("DELETE", "admin/topics/again?deletionPolicy=Delete", b"")
    own = await node.send("PUT", f"admin/queues/again/keys/{key}", b'{"paused": true}')
    await put(node, "again", maxRunning=3, perKey={})
    await node.create("again", key=key)
    none = await claim(node, "again")
    await node.post("admin/queues/again/purge")

    assert (204, 200) == (gone.status, own.status)
    assert 204 == none.status


async def test_what_was_said_of_a_key_before_the_limit_ends_with_the_next_word(
    node: Client,
) -> None:
    """The key's new tasks are on another shard since then; nothing of the old word is left."""
    home = shard_of_queue("", "moved", SHARDS)
    keys = (f"k{number}" for number in range(99))
    key = next(each for each in keys if shard_of_lane("", "moved", each, SHARDS) != home)
    path = f"admin/queues/moved/keys/{key}"
    await node.send("PUT", path, b'{"paused": true}')
    await put(node, "moved", maxRunning=3, perKey={})
    before = await node.get("admin/queues/moved/keys")
    deleted = await node.send("DELETE", path, b"")
    after = await node.get("admin/queues/moved/keys")

    assert [key] == [each["key"] for each in before.json["keys"]]
    assert (204, []) == (deleted.status, after.json["keys"])


@pytest.mark.parametrize(
    ("flow", "field"),
    [
        ({"maxRunning": 0}, "flow.maxRunning"),
        ({"maxRunning": 1_000_001}, "flow.maxRunning"),
        ({"rate": {"count": 0}}, "rate.count"),
        ({"rate": {}}, "rate.count"),
        ({"limit": "x"}, "flow.limit"),
    ],
)
async def test_a_bad_limit_is_refused(node: Client, flow: dict[str, object], field: str) -> None:
    """The answer names the field."""
    body = json.dumps({"flow": flow}).encode()
    refused = await node.send("PUT", "admin/topics/refused", body)

    assert 422 == refused.status
    assert field in refused.body.decode()
