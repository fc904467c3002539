"""Limits that queues share: at most so many tasks of all of them at once, or in a time."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime

import pytest

from codeq_cluster.core.limit import scope_of_limit
from codeq_cluster.core.sharding import shard_of, shard_of_queue
from tests.integration.http.client import Answer, Client, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

DONE = {"status": "COMPLETED", "result": {}}
SHARDS = 2


async def put(node: Client, limit: str, **rule: object) -> Answer:
    """Put a limit."""
    return await node.send("PUT", f"admin/limits/{limit}", json.dumps(rule).encode())


async def share(node: Client, queue: str, limit: str | None, **flow: object) -> Answer:
    """Let a queue share a limit."""
    body = json.dumps({"flow": {"limit": limit, **flow}}).encode()
    answer = await node.send("PUT", f"admin/topics/{queue}", body)
    if answer.status in (200, 201):
        await eventually(
            lambda: node.get(f"admin/topics/{queue}"), lambda found: "settling" not in found.json
        )
    return answer


async def claim(node: Client, *queues: str, **fields: object) -> Answer:
    return await node.post("tasks/claim", {"commands": queues, **fields})


async def end(node: Client, task: dict[str, object]) -> None:
    answer = await node.post(f"tasks/{task['id']}/result", DONE)
    assert 200 == answer.status, answer.body


async def test_two_queues_have_as_many_in_progress_as_their_limit_allows(node: Client) -> None:
    """On one shard; the end of a task lets a waiting claim of the other queue go."""
    made = await put(node, "Bank", maxRunning=2)
    topics = [await share(node, each, "bank") for each in ("pay", "repay")]
    created = [await node.create(each) for each in ("pay", "pay", "repay", "repay")]
    begun = [await node.claim("pay"), await node.claim("repay")]
    none = [await claim(node, each) for each in ("pay", "repay")]
    anything = await claim(node, "pay", "repay")
    shown = await node.get("admin/limits/BANK")
    explained = await node.get(f"tasks/{created[1]}/explain")
    following = asyncio.ensure_future(claim(node, "repay", waitSeconds=20))
    await node.depth("repay")  # Its answer proves that the node has read the claim before it.
    await end(node, begun[0])
    third = await following
    larger = asyncio.ensure_future(claim(node, "pay", waitSeconds=20))
    await node.depth("pay")
    changed = await put(node, "Bank", maxRunning=3)
    fourth = await larger
    for task in (begun[1], third.json, fourth.json):
        await end(node, task)

    assert (201, 1) == (made.status, made.json["version"])
    assert [{"limit": "bank"}] * 2 == [each.json["policy"]["flow"] for each in topics]
    home = shard_of_queue("", scope_of_limit("bank"), SHARDS)
    assert {home} == {shard_of(each, SHARDS) for each in created}
    assert [204, 204, 204] == [each.status for each in (*none, anything)]
    assert (["pay", "repay"], 2, 2) == tuple(
        shown.json[each] for each in ("queues", "running", "maxRunning")
    )
    assert "consumer-limit" == explained.json["reason"]
    assert "limit bank" in explained.json["message"]
    assert third.json["id"] in created[2:]
    assert (200, 2) == (changed.status, changed.json["version"])


async def test_two_queues_share_a_quota(node: Client) -> None:
    """Claims of both wait for its tokens, one after the other; each costs what its task says."""
    rate = {"count": 2, "perSeconds": 3, "burst": 2}
    await put(node, "quota", rate=rate)
    for queue in ("mail", "text"):
        await share(node, queue, "quota")
    created = [await node.create(each) for each in ("mail", "text", "mail", "text")]
    first = [await node.claim("mail"), await node.claim("text")]
    none = await claim(node, "text")
    explained = await node.get(f"tasks/{created[2]}/explain")
    shown = await node.get("admin/limits/quota")
    waiting = [claim(node, each, waitSeconds=20) for each in ("mail", "text")]
    rest = [each.json for each in await asyncio.gather(*waiting)]
    dear = await node.post("tasks", {"command": "text", "payload": 1, "cost": 3})
    for task in (*first, *rest):
        await end(node, task)
    starts = []
    for task_id in created:
        [attempt] = (await node.get(f"tasks/{task_id}")).json["history"]
        starts.append(datetime.fromisoformat(attempt["startedAt"]).timestamp())
    starts.sort()

    assert 204 == none.status
    assert "rate-limited" == explained.json["reason"]
    assert explained.json["until"] == shown.json["limitedUntil"]
    assert rate == shown.json["rate"]
    assert (422, "invalid-cost") == (dear.status, dear.json["code"])
    assert 1.49 <= starts[2] - starts[0]
    assert 2.99 <= starts[3] - starts[0]


async def test_a_worker_holds_the_limit_of_its_task(node: Client) -> None:
    """Its API wants less: no queue that shares it hands anything out before."""
    await put(node, "gateway", maxRunning=9)
    for queue in ("card", "debit"):
        await share(node, queue, "gateway")
    first, second = await node.create("card", maxAttempts=1), await node.create("debit")
    task = await node.claim("card")
    held = {"hold": "limit", "delaySeconds": 2, "reason": "429", "leaseToken": task["leaseToken"]}
    answer = await node.post(f"tasks/{first}/nack", held)
    explained = [(await node.get(f"tasks/{each}/explain")).json for each in (first, second)]
    shown = await node.get("admin/limits/gateway")
    none = await claim(node, "debit")
    waiting = [claim(node, each, waitSeconds=20) for each in ("card", "debit")]
    again = [each.json for each in await asyncio.gather(*waiting)]
    for each in again:
        await end(node, each)
    history = (await node.get(f"tasks/{first}")).json["history"]

    assert {"status": "requeued", "delaySeconds": 2} == answer.json
    assert {"limit-held"} == {each["reason"] for each in explained}
    assert {shown.json["heldUntil"]} == {each["until"] for each in explained}
    assert 204 == none.status
    assert [first, second] == [each["id"] for each in again]
    assert ("LIMIT_HELD", "429") == tuple(history[0][each] for each in ("outcome", "error"))
    assert history[1]["startedAt"] >= shown.json["heldUntil"]


@pytest.mark.parametrize(
    ("reason", "rule"),
    [
        ("consumer-limit", {"maxRunning": 1}),
        ("rate-limited", {"rate": {"count": 1, "perSeconds": 3600}}),
        ("limit-held", {"maxRunning": 5}),
    ],
)
async def test_a_scrape_says_what_a_limit_keeps_waiting(
    node: Client, reason: str, rule: dict[str, object]
) -> None:
    """Of all its queues, by the reason that each task gives."""
    limit, queues = f"of-{reason}", [f"{reason}-{each}" for each in "ab"]
    await put(node, limit, **rule)
    for queue in queues:
        await share(node, queue, limit)
        await node.create(queue)
        await node.create(queue)
    task = await node.claim(queues[0])
    if reason == "limit-held":
        held = {"hold": "limit", "delaySeconds": 600, "leaseToken": task["leaseToken"]}
        await node.post(f"tasks/{task['id']}/nack", held)
    waits = 4 if reason == "limit-held" else 3
    scraped = (await node.get("/metrics")).body.decode().splitlines()
    label, most = f'limit="{limit}"', rule.get("maxRunning")
    found = {each for each in scraped if label in each and not each.endswith(" 0.0")}
    expected = {
        f"codeq_limit_running{{{label}}} {4 - waits}.0": waits < 4,
        f"codeq_limit_running_max{{{label}}} {most}.0": most is not None,
        f'codeq_limit_waiting{{{label},reason="{reason}"}} {waits}.0': True,
    }

    assert {line for line, is_there in expected.items() if is_there} == found


async def test_what_cannot_be_is_refused_with_what_to_do(node: Client) -> None:
    """A limit says something, exists before its queues, and outlives them."""
    unknown = await share(node, "eager", "not-there")
    bad = await share(node, "eager", "no name")
    empty = await put(node, "nothing")
    burst = await put(node, "nothing", rate={"burst": 2})
    wrong = await put(node, "nothing", maxRunning=0)
    unnamed = await put(node, "a%20b", maxRunning=1)
    await put(node, "used", maxRunning=1)
    await share(node, "user", "used")
    in_use = await node.send("DELETE", "admin/limits/used", b"")
    await node.send("DELETE", "admin/topics/user?deletionPolicy=Delete", b"")
    gone = [await node.send("DELETE", "admin/limits/used", b"") for _ in range(2)]
    missing = await node.get("admin/limits/used")

    assert [(422, "unknown-limit"), (422, "invalid-field")] == [
        (each.status, each.json["code"]) for each in (unknown, bad)
    ]
    assert {(422, "invalid-field")} == {
        (each.status, each.json["code"]) for each in (burst, wrong, unnamed)
    }
    assert (422, "invalid-limit") == (empty.status, empty.json["code"])
    assert (409, "limit-in-use") == (in_use.status, in_use.json["code"])
    assert "user" in in_use.json["error"]
    assert [204, 204] == [each.status for each in gone]
    assert (404, "not-found") == (missing.status, missing.json["code"])


async def test_a_queue_that_is_placed_shares_limits_of_its_shard_alone(node: Client) -> None:
    """The refusal says what has placed it; a queue with keys alone is refused, too."""
    names = (f"of-{number}" for number in range(99))
    place = shard_of_queue("", "placed", SHARDS)
    far = next(each for each in names if shard_of_queue("", scope_of_limit(each), SHARDS) != place)
    near = next(each for each in names if shard_of_queue("", scope_of_limit(each), SHARDS) == place)
    for limit in (far, near):
        await put(node, limit, maxRunning=1)
    await share(node, "placed", None, maxRunning=5)
    refused = await share(node, "placed", far)
    taken = await share(node, "placed", near)
    await share(node, "keyed-alone", None, perKey={})
    keyed = await share(node, "keyed-alone", near)

    assert (409, "pinned-elsewhere") == (refused.status, refused.json["code"])
    assert "placed" in refused.json["error"]
    assert 200 == taken.status
    assert (409, "keys-elsewhere") == (keyed.status, keyed.json["code"])


async def test_tasks_from_before_are_drained_and_creates_keep_their_keys(node: Client) -> None:
    """A repeated create finds what its key has made elsewhere, and new ones go to the limit."""
    keys = [f"k{number}" for number in range(12)]
    old = {key: await node.create("moved", idempotencyKey=key) for key in keys}
    await put(node, "magnet", maxRunning=50)
    topic = await share(node, "moved", "magnet")
    again = {key: await node.create("moved", idempotencyKey=key) for key in keys}
    new = [await node.create("moved") for _ in range(4)]
    home = shard_of_queue("", scope_of_limit("magnet"), SHARDS)
    shards = {shard_of(each, SHARDS) for each in new}
    await node.post("admin/queues/moved/purge")
    drained = await node.get("admin/topics/moved")

    assert old == again
    assert [1 - home] == topic.json["draining"]
    assert {home} == shards
    assert "draining" not in drained.json


async def test_the_list_has_every_limit(node: Client) -> None:
    """By name, page by page."""
    for name in ("list-b", "list-a"):
        await put(node, name, maxRunning=1)
    page = await node.get("admin/limits?limit=500")

    found = [each["name"] for each in page.json["limits"]]
    assert sorted(found) == found
    assert {"list-a", "list-b"} <= set(found)


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_name_that_no_path_can_hold_is_refused_as_such(node: Client, name: str) -> None:
    """Its characters are those that a name may have."""
    answer = await node.send("PUT", f"admin/limits/{name}", b'{"maxRunning":1}')

    assert (422, "name") == (answer.status, answer.json["field"])
    assert answer.json["error"].endswith("other than . and ..")
