"""OpenAPI on a real node: every described route exists, and answers match the description."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass

import pytest

from tests.harness.ports import dead_url
from tests.integration.http.client import BASE, OPERATOR, Answer, Client
from tests.integration.http.operating import died
from tests.unit.api.openapi.described import JSON, Described

pytestmark = pytest.mark.asyncio(loop_scope="session")

ID = "00000000-0000-4000-8000-000000000000"
# The document says them once: a generator would make a type of them for each answer.
OF_EVERY_ANSWER = {"x-request-id", "x-content-type-options", "x-frame-options"}


@dataclass(slots=True)
class Checked:
    """Sends requests, and checks each answer against the node's own document."""

    node: Client
    described: Described

    async def send(self, method: str, route: str, body: object = None, **path: str) -> Answer:
        """Send one request with a token for everything; `path` fills in the route."""
        return await self.send_as(self.node.token, method, route, body, **path)

    async def send_as(
        self, token: str, method: str, route: str, body: object = None, **path: str
    ) -> Answer:
        """Send one request; the route may have a query."""
        raw = b"" if body is None else json.dumps(body).encode()
        answer = await self.node.send(method, route.format(**path), raw, token=token)
        said = self.described.answer(method, route.partition("?")[0], answer.status)
        content = said.get("content", {})
        if JSON in content:
            assert answer.headers["content-type"].startswith(JSON)
            faults = self.described.faults(content[JSON]["schema"], json.loads(answer.body))
            assert [] == faults, (method, route, answer.status)
        else:
            assert bool(content) == bool(answer.body)
        promised = {name.lower() for name in said.get("headers", {})} | OF_EVERY_ANSWER
        assert {name for name in answer.headers if name.startswith("x-")} <= promised
        return answer


async def checked(node: Client) -> Checked:
    """Read the node's document, which needs no token."""
    answer = await node.send("GET", "/openapi.json", b"", token="")
    assert 200 == answer.status
    return Checked(node, Described(answer.json))


async def test_what_is_described_is_served(node: Client) -> None:
    """Without a token each route refuses or answers; none is unknown."""
    described = (await checked(node)).described
    for path, method, operation in described.operations():
        answer = await node.send(method, re.sub(r"{\w+}", "c", path), b"", token="")

        assert (401 if operation["security"] else 200) == answer.status, (method, path)


async def test_a_life_of_tasks_is_answered_as_described(node: Client) -> None:
    """From create to result, single and in batches, every field of an answer is described."""
    api = await checked(node)
    task = {"command": "described", "payload": {"n": 1}}
    full = task | {"priority": 3, "webhook": "https://example.com/told", "idempotencyKey": "told"}

    made = await api.send("POST", f"{BASE}/tasks", full)
    replayed = await api.send("POST", f"{BASE}/tasks", full)
    batch = {"tasks": [task, task, task | {"delaySeconds": 60}, {"command": "no spaces"}]}
    created = await api.send("POST", f"{BASE}/tasks/batch", batch)
    delayed = created.json["results"][2]["task"]["id"]  # type: ignore[index]
    want = {"commands": ["described"]}
    first = (await api.send("POST", f"{BASE}/tasks/claim", want)).json
    rest = await api.send("POST", f"{BASE}/tasks/claim/batch", want | {"count": 5})
    none = await api.send("POST", f"{BASE}/tasks/claim", want)
    one = str(first["id"])
    second, third = (each["id"] for each in rest.json["tasks"])  # type: ignore[attr-defined]
    token = {"leaseToken": first["leaseToken"]}
    beaten = await api.send("POST", f"{BASE}/tasks/{{id}}/heartbeat", token, id=one)
    held = await api.send("GET", f"{BASE}/tasks/{{id}}", id=one)
    result = {"status": "COMPLETED", "result": {}, "artifacts": [{"name": "a", "url": "u"}]}
    ended = await api.send("POST", f"{BASE}/tasks/{{id}}/result", result | token, id=one)
    both = await api.send("GET", f"{BASE}/tasks/{{id}}/result?waitSeconds=1", id=one)
    stale = await api.send("GET", f"{BASE}/tasks/{{id}}?consistency=stale", id=one)
    nacked = await api.send(
        "POST", f"{BASE}/tasks/{{id}}/nack", {"delaySeconds": 60, "reason": "r"}, id=second
    )
    abandoned = await api.send("POST", f"{BASE}/tasks/{{id}}/abandon", id=third)
    await api.send("POST", f"{BASE}/tasks/claim", want)
    failed = {"taskId": third, "status": "FAILED", "error": "e"}
    unknown = failed | {"taskId": ID}
    results = await api.send("POST", f"{BASE}/tasks/batch/results", {"results": [failed, unknown]})
    returned = await api.send("GET", f"{BASE}/tasks/{{id}}", id=second)
    cancelled = [
        await api.send("POST", f"{BASE}/tasks/{{id}}/cancel", id=each) for each in (second, delayed)
    ]

    assert (202, 202, 204) == (made.status, replayed.status, none.status)
    assert "true" == replayed.headers["x-codeq-idempotent-replay"]
    assert all(
        each.status == 200
        for each in (created, beaten, held, ended, both, stale, nacked, abandoned, results)
    )
    assert returned.json["history"]
    assert [200, 200] == [each.status for each in cancelled]


async def test_an_operators_day_is_answered_as_described(node: Client) -> None:
    """Topics, pauses, dead letters, lists, deliveries, audit, subscriptions and cluster match."""
    api = await checked(node)
    command = "operated"
    queue = f"{BASE}/admin/queues/{{command}}"
    topic = f"{BASE}/admin/topics/{{name}}"
    policy = {"maxAttempts": 9, "priorityTiers": [1], "deadLetterTopicRef": "operated-dead"}
    answers = [
        await api.send("PUT", topic, policy, name="described"),
        await api.send("PUT", topic, policy | {"weight": 2}, name="described"),
        await api.send("GET", topic, name="described"),
        await api.send("GET", f"{BASE}/admin/topics?limit=1"),
        await api.send("POST", f"{queue}/pause", command=command),
        await api.send("GET", queue, command=command),
        await api.send("GET", f"{BASE}/admin/queues"),
        await api.send("POST", f"{queue}/resume", command=command),
        await api.send("DELETE", f"{topic}?deletionPolicy=Delete", name="described"),
    ]
    assert [201, *[200] * 7, 204] == [each.status for each in answers]

    one, two = [await died(node, command, webhook=dead_url()) for _ in range(2)]
    dlq = f"{queue}/dlq"
    answers = [
        await api.send("GET", f"{dlq}?limit=1", command=command),
        await api.send("GET", f"{dlq}?groupBy=error", command=command),
        await api.send("GET", f"{dlq}/{{id}}", command=command, id=one),
        await api.send("GET", f"{BASE}/tasks/{{id}}/explain", id=one),
        await api.send("GET", f"{BASE}/admin/tasks?limit=1&status=FAILED"),
        await api.send("GET", f"{BASE}/admin/deliveries?limit=1"),
        await api.send("POST", f"{BASE}/admin/deliveries/replay", {"ids": [f"{one}.1"]}),
        await api.send("GET", f"{BASE}/admin/aside?limit=1"),
        await api.send("POST", f"{BASE}/admin/aside/retry", {"all": True}),
        await api.send_as(OPERATOR, "GET", f"{BASE}/admin/cluster/aside"),
        await api.send_as(OPERATOR, "POST", f"{BASE}/admin/cluster/aside/retry", {"all": True}),
        await api.send("POST", f"{dlq}/requeue", {"dryRun": True}, command=command),
        await api.send("POST", f"{dlq}/{{id}}/requeue", command=command, id=one),
        await api.send("DELETE", f"{dlq}/{{id}}", command=command, id=two),
        await api.send("DELETE", f"{dlq}?dryRun=true", command=command),
        await api.send("POST", f"{BASE}/admin/tasks/cleanup", {}),
        await api.send("GET", f"{BASE}/admin/audit?limit=1"),
        await api.send_as(OPERATOR, "GET", f"{BASE}/admin/cluster"),
        await api.send_as(
            OPERATOR, "POST", f"{BASE}/admin/cluster/transfer", {"shard": 0, "to": "n1"}
        ),
        await api.send_as(OPERATOR, "POST", f"{BASE}/admin/cluster/upgrade", {"dryRun": True}),
        await api.send("POST", f"{BASE}/tasks/{{id}}/cancel", id=one),
    ]
    assert [200] * len(answers) == [each.status for each in answers]

    subscriptions = f"{BASE}/workers/subscriptions"
    body = {"callbackUrl": "https://example.com/", "deliveryMode": "group", "groupId": "g"}
    made = await api.send("POST", subscriptions, body)
    subscription_id = str(made.json["subscriptionId"])
    answers = [
        await api.send("POST", f"{subscriptions}/{{id}}/heartbeat", id=subscription_id),
        await api.send("GET", f"{subscriptions}?limit=1"),
        await api.send("DELETE", f"{subscriptions}/{{id}}", id=subscription_id),
    ]
    assert [200, 200, 204] == [each.status for each in answers]


@pytest.mark.parametrize(
    "route",
    [
        f"{BASE}/raft/status",
        f"{BASE}/admin/queues",
        f"{BASE}/admin/queues/{{command}}",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/docs",
    ],
)
async def test_a_question_is_answered_as_described(node: Client, route: str) -> None:
    """The answers of all other reading routes match."""
    answer = await (await checked(node)).send("GET", route, command="c")

    assert 200 == answer.status


@pytest.mark.parametrize(
    ("token", "route", "body", "code"),
    [
        ("", "POST /tasks", {}, "unauthorized"),
        ("homeless", "POST /tasks", {}, "forbidden"),
        ("narrow", "POST /tasks/{id}/nack", {}, "forbidden"),
        ("narrow", "GET /admin/queues", None, "unauthorized"),
        ("acme", "GET /admin/cluster", None, "forbidden"),
        (OPERATOR, "GET /admin/queues", None, "unauthorized"),
        ("narrow", "POST /tasks/claim", {"commands": ["c"]}, "event-type-not-allowed"),
        ("acme", "POST /tasks", {}, "invalid-body"),
        ("acme", "POST /tasks", {"command": " ", "payload": 1}, "invalid-command"),
        ("acme", "POST /tasks/batch", {"tasks": [{}] * 101}, "batch-too-large"),
        ("acme", "POST /tasks/claim/batch", {"count": 101}, "count-too-large"),
        ("acme", "POST /tasks/claim", {"leaseSeconds": 99999}, "out-of-range"),
        ("acme", "POST /tasks/{id}/heartbeat", {}, "not-found"),
        ("acme", "POST /tasks/{id}/result", {"status": "COMPLETED"}, "result-required"),
        ("acme", "POST /tasks/{id}/cancel", None, "not-found"),
        ("acme", "GET /tasks/{id}", None, "not-found"),
        ("acme", "GET /tasks/{id}?consistency=some", None, "invalid-consistency"),
        ("acme", "GET /tasks/{id}/explain?consistency=stale", None, "invalid-consistency"),
        ("acme", "GET /tasks/{id}/result?waitSeconds=x", None, "invalid-query"),
        ("acme", "GET /tasks/{id}/explain", None, "not-found"),
        ("acme", "GET /admin/tasks?status=x", None, "invalid-status"),
        ("acme", "GET /admin/tasks?cursor=x", None, "invalid-cursor"),
        ("acme", "GET /admin/audit?limit=0", None, "out-of-range"),
        ("acme", "GET /admin/deliveries?limit=x", None, "invalid-query"),
        ("acme", "POST /admin/tasks/cleanup", {"before": "x"}, "invalid-before"),
        ("acme", "POST /admin/deliveries/replay", {}, "ids-required"),
        ("acme", "POST /admin/aside/retry", {}, "ids-required"),
        ("acme", "POST /admin/deliveries/replay", {"ids": []}, "invalid-ids"),
        ("acme", "POST /admin/deliveries/{id}/replay", None, "not-found"),
        (OPERATOR, "POST /admin/cluster/transfer", {"shard": 0, "to": "n9"}, "no-such-node"),
        (OPERATOR, "POST /admin/cluster/transfer", {"shard": 0}, "not-transferred"),
        (OPERATOR, "POST /admin/cluster/upgrade", {"level": 0}, "out-of-range"),
        (OPERATOR, "POST /admin/cluster/upgrade", {"level": 9}, "level-unknown"),
        ("acme", "POST /workers/subscriptions", {"callbackUrl": "x"}, "invalid-callback-url"),
        ("narrow", "GET /workers/subscriptions", None, "forbidden"),
        ("acme", "PUT /admin/topics/{name}", {"weight": 0}, "invalid-field"),
        ("acme", "GET /admin/topics/{name}", None, "not-found"),
        ("acme", "DELETE /admin/topics/{name}", None, "deletion-policy-required"),
    ],
)
async def test_a_refusal_is_told_as_described(
    node: Client, token: str, route: str, body: object, code: str
) -> None:
    """The document lists the refusal's code for that route and status."""
    api = await checked(node)
    method, _, path = route.partition(" ")
    answer = await api.send_as(token, method, BASE + path, body, id=ID, name="nothing")

    assert code == answer.json["code"]


async def test_the_page_may_run_what_is_written_in_it_and_nothing_else(node: Client) -> None:
    """The policy names the hashes of the page's only script and only style."""
    answer = await node.send("GET", "/docs", b"", token="")
    policy = answer.headers["content-security-policy"]
    hashes = [
        "'sha256-" + base64.b64encode(hashlib.sha256(text).digest()).decode() + "'"
        for tag in (b"script", b"style")
        for text in re.findall(b"<%b>(.*?)</%b>" % (tag, tag), answer.body, re.DOTALL)
    ]

    assert "text/html; charset=utf-8" == answer.headers["content-type"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert 2 == len(hashes)
    assert all(each in policy for each in hashes)
    assert b"style=" not in answer.body
