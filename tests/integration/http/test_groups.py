"""Groups: one completion task after the last member, whatever becomes of the members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.core.groups import ADDED_MAX, group_shard
from codeq_cluster.core.sharding import shard_of_key, shard_of_queue
from codeq_cluster.settings import LimitSettings, RateLimitSettings, TenantRateLimit
from tests.integration.http.client import Answer, eventually, serving, single
from tests.integration.http.world import World, created

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACME = "admin-of-acme"
WORKER = "worker-of-acme"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run a node for this file alone."""
    async with created(tmp_path_factory.mktemp("groups")) as world:
        yield world


@pytest.fixture
def name(world: World) -> str:
    """Return the name of a group, and of its queue, that no other test uses."""
    return f"group-{next(world.numbers)}"


def _tasks(name: str, many: int) -> list[dict[str, Any]]:
    return [{"command": name, "payload": number, "maxAttempts": 1} for number in range(many)]


async def _begin(world: World, name: str, **said: object) -> dict[str, Any]:
    then = {"command": f"{name}.then", "payload": {"of": name}}
    answer = await world.client.post("groups", {"id": name, "then": then, **said}, token=ACME)
    assert 202 == answer.status, answer.body
    return answer.json


async def _post(world: World, path: str, body: object = None) -> Answer:
    return await world.client.post(path, {} if body is None else body, token=ACME)


async def _shown(world: World, name: str) -> dict[str, Any]:
    answer = await world.client.get(f"groups/{name}", token=ACME)
    assert 200 == answer.status, answer.body
    return answer.json


async def _claim(world: World, command: str) -> dict[str, Any] | None:
    answer = await world.client.post("tasks/claim", {"commands": [command]}, token=WORKER)
    return answer.json if answer.status == 200 else None


async def _end(
    world: World, task_id: str, *, done: bool = True, following: Sequence[object] = ()
) -> Answer:
    body: dict[str, object] = {"status": "COMPLETED", "result": {"of": task_id}}
    if not done:
        body = {"status": "FAILED", "error": "broken"}
    if following:
        body["next"] = following
    return await world.client.post(f"tasks/{task_id}/result", body, token=WORKER)


async def _work(world: World, name: str, *, done: bool = True) -> str:
    task = await _claim(world, name)
    assert task is not None
    assert 200 == (await _end(world, task["id"], done=done)).status
    return str(task["id"])


async def test_the_completion_task_comes_after_the_last_member_with_true_counts(
    world: World, name: str
) -> None:
    """It can be claimed once the last one has ended, and says how all of them did."""
    begun = await _begin(world, name, tasks=_tasks(name, 3), seal=True)
    assert ["members"] == begun["waitsFor"]
    assert 3 == len(begun["tasks"])
    await _work(world, name)
    await _work(world, name, done=False)
    assert await _claim(world, f"{name}.then") is None
    await _work(world, name)

    then = await _claim(world, f"{name}.then")
    assert then is not None
    assert then["group"] == {
        "id": name,
        "total": 3,
        "completed": 2,
        "failed": 1,
        "cancelled": 0,
        "dead": 0,
    }
    assert await _claim(world, f"{name}.then") is None
    text = (await world.client.get("/metrics")).body.decode()
    assert 'codeq_group_members_ended_total{status="COMPLETED"}' in text
    shown = await _shown(world, name)
    assert ("FAILED", then["id"], 0) == (shown["status"], shown["thenTaskId"], shown["live"])


async def test_groups_that_go_on_are_listed_first_the_newest_first(world: World, name: str) -> None:
    """Pages of any size have the same order, and another tenant's list has none of them."""
    names = [f"{name}.{number}" for number in range(5)]
    for each in names:
        await _begin(world, each)
    await _post(world, f"groups/{names[3]}/seal")
    await _post(world, f"groups/{names[1]}/seal")

    async def listed(limit: int) -> list[str]:
        found: list[str] = []
        path = f"groups?limit={limit}"
        while True:
            page = (await world.client.get(path, token=ACME)).json
            found += [each["id"] for each in page["groups"]]
            if "cursor" not in page:
                return [each for each in found if each in names]
            path = f"groups?limit={limit}&cursor={page['cursor']}"

    wanted = [names[number] for number in (4, 2, 0, 1, 3)]
    assert wanted == await listed(500)
    assert wanted == await listed(2)
    assert [] == (await world.client.get("groups", token="admin-of-other")).json["groups"]


async def test_a_sealed_group_without_members_ends_at_once(world: World, name: str) -> None:
    """Its completion task is there with the answer."""
    begun = await _begin(world, name, seal=True)

    assert "COMPLETED" == begun["status"]
    then = await _claim(world, f"{name}.then")
    assert then is not None
    assert (begun["thenTaskId"], 0) == (then["id"], then["group"]["total"])


async def test_more_members_than_an_entry_takes_are_counted_exactly(
    world: World, name: str
) -> None:
    """They come in several entries, and a repeated request adds none of them again."""
    many = 2 * ADDED_MAX + 1
    first = await _begin(world, name, tasks=_tasks(name, many), seal=True)
    again = await _begin(world, name, tasks=_tasks(name, many), seal=True)

    assert (many, many) == (first["total"], again["total"])
    assert first["tasks"] == again["tasks"]
    assert many == len({each["id"] for each in first["tasks"]})


async def test_another_request_of_the_same_name_is_refused(world: World, name: str) -> None:
    """A group is what its first request says."""
    await _begin(world, name)
    answer = await _post(world, "groups", {"id": name, "tasks": _tasks(name, 1)})

    assert (409, "idempotency-conflict") == (answer.status, answer.json["code"])


async def test_members_join_until_the_group_is_sealed(world: World, name: str) -> None:
    """By requests to the group, and by creates that name it."""
    await _begin(world, name)
    added = await _post(world, f"groups/{name}/tasks", {"tasks": _tasks(name, 2)})
    one = await _post(world, "tasks", {**_tasks(name, 1)[0], "group": name})
    sealed = await _post(world, f"groups/{name}/seal")
    late = await _post(world, f"groups/{name}/tasks", {"tasks": _tasks(name, 1)})
    later = await _post(world, "tasks", {**_tasks(name, 1)[0], "group": name})
    unknown = await _post(world, "tasks", {**_tasks(name, 1)[0], "group": "unknown"})

    assert (202, 202, 200) == (added.status, one.status, sealed.status)
    assert name == one.json["groupId"]
    assert (3, "SEALED") == (sealed.json["total"], sealed.json["status"])
    assert [(409, "group-sealed")] * 2 == [
        (each.status, each.json["code"]) for each in (late, later)
    ]
    assert (404, "group not found") == (unknown.status, unknown.json["error"])


async def test_a_member_joins_whose_queue_is_on_another_shard(world: World, name: str) -> None:
    """A queue with a limit is on a shard of its own; the answer is as that of any other task."""
    shards = world.settings.shards
    home = group_shard("acme", name, shards)
    queue = next(
        queue
        for number in range(99)
        if shard_of_queue("acme", queue := f"{name}.{number}", shards) != home
    )
    rule = b'{"flow":{"maxRunning":5}}'
    limited = await world.client.send("PUT", f"admin/topics/{queue}", rule, token=ACME)
    assert 201 == limited.status, limited.body
    await eventually(
        lambda: world.client.get(f"admin/topics/{queue}", token=ACME),
        lambda found: "settling" not in found.json,
    )
    await _begin(world, name)
    member = {"command": queue, "payload": 1, "group": name}
    answer = await _post(world, "tasks", member)

    assert 202 == answer.status, answer.body
    assert (name, "PENDING") == (answer.json["groupId"], answer.json["status"])
    claimed = await eventually(
        lambda: world.client.post("tasks/claim", {"commands": [queue]}, token=WORKER),
        lambda claimed: claimed.status == 200,
    )
    assert answer.json["id"] == claimed.json["id"]


async def test_members_of_other_shards_are_counted_and_come_once(world: World, name: str) -> None:
    """Their keys decide their shards; the group hears of their ends, and of a key that is taken."""
    shards = world.settings.shards
    home = group_shard("acme", name, shards)
    keys = [f"{name}.{number}" for number in range(20)]
    away = [key for key in keys if shard_of_key("acme", key, shards) != home][:3]
    assert 3 == len(away)
    task = {"command": name, "payload": 1}
    taken = {"command": f"{name}.other", "payload": 1, "idempotencyKey": away[0]}
    assert 202 == (await _post(world, "tasks", taken)).status
    await _begin(world, name, tasks=[{**task, "idempotencyKey": key} for key in away], seal=True)
    counted = await eventually(
        lambda: world.client.get(f"groups/{name}", token=ACME),
        lambda answer: answer.json["total"] == 2,
    )
    for _ in range(2):
        claimed = await eventually(
            lambda: world.client.post("tasks/claim", {"commands": [name]}, token=WORKER),
            lambda answer: answer.status == 200,
        )
        assert 200 == (await _end(world, claimed.json["id"])).status
    then = await eventually(
        lambda: world.client.post("tasks/claim", {"commands": [f"{name}.then"]}, token=WORKER),
        lambda answer: answer.status == 200,
    )

    assert 2 == counted.json["live"]
    assert (2, 2) == (then.json["group"]["total"], then.json["group"]["completed"])


async def test_a_live_member_adds_to_a_sealed_group(world: World, name: str) -> None:
    """Its follow-up is in before its own end is counted; a task that is no member adds nothing."""
    await _begin(world, name, tasks=_tasks(name, 1), seal=True)
    member = await _claim(world, name)
    assert member is not None
    more = {"command": name, "payload": "more", "group": name}
    other = await _end(world, member["id"], following=[{**more, "group": "another"}])
    done = await _end(world, member["id"], following=[more])
    shown = await _shown(world, name)
    last = await _claim(world, name)
    assert last is not None
    await _end(world, last["id"])

    assert (409, "other-group") == (other.status, other.json["code"])
    assert "leave 'group' out" in str(other.json["error"])
    assert 200 == done.status, done.body
    assert ("SEALED", 2, 1) == (shown["status"], shown["total"], shown["live"])
    assert member["id"] == last["parentId"]
    assert "COMPLETED" == (await _shown(world, name))["status"]


async def test_a_dead_letter_has_ended_and_is_not_counted_again(world: World, name: str) -> None:
    """Its requeue changes nothing for the group."""
    await _begin(world, name, tasks=_tasks(name, 1), seal=True)
    member = await _claim(world, name)
    assert member is not None
    await world.client.post(f"tasks/{member['id']}/abandon", {}, token=WORKER)
    before = await _shown(world, name)
    path = f"admin/queues/{name}/dlq/{member['id']}/requeue"
    assert 200 == (await _post(world, path)).status
    await _work(world, name)

    assert (1, "FAILED") == (before["dead"], before["status"])
    assert before == await _shown(world, name)


async def test_a_failure_cancels_the_others_if_the_group_says_so(world: World, name: str) -> None:
    """More of them than one step cancels; then the completion task comes."""
    await _begin(world, name, tasks=_tasks(name, 100), onFailure="cancel")
    await _work(world, name, done=False)
    ended = await eventually(
        lambda: world.client.get(f"groups/{name}", token=ACME),
        lambda answer: "endedAt" in answer.json,
    )

    shown = ended.json
    assert (1, 99, "FAILED") == (shown["failed"], shown["cancelled"], shown["status"])
    assert await _claim(world, name) is None
    then = await _claim(world, f"{name}.then")
    assert then is not None
    assert 99 == then["group"]["cancelled"]


async def test_a_cancelled_group_ends_without_a_completion_task_that_needs_success(
    world: World, name: str
) -> None:
    """Cancelling seals it and ends its members, those that are leased included."""
    await _begin(world, name, tasks=_tasks(name, 3), thenIf="succeeded")
    assert await _claim(world, name) is not None
    cancelled = await _post(world, f"groups/{name}/cancel")
    await eventually(
        lambda: world.client.get(f"groups/{name}", token=ACME),
        lambda answer: answer.json["status"] == "CANCELLED",
    )

    assert "CANCELLING" == cancelled.json["status"]
    assert await _claim(world, f"{name}.then") is None


async def test_results_come_in_pages(world: World, name: str) -> None:
    """Each member is there once, with the result of its task if it has ended."""
    await _begin(world, name, tasks=_tasks(name, 3))
    done = await _work(world, name)
    found: list[dict[str, Any]] = []
    cursor = ""
    for _ in range(4):
        answer = await world.client.get(
            f"groups/{name}/results?limit=2{cursor and f'&cursor={cursor}'}", token=ACME
        )
        found += answer.json["members"]
        cursor = answer.json.get("cursor", "")
        if not cursor:
            break

    assert ["COMPLETED", "LIVE", "LIVE"] == sorted(each["status"] for each in found)
    assert 3 == len({each["taskId"] for each in found})
    [ended] = [each for each in found if "result" in each]
    assert (done, {"of": done}) == (ended["taskId"], ended["result"]["result"])


async def test_requests_at_once_make_one_group(world: World, name: str) -> None:
    """Ten of them have the same answer, and the completion task comes once."""
    begun = await asyncio.gather(*(_begin(world, name, seal=True) for _ in range(10)))

    assert 1 == len({each["thenTaskId"] for each in begun})
    assert await _claim(world, f"{name}.then") is not None
    assert await _claim(world, f"{name}.then") is None


async def test_groups_count_against_the_rate_of_creates(tmp_path: Path) -> None:
    """A group is worth its members and its completion task, and never nothing."""
    few = TenantRateLimit(tenant="acme", scope="producer", requests_per_minute=1, burst_size=4)
    limits = RateLimitSettings(tenants=(few,))
    settings = replace(single(tmp_path, LimitSettings()), rate_limit=limits)
    task = {"command": "c", "payload": 1}
    async with serving(settings) as node:
        answers = [
            await node.post("groups", {"then": task, "tasks": [task] * 4}),
            await node.post("groups", {"then": task, "tasks": [task]}),
            await node.post("groups", {"then": task}),
            await node.post("groups", {}),
            await node.post("groups", {"then": task}),
        ]

    assert [400, 202, 202, 202, 429] == [answer.status for answer in answers]
    assert "invalid 'tasks' (at most 3)" == answers[0].error


async def test_a_group_has_one_name(world: World) -> None:
    """The idempotency key is the id."""
    answer = await _post(world, "groups", {"id": "a", "idempotencyKey": "b"})

    assert (409, "idempotency-conflict") == (answer.status, answer.json["code"])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"id": "a:b"}, "invalid-group-id"),
        ({"id": ".."}, "invalid-group-id"),
        ({"thenIf": "never"}, "invalid-group"),
        ({"onFailure": "retry"}, "invalid-group"),
        ({"then": {"command": "a", "payload": 1, "idempotencyKey": "k"}}, "invalid-group"),
        ({"then": {"command": "a", "payload": 1, "group": "g"}}, "invalid-group"),
        ({"tasks": [{"command": "a", "payload": 1, "group": "g"}]}, "invalid-group"),
        (
            {"tasks": [{"command": "a", "payload": 1, "idempotencyKey": "k"}] * 2},
            "duplicate-idempotency-key",
        ),
        ({"tasks": [{"command": "a", "payload": 1}] * 1001}, "out-of-range"),
        ({"sealWithinSeconds": 0}, "out-of-range"),
    ],
)
async def test_what_no_group_can_be_is_refused(world: World, body: object, code: str) -> None:
    """With the field that is at fault."""
    answer = await _post(world, "groups", body)

    assert (400, code) == (answer.status, answer.json["code"]), answer.body


async def test_an_unknown_group_is_not_found(world: World, name: str) -> None:
    """By each of its routes."""
    tasks = {"tasks": _tasks(name, 1)}
    answers = [
        await world.client.get(f"groups/{name}", token=ACME),
        await world.client.get(f"groups/{name}/results", token=ACME),
        await _post(world, f"groups/{name}/tasks", tasks),
        await _post(world, f"groups/{name}/seal"),
        await _post(world, f"groups/{name}/cancel"),
        await _post(world, "tasks", {**_tasks(name, 1)[0], "group": name}),
    ]

    assert [404] * 6 == [each.status for each in answers]
