"""Bodies under way: no tenant takes another's room, and none keeps its own by sending slowly."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from codeq_cluster.api.http.bodies import result_bytes_max
from codeq_cluster.settings import LimitSettings, NodeSettings
from tests.integration.http.artifacts import LIMITS, local
from tests.integration.http.client import (
    DEADLINE_S,
    Client,
    eventually,
    read_answer,
    serving,
    single,
)
from tests.integration.http.conftest import Running

_RESULT = "tasks/unheard-of/result"
_SLOW = {"header_timeout_ms": 300, "body_timeout_ms": 600_000}


def _settings(tmp_path: Path) -> NodeSettings:
    """Return the settings of a node whose results may have 30 MB of artifacts."""
    limits = replace(LIMITS, max_artifact_bytes=24 * 2**20)
    return replace(single(tmp_path / "data", limits), artifacts=local(tmp_path / "artifacts"))


async def test_announcements_of_large_bodies_take_no_room(tmp_path: Path) -> None:
    """Idle clients may announce any number of bytes: only those that came count."""
    settings = _settings(tmp_path)
    size = result_bytes_max(settings)
    async with serving(settings) as node:
        for _ in range(20):
            _, writer = await node.connect()
            writer.write(node.head("POST", _RESULT, size))
        # Their requests are being read by now: the node reads connections in order.
        answers = [
            await node.post(_RESULT, bytes(size), token=token) for token in ("acme", "other")
        ]

        assert ["invalid-body"] * 2 == [answer.json["code"] for answer in answers]


async def test_a_tenant_that_fills_its_room_leaves_another_the_largest_body(tmp_path: Path) -> None:
    """The greedy tenant is refused as its bytes come, and told to retry."""
    settings = _settings(tmp_path)
    size = result_bytes_max(settings)
    async with serving(settings) as node:
        senders = []

        async def send_nearly_all() -> None:
            reader, writer = await node.connect()
            writer.write(node.head("POST", _RESULT, size) + bytes(size - 1))
            senders.append(asyncio.ensure_future(read_answer(reader)))

        async with asyncio.timeout(DEADLINE_S):
            while not (ended := [each for each in senders if each.done()]):
                await send_nearly_all()
                await asyncio.wait(senders, timeout=0.1)
        other = await node.post(_RESULT, bytes(size), token="other")
        for each in senders:
            each.cancel()
        for writer in node.open:
            writer.close()
        again = await eventually(
            lambda: node.post(_RESULT, bytes(size)), lambda answer: answer.status != 503
        )

        refused = ended[0].result()
        assert (503, "not-applied") == (refused.status, refused.headers["x-outcome"])
        assert "invalid-body" == other.json["code"] == again.json["code"]


@pytest.mark.parametrize("path", ["tasks", _RESULT, "admin/import"])
async def test_a_body_slower_than_the_least_rate_is_ended(node_with: Running, path: str) -> None:
    """Single bytes end with 408 long before the time for a body is over."""
    query = "?tenant=acme&backup=20260131T123000000Z-5f0c4a2e" if path == "admin/import" else ""
    async with node_with(**_SLOW) as node:
        answer = await _dripped(node, node.head("POST", path + query, 1000))

        assert (408, "request-timeout") == answer


async def test_an_upload_slower_than_the_least_rate_is_ended(tmp_path: Path) -> None:
    """Artifacts are streamed, but hold one of few places meanwhile."""
    settings = replace(_settings(tmp_path), limits=LimitSettings(**_SLOW))
    async with serving(settings) as node:
        task_id = await node.create()
        await node.claim()
        answer = await _dripped(node, node.head("PUT", f"tasks/{task_id}/artifacts/a", 1000))

        assert (408, "request-timeout") == answer


async def test_a_body_at_the_least_rate_is_read_to_its_end(node_with: Running) -> None:
    """It may take longer than the node waits for its first byte."""
    async with node_with(
        header_timeout_ms=1000, body_timeout_ms=600_000, body_bytes_per_s_min=1
    ) as node:
        body = json.dumps({"command": "c", "payload": "x" * 40}).encode()
        reader, writer = await node.connect()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        writer.write(node.head("POST", "tasks", len(body)) + body[:20])
        answering = asyncio.ensure_future(read_answer(reader))
        # 20 bytes bought 20 s, of which it takes a little more than the first second.
        await asyncio.wait([answering], timeout=1.5)
        writer.write(body[20:])
        answer = await asyncio.wait_for(answering, DEADLINE_S)

        assert 202 == answer.status
        assert loop.time() - began_s > 1.0


async def test_a_tenant_whose_imports_stall_leaves_room_for_another(node_with: Running) -> None:
    """Two of four parts may be its own; the next is refused at once."""
    async with node_with() as node:
        path = "admin/import?backup=20260131T123000000Z-5f0c4a2e&tenant="

        async def refuse() -> bool:
            _, writer = await node.connect()
            writer.write(node.head("POST", f"{path}acme", 1000))
            return (await node.post(f"{path}acme", b"{}")).status == 503

        refused = await eventually(refuse)
        other = await node.post(f"{path}other", b"{}", token="other")

        assert refused
        assert (400, "invalid-body") == (other.status, other.json["code"])


async def _dripped(node: Client, head: bytes) -> tuple[int, object]:
    """Send a head and then single bytes until there is an answer; return its status and code."""
    reader, writer = await node.connect()
    writer.write(head)
    answering = asyncio.ensure_future(read_answer(reader))
    async with asyncio.timeout(DEADLINE_S):
        while not answering.done():
            writer.write(b" ")
            await asyncio.wait([answering], timeout=0.02)
    answer = answering.result()
    assert 200 == (await eventually(lambda: node.get("/readyz"))).status
    return answer.status, answer.json["code"]
