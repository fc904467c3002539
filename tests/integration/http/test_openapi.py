"""OpenAPI on a real node: what is described is served, and answers look as described."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass

import pytest

from tests.integration.http.client import BASE, Answer, Client
from tests.unit.api.described import JSON, Described

pytestmark = pytest.mark.asyncio(loop_scope="session")

ID = "00000000-0000-4000-8000-000000000000"


@dataclass(slots=True)
class Checked:
    """Sends requests, and holds each answer against the node's own document."""

    node: Client
    described: Described

    async def send(self, method: str, route: str, body: object = None, **path: str) -> Answer:
        """Send one request by the token that may do everything; `path` fills in the route."""
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
            assert faults == [], (method, route, answer.status)
        else:
            assert bool(answer.body) == bool(content)
        promised = {name.lower() for name in said["headers"]}
        assert {name for name in answer.headers if name.startswith("x-")} <= promised
        return answer


async def checked(node: Client) -> Checked:
    """Read the node's document, as anybody may."""
    answer = await node.send("GET", "/openapi.json", b"", token="")
    assert answer.status == 200
    return Checked(node, Described(answer.json))


async def test_what_is_described_is_served(node: Client) -> None:
    """Without a token each route is refused, or answers; none is unknown."""
    described = (await checked(node)).described
    for path, method, operation in described.operations():
        answer = await node.send(method, path.format(id=ID, command="c"), b"", token="")

        assert answer.status == (401 if operation["security"] else 200), (method, path)


async def test_a_life_of_tasks_is_answered_as_described(node: Client) -> None:
    """From create to result, singly and in batches, with every field that came named."""
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

    assert (made.status, replayed.status, none.status) == (202, 202, 204)
    assert replayed.headers["x-codeq-idempotent-replay"] == "true"
    assert all(
        each.status == 200
        for each in (created, beaten, held, ended, both, stale, nacked, abandoned, results)
    )
    assert returned.json["history"]
    assert [each.status for each in cancelled] == [200, 200]


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
    """The rest of what can be read."""
    answer = await (await checked(node)).send("GET", route, command="c")

    assert answer.status == 200


@pytest.mark.parametrize(
    ("token", "route", "body", "code"),
    [
        ("", "POST /tasks", {}, "unauthorized"),
        ("homeless", "POST /tasks", {}, "forbidden"),
        ("narrow", "POST /tasks/{id}/nack", {}, "forbidden"),
        ("narrow", "GET /admin/queues", None, "unauthorized"),
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
        ("acme", "GET /tasks/{id}/result?waitSeconds=x", None, "invalid-query"),
    ],
)
async def test_a_refusal_is_told_as_described(
    node: Client, token: str, route: str, body: object, code: str
) -> None:
    """Its code is among those the document gives for that route and status."""
    api = await checked(node)
    method, _, path = route.partition(" ")
    answer = await api.send_as(token, method, BASE + path, body, id=ID)

    assert answer.json["code"] == code


async def test_the_page_may_run_what_is_written_in_it_and_nothing_else(node: Client) -> None:
    """The policy names the hashes of its one script and its one style."""
    answer = await node.send("GET", "/docs", b"", token="")
    policy = answer.headers["content-security-policy"]
    hashes = [
        "'sha256-" + base64.b64encode(hashlib.sha256(text).digest()).decode() + "'"
        for tag in (b"script", b"style")
        for text in re.findall(b"<%b>(.*?)</%b>" % (tag, tag), answer.body, re.DOTALL)
    ]

    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(hashes) == 2
    assert all(each in policy for each in hashes)
    assert b"style=" not in answer.body
