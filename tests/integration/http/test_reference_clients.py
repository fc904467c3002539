"""Reference clients: the behaviour that codeQ's own clients rely on, item by item."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.http.client import BASE, Client
from tests.integration.http.operating import died, finished

pytestmark = pytest.mark.asyncio(loop_scope="session")

ID = "00000000-0000-4000-8000-000000000000"
TASK_KEYS = {"id", "command", "payload", "status", "createdAt", "updatedAt"}
QUEUE_KEYS = {"command", "ready", "delayed", "inProgress", "dlq"}
URL = "https://example.com/wake"


@pytest.mark.parametrize("fields", [{}, {"priority": 0}, {"priority": 5}, {"delaySeconds": 0}])
async def test_a_create_is_202_with_the_six_keys(node: Client, fields: dict[str, object]) -> None:
    """Priority may be absent or 0."""
    answer = await node.post("tasks", {"command": "rc", "payload": {"a": 1}, **fields})

    assert 202 == answer.status
    assert set(answer.json) >= TASK_KEYS
    assert fields.get("priority", 0) == answer.json.get("priority", 0)


async def test_an_empty_payload_is_accepted_and_comes_back_as_text(node: Client) -> None:
    """Clients decode it as a string."""
    answer = await node.post("tasks", {"command": "rc", "payload": {}})

    assert (202, "{}") == (answer.status, answer.json["payload"])


@pytest.mark.parametrize(
    "body",
    [
        {"commands": [], "leaseSeconds": 300, "waitSeconds": 0},
        {"commands": None, "leaseSeconds": 300},
        {"commands": ["rc-none"]},
        {},
    ],
)
async def test_a_claim_that_finds_nothing_is_204_and_truly_empty(
    node: Client, body: dict[str, object]
) -> None:
    """The answer has no body and no length."""
    answer = await node.post("tasks/claim", body, token="idle")

    assert (204, b"") == (answer.status, answer.body)
    assert "0" == answer.headers.get("content-length", "0")


async def test_a_claim_without_commands_takes_any_of_the_tokens(node: Client) -> None:
    """An empty list counts as no list."""
    task_id = await node.create("rc-any")
    found = set()
    while (claimed := await node.post("tasks/claim", {"commands": []})).status == 200:
        found.add(claimed.json["id"])

    assert 204 == claimed.status
    assert task_id in found


async def test_a_batch_claim_that_finds_nothing_is_204(node: Client) -> None:
    """The answer is 204, as for a single claim."""
    answer = await node.post("tasks/claim/batch", {"count": 5, "commands": ["rc-none"]})

    assert (204, b"") == (answer.status, answer.body)


async def test_a_batch_claim_beyond_the_limit_is_400(node: Client) -> None:
    """The limit is 100 here and 10 in the reference; the error names it."""
    await node.create("rc-batch")
    within = await node.post("tasks/claim/batch", {"count": 11, "commands": ["rc-batch"]})
    beyond = await node.post("tasks/claim/batch", {"count": 101})

    assert 200 == within.status
    assert (400, "count exceeds maximum of 100") == (beyond.status, beyond.error)


async def test_an_empty_result_is_a_result(node: Client) -> None:
    """The result is stored and read back."""
    task_id = await node.create("rc-result")
    await node.claim("rc-result")
    answer = await node.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {}})

    assert 200 == answer.status
    assert set(answer.json) >= {"taskId", "status", "completedAt"}
    assert {} == answer.json["result"]


async def test_a_nack_says_where_the_task_went_and_for_how_long(node: Client) -> None:
    """Both keys are present, for a requeued task and for a dead letter."""
    again = await node.create("rc-nack")
    await node.claim("rc-nack")
    requeued = await node.post(f"tasks/{again}/nack", {"delaySeconds": 7, "reason": "later"})
    last = await node.create("rc-nack", maxAttempts=1)
    await node.claim("rc-nack")
    dead = await node.post(f"tasks/{last}/nack", {"delaySeconds": 7, "reason": "never"})

    assert (200, {"status": "requeued", "delaySeconds": 7}) == (requeued.status, requeued.json)
    assert (200, {"status", "delaySeconds"}) == (dead.status, set(dead.json))
    assert "dlq" == dead.json["status"]


async def test_heartbeat_and_abandon_answer_with_json(node: Client) -> None:
    """The answer is never an empty 200."""
    task_id = await node.create("rc-lease")
    await node.claim("rc-lease")
    beaten = await node.post(f"tasks/{task_id}/heartbeat", {"extendSeconds": 300})
    abandoned = await node.post(f"tasks/{task_id}/abandon", {})

    assert (200, True) == (beaten.status, beaten.json["ok"])
    assert (200, {"status": "requeued"}) == (abandoned.status, abandoned.json)


async def test_a_subscription_has_its_two_keys_made_or_renewed(node: Client) -> None:
    """A renewal with `{}`, `null` or a time to live works."""
    made = await node.post("workers/subscriptions", {"callbackUrl": URL, "eventTypes": ["rc"]})
    path = f"workers/subscriptions/{made.json['subscriptionId']}/heartbeat"
    renewed = [await node.post(path, body) for body in (b"{}", b"null", b'{"ttlSeconds":60}')]

    for answer in (made, *renewed):
        assert 200 == answer.status
        assert set(answer.json) >= {"subscriptionId", "expiresAt"}
    assert "not-found" == (await node.post(f"workers/subscriptions/{ID}/heartbeat", {})).error


async def test_a_result_that_is_not_there_yet_is_not_found(node: Client) -> None:
    """The error has the words that waiting clients look for."""
    task_id = await node.create("rc-pending")
    answer = await node.get(f"tasks/{task_id}/result")
    done = await finished(node, "rc-finished")
    both = await node.get(f"tasks/{done}/result")

    assert (404, "result not found") == (answer.status, answer.error)
    assert set(both.json) >= {"task", "result"}


@pytest.mark.parametrize("body", [b"{}", b"null", b"", b'{"limit":5}'])
async def test_a_cleanup_has_its_three_keys(node: Client, body: bytes) -> None:
    """The answer has the keys whatever was sent, with the limit in force."""
    answer = await node.post("admin/tasks/cleanup", body)

    assert 200 == answer.status
    assert {"deleted", "before", "limit"} == set(answer.json)
    assert (5 if body.startswith(b'{"l') else 1000) == answer.json["limit"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"tasks/{ID}", 404),
        ("GET", f"tasks/{ID}/result", 404),
        ("POST", "tasks", 400),
        ("POST", "tasks/claim", 400),
        ("POST", f"tasks/{ID}/heartbeat", 400),
        ("POST", f"tasks/{ID}/abandon", 404),
        ("GET", "nowhere", 404),
        ("DELETE", "tasks", 405),
    ],
)
async def test_the_body_of_an_error_is_json_with_its_text(
    node: Client, method: str, path: str, status: int
) -> None:
    """The text is under `error`."""
    answer = await node.send(method, path, b"")

    assert status == answer.status
    assert answer.headers["content-type"].startswith("application/json")
    assert isinstance(answer.error, str)
    assert answer.error


async def test_unknown_fields_are_ignored_but_where_a_misspelt_one_would_mean_more(
    node: Client,
) -> None:
    """Newer clients may send fields that older servers do not know."""
    extra = {"surprise": {"deep": [1]}, "another": None}
    made = await node.post("tasks", {"command": "rc-extra", "payload": 1, **extra})
    task_id = made.json["id"]
    claimed = await node.post("tasks/claim", {"commands": ["rc-extra"], **extra})
    paths: list[tuple[str, dict[str, object]]] = [
        (f"tasks/{task_id}/heartbeat", {}),
        (f"tasks/{task_id}/nack", {"delaySeconds": 0}),
        ("tasks/batch", {"tasks": [{"command": "rc-extra-2", "payload": 1, **extra}]}),
        ("tasks/claim/batch", {"count": 1, "commands": ["rc-extra-2"]}),
        ("workers/subscriptions", {"callbackUrl": URL}),
        ("admin/tasks/cleanup", {}),
    ]
    answers = [await node.post(path, {**body, **extra}) for path, body in paths]
    topic = await node.send("PUT", "admin/topics/rc-extra", b'{"surprise":1}')
    selection = await node.post("admin/queues/rc-extra/dlq/requeue", extra)

    assert (202, 200) == (made.status, claimed.status)
    assert [200] * len(paths) == [each.status for each in answers]
    assert (422, "surprise") == (topic.status, topic.json["field"])
    assert (400, "unknown-name") == (selection.status, selection.json["code"])


async def test_healthz_is_200(node: Client) -> None:
    """It needs no token and is outside of the base path."""
    answer = await node.send("GET", "/healthz", b"", token="")

    assert (200, {"status": "ok"}) == (answer.status, answer.json)


async def test_errors_of_a_batchs_items_are_inside_a_200(node: Client) -> None:
    """The order is kept, and each item has its own error."""
    created = await node.post(
        "tasks/batch",
        {"tasks": [{"command": "a b", "payload": 1}, {"command": "rc", "payload": 1}]},
    )
    ended = await node.post(
        "tasks/batch/results", {"results": [{"taskId": ID, "status": "FAILED", "error": "e"}]}
    )
    created_items: Any = created.json["results"]
    first, second = created_items

    assert (200, 200) == (created.status, ended.status)
    assert set(first) >= {"error"}
    assert {"task"} == set(second)
    ended_items: Any = ended.json["results"]
    [result] = ended_items
    assert (ID, "task not found") == (result["taskId"], result["error"])


@pytest.mark.parametrize("item_id", ["a%2Fb", "%2F", "%2F%2F", "a%2F..%2Fb"])
async def test_an_id_with_a_slash_in_it_does_no_harm(node: Client, item_id: str) -> None:
    """No route finds it."""
    paths = [
        ("GET", f"tasks/{item_id}"),
        ("GET", f"tasks/{item_id}/result"),
        ("GET", f"tasks/{item_id}/explain"),
        ("POST", f"tasks/{item_id}/abandon"),
        ("POST", f"tasks/{item_id}/cancel"),
        ("POST", f"workers/subscriptions/{item_id}/heartbeat"),
        ("DELETE", f"workers/subscriptions/{item_id}"),
        ("GET", f"admin/queues/c/dlq/{item_id}"),
        ("POST", f"admin/deliveries/{item_id}/replay"),
    ]
    for method, path in paths:
        answer = await node.send(method, f"{BASE}/{path}", b"")

        assert (404, "not-found") == (answer.status, answer.json["code"]), path


async def test_queues_are_an_array_of_their_statistics(node: Client) -> None:
    """Each entry has every key, and all values are integers."""
    await died(node, "rc-stats")
    answer = await node.get("admin/queues")
    one = await node.get("admin/queues/rc-stats")
    unheard = await node.get("admin/queues/rc-unheard")
    listed: Any = answer.json

    assert isinstance(listed, list)
    assert all(set(each) >= QUEUE_KEYS for each in listed)
    assert 1 == one.json["dlq"]
    assert {
        "command": "rc-unheard",
        "ready": 0,
        "delayed": 0,
        "inProgress": 0,
        "dlq": 0,
    } == {name: unheard.json[name] for name in QUEUE_KEYS}
