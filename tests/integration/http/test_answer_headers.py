"""Headers of answers: no cache may keep an answer, and no header names the software."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from codeq_cluster.settings import LimitSettings
from tests.integration.http.client import DEADLINE_S, Answer, Client, read_answer, running
from tests.integration.http.conftest import Running

GUARDING = {
    "server": "codeq-cluster",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
# Answers of these routes say themselves what a browser may keep, or what their page may do.
OWN = {"cache-control", "content-security-policy"}


async def first_answer(node: Client, raw: bytes) -> Answer:
    """Return the answer to raw bytes."""
    reader, writer = await node.connect()
    writer.write(raw)
    return await asyncio.wait_for(read_answer(reader), DEADLINE_S)


async def taking_the_place(node: Client) -> asyncio.StreamWriter:
    """Return a connection that is served, once there is room for one."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            reader, writer = await node.connect()
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
            if (await read_answer(reader)).status == 200:
                return writer


@pytest.mark.asyncio(loop_scope="session")
async def test_every_kind_of_answer_is_guarded(node: Client) -> None:
    """Handler, listener, router and parser all answer with these headers and the request's id."""
    answers = {
        "a success": await node.get("raft/status"),
        "without a body": await node.post("tasks/claim", {"commands": ["nothing"]}),
        "a refusal": await node.post("tasks", {}),
        "no token": await node.get("raft/status", token=""),
        "open to all": await node.get("/healthz"),
        "metrics": await node.get("/metrics"),
        "the document": await node.get("/openapi.json"),
        "its page": await node.get("/docs"),
        "no route": await node.get("/nothing"),
        "no method": await node.post("/healthz"),
        "too large": await node.post("tasks", b" " * (2**20 + 1)),
        "no HTTP": await first_answer(node, b"nonsense\r\n\r\n"),
        "no expectation": await node.post("tasks", Expect="magic"),
    }

    assert {200, 204, 400, 401, 404, 405, 413, 417} == {each.status for each in answers.values()}
    for kind, answer in answers.items():
        own = {"content-security-policy"} if kind == "its page" else set()
        expected = {name: text for name, text in GUARDING.items() if name not in own}
        assert expected.items() <= answer.headers.items(), kind
        assert GUARDING.keys() <= answer.headers.keys(), kind
        assert answer.headers["x-request-id"], kind
        assert "aiohttp" not in str(answer.headers).lower(), kind
        assert "python" not in str(answer.headers).lower(), kind


async def test_a_connection_beyond_the_bound_gets_the_usual_headers(node_with: Running) -> None:
    """The refusal precedes any request, so the node draws the request id."""
    async with node_with(connections_max=1) as node:
        writer = await taking_the_place(node)
        turned_away = await first_answer(node, b"")
        writer.close()

    assert GUARDING == {name: turned_away.headers.get(name) for name in GUARDING}
    assert 32 == len(turned_away.headers["x-request-id"])
    assert {
        "error": "too many connections",
        "code": "overloaded",
        "retryable": True,
        "requestId": turned_away.headers["x-request-id"],
    } == turned_away.json


@pytest.mark.asyncio(loop_scope="session")
async def test_every_route_in_the_table_is_guarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a token and without, for the API, the page, its files and the open routes."""
    routes: set[tuple[str, str]] = set()
    add_route = web.UrlDispatcher.add_route

    def noting(router: web.UrlDispatcher, method: str, path: str, handler: Any) -> Any:
        routes.add((method, re.sub(r"{[^}]*}", "x", path)))
        return add_route(router, method, path, handler)

    monkeypatch.setattr(web.UrlDispatcher, "add_route", noting)
    async with running(tmp_path, LimitSettings()) as client:
        for method, path in sorted(routes):
            for token in ("", "acme"):
                answer = await client.send(method, path, b"", token=token)
                wrong = {name for name in GUARDING if answer.headers.get(name) != GUARDING[name]}

                assert wrong <= OWN & answer.headers.keys(), (method, path, answer.status)
                assert answer.headers["x-request-id"], (method, path)
    assert len(routes) > 80
