"""Slow watchers: who does not read a stream of events costs the node little, and not for long."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import jwt
import pytest

from codeq_cluster.node.compose import Node
from codeq_cluster.settings import AuthProviderSettings, LimitSettings
from tests.integration.http.client import BASE, eventually, running_node, single

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "a secret of thirty-two bytes, at least so"
# 30 batches of 100 tasks, with events of 2 KiB: more than the kernel takes for a client.
BATCHES = 30
HELD_BYTES_MAX = 2 * 64 * 1024  # In memory for one watcher: what aiohttp holds, and one piece.
TAGS = {f"{n}" + "n" * 60: "x" * 128 for n in range(10)}


@pytest.mark.parametrize("ends_by", ["time to read", "token"])
async def test_a_watcher_that_does_not_read_is_cut(tmp_path: Path, ends_by: str) -> None:
    """After the time for any answer, and with its token at the latest; its place is free again."""
    by_token = ends_by == "token"
    limits = LimitSettings(body_timeout_ms=600_000 if by_token else 500)
    settings = single(tmp_path / "node", limits)
    provider = AuthProviderSettings(kind="hs256", secret=SECRET)
    auth = replace(settings.auth, producer=(*settings.auth.producer, provider))
    async with running_node(replace(settings, auth=replace(auth, clock_skew_seconds=0))) as (
        node,
        client,
    ):
        many = [{"command": "told-slow", "payload": 1, "tags": TAGS} for _ in range(100)]
        claims = {"sub": "eve", "tid": "acme", "scope": "codeq:read", "exp": int(time.time()) + 5}
        token = jwt.encode(claims, SECRET, algorithm="HS256") if by_token else "acme"
        engines = node.parts.replicas.engines
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", client.port))
            head = client.head("GET", f"{BASE}/events", 0, token=token, Accept="text/event-stream")
            await asyncio.get_running_loop().sock_sendall(slow, head)
            begun = await asyncio.get_running_loop().sock_recv(slow, 12)
            held = []

            async def is_cut() -> bool:
                held.append(_held(node))
                return not any(engine.tap for engine in engines)

            for _ in range(BATCHES):
                made = await client.post("tasks/batch", {"tasks": many})
                assert 200 == made.status, made.body
                await is_cut()
            await eventually(is_cut)
        served = await client.get("events")

    assert b"HTTP/1.1 200" == begun
    assert max(held) <= HELD_BYTES_MAX
    assert 200 == served.status


def _held(node: Node) -> int:
    """Return how many bytes the node keeps for clients that have not taken them."""
    assert node._serving is not None
    return sum(
        cast("asyncio.WriteTransport", each.transport).get_write_buffer_size()
        for each in node._serving.http._open
        if each.transport is not None
    )
