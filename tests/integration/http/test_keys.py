"""Keys: tasks of one key go one after the other, as their topic says."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest

from codeq_cluster.client.connection import part
from codeq_cluster.core.task import LANE_KEY_BYTES_MAX
from codeq_cluster.settings import LimitSettings
from tests.golden.release import (
    ARCHIVE,
    EXPECTED,
    OPERATOR,
    STORED,
    MovedClock,
    Places,
    settings_of,
)
from tests.golden.release import running as stored
from tests.integration.http.client import Answer, Client, eventually, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

DONE = {"status": "COMPLETED", "result": {}}
SERIAL = {"flow": {"perKey": {"maxRunning": 1}}}


async def put(node: Client, topic: str, **policy: object) -> Answer:
    return await node.send("PUT", f"admin/topics/{topic}", json.dumps(policy).encode())


async def put_and_settle(node: Client, topic: str, **policy: object) -> None:
    answer = await put(node, topic, **policy)
    assert answer.status in (200, 201), answer.body
    await eventually(
        lambda: node.get(f"admin/topics/{topic}"), lambda found: "settling" not in found.json
    )


async def claim(node: Client, command: str, **fields: object) -> Answer:
    return await node.post("tasks/claim", {"commands": [command], **fields})


async def end(node: Client, task: object) -> None:
    assert isinstance(task, dict)
    answer = await node.post(f"tasks/{task['id']}/result", DONE)
    assert 200 == answer.status, answer.body


async def location(node: Client, task: str) -> object:
    return (await node.get(f"tasks/{task}")).json["lastKnownLocation"]


async def test_tasks_of_a_key_go_one_after_the_other(node: Client) -> None:
    """Another key does not wait for them."""
    await put_and_settle(node, "mail", **SERIAL)
    first, second, third = [await node.create("mail", key="ann") for _ in range(3)]
    other = await node.create("mail", key="bob")
    begun = [await node.claim("mail") for _ in range(2)]
    none = await claim(node, "mail")
    depth = await node.depth("mail")
    explained = await node.get(f"tasks/{third}/explain")
    scraped = (await node.get("/metrics")).body.decode()

    assert 'codeq_queue_oldest_held_seconds{command="mail"}' in scraped
    assert {first, other} == {task["id"] for task in begun}
    assert {"ann", "bob"} == {task["key"] for task in begun}
    assert 204 == none.status
    assert "HELD_SET" == await location(node, second)
    assert (0, 2, 2) == (depth["ready"], depth["held"], depth["inProgress"])
    assert "key-busy" == explained.json["reason"]
    assert first in str(explained.json["message"])

    for task in begun:
        await end(node, task)
    following = await node.claim("mail")
    assert second == following["id"]
    await end(node, following)
    await end(node, await node.claim("mail"))


async def test_all_tasks_of_a_key_are_on_its_shard(node: Client) -> None:
    """One log decides about a key, so the limit is exact; other keys are elsewhere."""
    tasks = [await node.create("placed", key=f"key {n % 8}") for n in range(32)]
    shards = [(await node.get(f"tasks/{task}")).json.get("shard", 0) for task in tasks]

    assert shards[:8] * 4 == shards
    assert len(set(shards)) > 1


async def test_a_rule_binds_tasks_that_were_there_before(node: Client) -> None:
    """Those that may not run any more are held, and without the rule all are ready again."""
    tasks = [await node.create("bound-later", key="one") for _ in range(5)]
    await put_and_settle(node, "bound-later", **SERIAL)
    bound = await node.depth("bound-later")
    await put_and_settle(node, "bound-later", weight=2)
    free = await node.depth("bound-later")
    purged = await node.post("admin/queues/bound-later/purge")

    assert (1, 4) == (bound["ready"], bound["held"])
    assert (5, 0) == (free["ready"], free["held"])
    assert len(tasks) == purged.json["purged"]


async def test_held_tasks_are_listed_cancelled_and_purged(node: Client) -> None:
    """They wait like any others."""
    await put_and_settle(node, "bin", **SERIAL)
    tasks = [await node.create("bin", key="k") for _ in range(4)]
    listed = await node.get("admin/tasks?command=bin&status=PENDING")
    cancelled = await node.post(f"tasks/{tasks[1]}/cancel")
    purged = await node.post("admin/queues/bin/purge")
    depth = await node.depth("bin")

    assert set(tasks) == {task["id"] for task in listed.json["tasks"]}
    assert 200 == cancelled.status
    assert 3 == purged.json["purged"]
    assert (0, 0) == (depth["ready"], depth["held"])


async def test_a_dead_letter_stops_its_key_until_it_is_requeued(node: Client) -> None:
    """It then goes before those that wait."""
    await put_and_settle(node, "strict", flow={"perKey": {"whenDead": "stop"}})
    first = await node.create("strict", key="k", maxAttempts=1)
    second = await node.create("strict", key="k")
    await node.claim("strict")
    await node.post(f"tasks/{first}/nack", {"reason": "broken"})
    none = await claim(node, "strict")
    explained = await node.get(f"tasks/{second}/explain")
    await node.post(f"admin/queues/strict/dlq/{first}/requeue")
    again = await node.claim("strict")
    await end(node, again)
    last = await node.claim("strict")
    await end(node, last)

    assert 204 == none.status
    assert "key-stopped" == explained.json["reason"]
    assert first in str(explained.json["message"])
    assert [first, second] == [again["id"], last["id"]]


async def test_a_topic_says_its_rule(node: Client) -> None:
    """Defaults are shown, and the same rule again changes nothing."""
    rule = {"maxRunning": 3, "order": "fifo", "onRetry": "yield", "whenDead": "stop"}
    made = await put(node, "said", priorityTiers=[4], flow={"perKey": rule})
    same = await put(node, "said", priorityTiers=[4], flow={"perKey": rule})
    plain = await put(node, "plain", flow={"perKey": {}})

    assert (201, 200) == (made.status, same.status)
    assert {"perKey": rule} == made.json["flow"]
    assert made.json["version"] == same.json["version"]
    shown = {"maxRunning": 1, "order": "priority", "onRetry": "hold", "whenDead": "next"}
    assert {"perKey": shown} == plain.json["flow"]


@pytest.mark.parametrize(
    "rule",
    [
        {"maxRunning": 0},
        {"maxRunning": 10_001},
        {"order": "fifo"},
        {"order": "lifo"},
        {"onRetry": "wait"},
        {"whenDead": "cry"},
        {"perHour": 1},
        {"rate": {}},
        {"rate": {"count": 0}},
        {"rate": {"count": 1, "perSeconds": 86_401}},
        {"rate": {"count": 1, "burst": 0}},
        {"rate": {"count": 1, "perHour": 1}},
    ],
)
async def test_a_rule_that_cannot_be_kept_is_refused(node: Client, rule: object) -> None:
    """First in, first out needs one priority, or a key's first would wait behind other keys."""
    refused = await put(node, "refused", priorityTiers=[0, 5], flow={"perKey": rule})

    assert (422, "invalid-field") == (refused.status, refused.json["code"]), refused.body


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"key": "ä" * LANE_KEY_BYTES_MAX}, "invalid-key"),
        ({"idempotencyKey": "\0once"}, "invalid-idempotency-key"),
    ],
)
async def test_a_key_that_cannot_be_kept_is_refused(
    node: Client, fields: dict[str, object], code: str
) -> None:
    """The names of idempotency keys that count among a key's tasks begin with a NUL."""
    refused = await node.post("tasks", {"command": "c", "payload": {}, **fields})

    assert (400, code) == (refused.status, refused.json["code"])


async def test_a_repeated_create_makes_no_second_task_of_its_key(node: Client) -> None:
    """Its idempotency key counts among the tasks of its key; until its task is deleted."""

    async def made(**fields: object) -> Answer:
        new = {"command": "once", "payload": 1, "idempotencyKey": "o", **fields}
        return await node.post("tasks", new)

    first, again = [await made(key="ann") for _ in range(2)]
    conflict = await made(key="ann", payload=2)
    bob, nobody = await made(key="bob"), await made()
    other = await made(key="ann", command="twice")
    await node.post("admin/queues/once/purge")
    await node.post("admin/queues/twice/purge")

    assert (202, 202) == (first.status, again.status)
    assert first.json["id"] == again.json["id"]
    assert (409, "idempotency-conflict") == (conflict.status, conflict.json["code"])
    assert 4 == len({each.json["id"] for each in (first, bob, nobody, other)})


async def test_rules_and_held_tasks_survive_a_restart(tmp_path: Path) -> None:
    """The next leader finds each key as it was."""
    async with running(tmp_path, LimitSettings()) as node:
        await put_and_settle(node, "kept", **SERIAL)
        tasks = [await node.create("kept", key="k") for _ in range(3)]
        first = await node.claim("kept")
    async with running(tmp_path, LimitSettings()) as node:
        none = await claim(node, "kept")
        await end(node, first)
        second = await node.claim("kept")
        held = (await node.depth("kept"))["held"]

    assert 204 == none.status
    assert tasks[:2] == [first["id"], second["id"]]
    assert 1 == held


async def test_what_follows_a_result_may_have_keys(node: Client) -> None:
    """It goes to the shard of its key, whichever shard the task before it is on."""
    await put_and_settle(node, "leg", **SERIAL)
    await node.create("trip")
    trip = await node.claim("trip")
    following = [{"command": "leg", "payload": {"n": n}, "key": f"rider {n % 2}"} for n in range(4)]
    done = await node.post(f"tasks/{trip['id']}/result", {**DONE, "next": following})
    await eventually(
        lambda: node.depth("leg"), lambda depth: (2, 2) == (depth["ready"], depth["held"])
    )
    ends: list[object] = []
    for _ in following:
        leg = await node.claim("leg")
        assert trip["id"] == leg["parentId"]
        ends.append(leg["key"])
        await end(node, leg)

    assert 200 == done.status, done.body
    assert ["rider 0", "rider 0", "rider 1", "rider 1"] == sorted(map(str, ends))


async def test_tasks_of_a_key_go_when_it_has_the_tokens(node: Client) -> None:
    """Whoever waits is told until when; a claim that waits gets the task at that instant."""
    rate = {"count": 2, "perSeconds": 1, "burst": 2}
    rule = {"maxRunning": 9, "rate": rate}
    await put_and_settle(node, "call", flow={"perKey": rule})
    tasks = [await node.create("call", key="api", cost=2) for _ in range(2)]
    dear = await node.post("tasks", {"command": "call", "payload": 1, "key": "api", "cost": 3})
    first = await node.claim("call")
    explained = await node.get(f"tasks/{tasks[1]}/explain")
    [key] = (await node.get("admin/queues/call/keys")).json["keys"]
    none = await claim(node, "call")
    second = (await claim(node, "call", waitSeconds=5)).json
    shown = await node.get("admin/topics/call")

    assert tasks == [first["id"], second["id"]]
    assert 2 == second["cost"]
    assert "rate-limited" == explained.json["reason"]
    assert explained.json["until"] == key["limitedUntil"]
    assert 204 == none.status
    assert (422, "invalid-cost") == (dear.status, dear.json["code"])
    assert rate == shown.json["flow"]["perKey"]["rate"]


async def test_a_worker_holds_the_key_of_its_task(node: Client) -> None:
    """Its API wants less: nobody gets a task of the key before; it costs no attempt."""
    await put_and_settle(node, "limited", flow={"perKey": {"maxRunning": 9}})
    first, second = [await node.create("limited", key="api", maxAttempts=1) for _ in range(2)]
    other = await node.create("limited", key="else")
    task = await node.claim("limited")
    held = {"hold": "key", "delaySeconds": 2, "reason": "429", "leaseToken": task["leaseToken"]}
    answers = [await node.post(f"tasks/{first}/nack", held) for _ in range(2)]
    explained = await node.get(f"tasks/{second}/explain")
    [key, _] = (await node.get("admin/queues/limited/keys")).json["keys"]
    besides = await node.claim("limited")
    none = await claim(node, "limited")
    again = (await claim(node, "limited", waitSeconds=9)).json
    for each in (besides, again, await node.claim("limited")):
        await end(node, each)

    assert [200, 409] == [each.status for each in answers], answers[0].body
    assert ("requeued", 2) == (answers[0].json["status"], answers[0].json["delaySeconds"])
    assert ("api", 2) == (key["key"], key["held"])
    assert "key-held" == explained.json["reason"]
    assert explained.json["until"] == key["heldUntil"]
    assert (other, 204, first) == (besides["id"], none.status, again["id"])
    assert ("KEY_HELD", "429") == tuple(again["history"][0][each] for each in ("outcome", "error"))


async def test_a_hold_of_nothing_is_refused_and_the_lease_stays(node: Client) -> None:
    """A hold that nobody knows, a task without a key, and a token of other commands."""
    await put_and_settle(node, "unheld", flow={"perKey": {}})
    await node.create("unheld")
    task = await node.claim("unheld")
    await node.create("unheld", key="k")
    keyed = await node.claim("unheld")

    async def refused(by: Client, task: dict[str, object], hold: object) -> tuple[int, object]:
        body = {"hold": hold, "leaseToken": task["leaseToken"]}
        answer = await by.post(f"tasks/{task['id']}/nack", body)
        return answer.status, answer.json["code"]

    unknown = await refused(node, keyed, "all")
    limitless = await refused(node, keyed, "queue")
    keyless = await refused(node, task, "key")
    other = await refused(Client(node.port, "narrow-ender"), keyed, "key")
    for each in (task, keyed):
        await end(node, each)

    assert (400, "invalid-hold") == unknown
    assert (409, "nothing-to-hold") == keyless == limitless
    assert (403, "event-type-not-allowed") == other


async def test_one_key_has_its_own_limits(node: Client) -> None:
    """Its name may hold anything; the others follow the topic, and so does it in the end."""
    await put_and_settle(node, "own", **SERIAL)
    key = "a/b ä?%2F"
    path = f"admin/queues/Own/keys/{quote(key, safe='')}"
    rate = {"count": 100, "perSeconds": 60, "burst": 10}

    async def own(**fields: object) -> Answer:
        return await node.send("PUT", path, json.dumps(fields).encode())

    tasks = [await node.create("own", key=key) for _ in range(3)]
    others = [await node.create("own", key="c") for _ in range(2)]
    made = await own(maxRunning=2, weight=2)
    begun = {(await node.claim("own"))["id"] for _ in range(3)}
    none = await claim(node, "own")
    paused = await own(maxRunning=2, rate=rate, paused=True)
    shown = await node.get(path)
    explained = await node.get(f"tasks/{tasks[2]}/explain")
    listed = (await node.get("admin/queues/own/keys")).json["keys"]
    ended = await node.send("DELETE", path, b"")
    again = await node.send("DELETE", path, b"")
    plain = await node.get(path)
    for task in begun:
        await end(node, {"id": task})
    for _ in range(2):
        await end(node, await node.claim("own"))
    audit = (await node.get("admin/audit?limit=2")).json["records"]

    assert (200, {"maxRunning": 2, "weight": 2, "paused": False}) == (made.status, made.json)
    assert {*tasks[:2], others[0]} == begun
    assert 204 == none.status
    assert {"maxRunning": 2, "rate": rate, "weight": 1, "paused": True} == paused.json
    assert (key, 2, paused.json) == tuple(shown.json[each] for each in ("key", "inProgress", "own"))
    assert [shown.json] == [each for each in listed if "own" in each]
    assert "key-paused" == explained.json["reason"]
    assert (204, 204) == (ended.status, again.status)
    assert "own" not in plain.json
    assert [("key.delete", "own", key), ("key.put", "own", key)] == [
        (each["action"], each["target"], each["detail"]) for each in audit
    ]


async def test_keys_named_like_steps_in_a_path_have_their_own_limits(node: Client) -> None:
    """No path can hold `.`, so `~` stands before it; each such key is another one."""
    names = (".", "..", "~.", "~~..", "~", "...", "~a")
    for most, name in enumerate(names, start=1):
        body = json.dumps({"maxRunning": most}).encode()
        await node.send("PUT", f"admin/queues/steps/keys/{part(name)}", body)
    listed = (await node.get("admin/queues/steps/keys")).json["keys"]
    ended = await node.send("DELETE", f"admin/queues/steps/keys/{part('.')}", b"")
    left = (await node.get("admin/queues/steps/keys")).json["keys"]

    assert isinstance(listed, list)
    assert {name: most for most, name in enumerate(names, start=1)} == {
        each["key"]: each["own"]["maxRunning"] for each in listed
    }
    assert 204 == ended.status
    assert isinstance(left, list)
    assert set(names) - {"."} == {each["key"] for each in left}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"maxRunning": 0}, "maxRunning"),
        ({"weight": 17}, "weight"),
        ({"rate": {"count": 0}}, "rate.count"),
        ({"rate": {}}, "rate.count"),
        ({"order": "fifo"}, "order"),
    ],
)
async def test_limits_of_a_key_that_cannot_be_kept_are_refused(
    node: Client, fields: dict[str, object], field: str
) -> None:
    """And so is a name that no key can have."""
    body = json.dumps(fields).encode()
    refused = await node.send("PUT", "admin/queues/c/keys/k", body)
    unnamed = await node.send("PUT", f"admin/queues/c/keys/{'k' * 257}", b"{}")

    assert (422, field) == (refused.status, refused.json["field"])
    assert (400, "invalid-key") == (unnamed.status, unnamed.json["code"])


async def test_nothing_of_a_key_is_said_before_every_node_knows_keys(tmp_path: Path) -> None:
    """On data of release 0.1.0 the answers name the upgrade, until it is done."""
    with tarfile.open(STORED / "0.1.0" / ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    clock = MovedClock(json.loads((STORED / "0.1.0" / EXPECTED).read_text())["made_ms"])
    async with stored(settings_of(Places(tmp_path)), clock) as (_, node):
        early = [
            await put(node, "soon", **SERIAL),
            await node.post("tasks", {"command": "soon", "payload": {}, "key": "k"}),
            await node.post("tasks/none/nack", {"hold": "key", "leaseToken": 1}),
            await node.send("PUT", "admin/queues/soon/keys/k", b"{}"),
            await node.send("DELETE", "admin/queues/soon/keys/k", b""),
        ]
        await eventually(
            lambda: node.post("admin/cluster/upgrade", {}, token=OPERATOR),
            lambda answer: answer.status == 200,
        )
        late = await eventually(
            lambda: put(node, "soon", **SERIAL), lambda each: each.status != 503
        )

    assert [(503, "upgrade-under-way")] * 5 == [(each.status, each.json["code"]) for each in early]
    assert {"not-applied"} == {each.headers["x-outcome"] for each in early}
    assert 201 == late.status


@pytest.mark.parametrize("fields", [{"cost": 0}, {"key": "k", "cost": 0}, {"cost": 1001}])
async def test_a_cost_out_of_bounds_is_refused(node: Client, fields: dict[str, object]) -> None:
    """No burst could ever pay it."""
    refused = await node.post("tasks", {"command": "c", "payload": {}, **fields})

    assert (400, "invalid-cost") == (refused.status, refused.json["code"])


async def test_a_failed_attempt_keeps_its_turn(node: Client) -> None:
    """It backs off, and its key waits for it; with `yield`, the key goes on."""
    await put_and_settle(node, "stay", **SERIAL)
    await put_and_settle(node, "pass", flow={"perKey": {"onRetry": "yield"}})
    held: dict[str, bool] = {}
    for queue in ("stay", "pass"):
        first, second = [await node.create(queue, key="k") for _ in range(2)]
        task = await node.claim(queue)
        await node.post(f"tasks/{task['id']}/nack", {"delaySeconds": 60})
        held[queue] = "HELD_SET" == await location(node, second)
        assert "DELAYED_ZSET" == await location(node, first)
        await node.post(f"admin/queues/{queue}/purge")

    assert {"stay": True, "pass": False} == held


async def test_the_busiest_keys_of_a_queue_are_listed(node: Client) -> None:
    """Those with the most held tasks come first; another queue's are not among them."""
    await put_and_settle(node, "busy", **SERIAL)
    await node.create("busy.er", key="other")
    for key, count in (("few", 2), ("many", 4), ("one", 1)):
        for _ in range(count):
            await node.create("Busy", key=key)
    task = await node.claim("busy")
    listed = await node.get("admin/queues/Busy/keys")
    first = await node.get("admin/queues/busy/keys?limit=1")
    for queue in ("busy", "busy.er"):
        await node.post(f"admin/queues/{queue}/purge")
    await end(node, task)
    none = await node.get("admin/queues/busy/keys")

    assert [("many", 3), ("few", 1), ("one", 0)] == [
        (each["key"], each["held"]) for each in listed.json["keys"]
    ]
    assert 1 == sum(each["inProgress"] for each in listed.json["keys"])
    assert ["many"] == [each["key"] for each in first.json["keys"]]
    assert {"keys": [], "more": False} == none.json
