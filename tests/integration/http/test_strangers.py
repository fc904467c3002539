"""Strangers: what callers without a token can take of a node, by address and in all.

Each loopback address stands for another machine.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from codeq_cluster.settings import AuthProviderSettings, LimitSettings, ProxySettings
from tests.integration.http.client import (
    DEADLINE_S,
    Answer,
    Client,
    eventually,
    read_answer,
    serving,
    single,
)
from tests.integration.http.conftest import Running

_ASK = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"
_FLOOD, _OTHER = "127.0.0.2", "127.0.0.3"
_MANY = 40
_JSON = "application/json"


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


# A token whose key the node has to ask for.
_UNPUBLISHED = ".".join(map(_part, ({"alg": "RS256", "kid": "k"}, {"sub": "s"}, {})))


async def test_an_address_leaves_connections_to_others(node_with: Running) -> None:
    """One that opens all it can gets half."""
    async with node_with(connections_max=_MANY) as node:
        kept = await _flood(node)
        served = await _asked(node, _OTHER)

        assert 0 < kept <= _MANY // 2
        assert 200 == served.status


async def test_a_trusted_proxy_has_no_share(tmp_path: Path) -> None:
    """It stands for all its users, so it may take every connection."""
    settings = replace(
        single(tmp_path / "node", LimitSettings(connections_max=_MANY)),
        proxies=ProxySettings(trusted=(_FLOOD,)),
    )
    async with serving(settings) as node:
        assert await _flood(node) > _MANY - 3


@pytest.mark.parametrize("line", [b"X-Long: " + b"y" * 4000, b"X: y"], ids=["long", "short"])
@pytest.mark.parametrize("before", [b"", _ASK], ids=["first", "second"])
@pytest.mark.parametrize("end", [b"", b"\r\n"], ids=["part", "whole"])
async def test_a_head_has_at_most_32_kib(
    node_with: Running, line: bytes, before: bytes, end: bytes
) -> None:
    """All lines count together, whether the head's end has come or not."""
    async with node_with() as node:
        reader, writer = await node.connect()
        if before:
            writer.write(before)
            assert 200 == (await read_answer(reader)).status
        writer.write(_ASK[:-2] + (line + b"\r\n") * (33 * 1024 // len(line) + 1) + end)
        answer = await asyncio.wait_for(read_answer(reader), DEADLINE_S)

        assert (431, "head-too-large") == (answer.status, answer.json["code"])


async def test_a_large_head_after_a_chunked_body_is_refused(node_with: Running) -> None:
    """Its beginning is known to the library alone."""
    async with node_with() as node:
        reader, writer = await node.connect()
        head = node.head("POST", "tasks", 0)
        writer.write(head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        writer.write(b"2\r\n{}\r\n0\r\n\r\n" + _ASK[:-2])
        first = await asyncio.wait_for(read_answer(reader), DEADLINE_S)
        for _ in range(9):
            writer.write(b"X-Long: " + b"y" * 4000 + b"\r\n")
            await writer.drain()
        refused = await asyncio.wait_for(read_answer(reader), DEADLINE_S)

        assert (400, 431) == (first.status, refused.status)


async def test_incomplete_heads_have_bounded_room(node_with: Running) -> None:
    """An address is refused beyond half of it; another's heads may still come in parts."""
    async with node_with(unauthenticated_bytes_max=2**18) as node:
        half = _ASK[:-2] + b"X-Half: " + b"y" * 8000
        answers = []
        for _ in range(2 * 2**18 // len(half)):
            reader, writer = await _from(node, _FLOOD)
            writer.write(half)
            answers.append(asyncio.ensure_future(read_answer(reader)))
        done, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        reader, writer = await _from(node, _OTHER)
        for piece in (half, b"\r\n\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        served = await asyncio.wait_for(read_answer(reader), DEADLINE_S)
        for each in waiting:
            each.cancel()

        assert {(503, "overloaded")} == {
            (each.result().status, each.result().json["code"]) for each in done
        }
        assert 200 == served.status


async def test_a_log_in_has_at_most_8_kib(node_with: Running) -> None:
    """A larger one is refused by its announced length, or as its bytes come."""
    async with node_with() as node:
        body = json.dumps({"token": "x" * 8192}).encode()
        json_type = {"Content_Type": "application/json"}
        announced = await node.post("/ui/api/session", body, token="", **json_type)
        reader, writer = await node.connect()
        head = node.head("POST", "/ui/api/session", 0, token="", **json_type)
        writer.write(head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        writer.write(b"2001\r\n" + b" " * 0x2001 + b"\r\n")
        sent = await asyncio.wait_for(read_answer(reader), DEADLINE_S)

        assert [(413, "body-too-large")] * 2 == [
            (each.status, each.json["code"]) for each in (announced, sent)
        ]


async def test_log_ins_under_way_have_bounded_room(node_with: Running) -> None:
    """They share it with incomplete heads."""
    async with node_with(unauthenticated_bytes_max=2**16) as node:
        head = node.head("POST", "/ui/api/session", 8000, token="", Content_Type="application/json")
        answers = []
        for _ in range(2 * 2**16 // 8000):
            reader, writer = await _from(node, _FLOOD)
            writer.write(head + b" " * 7999)
            answers.append(asyncio.ensure_future(read_answer(reader)))
        done, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        reader, writer = await _from(node, _OTHER)
        writer.write(head + b'{"token":"acme"}'.ljust(8000))
        served = await asyncio.wait_for(read_answer(reader), DEADLINE_S)
        for each in waiting:
            each.cancel()

        assert {503} == {each.result().status for each in done}
        assert 200 == served.status


async def test_tokens_under_verification_are_shared_by_address(tmp_path: Path) -> None:
    """Their requests wait while the issuer is silent; an address may have half of those."""
    async with _beside_a_silent_issuer(tmp_path, LimitSettings()) as node:
        asking = node.head("POST", "tasks", 2, token=_UNPUBLISHED) + b"{}"
        answers = []
        for address in [_FLOOD] * 65 + [_OTHER]:
            reader, writer = await _from(node, address)
            writer.write(asking)
            answers.append(asyncio.ensure_future(read_answer(reader)))
        done, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        told = [(each.result().status, each.result().json["code"]) for each in done]
        waits = not answers[-1].done()
        for each in answers:
            each.cancel()

    assert [(503, "overloaded")] == told
    assert waits


async def test_strangers_take_turns_by_address(tmp_path: Path) -> None:
    """While one address has many log-ins waiting, another and a tenant are served."""
    limits = LimitSettings(requests_in_progress=2, request_timeout_ms=120_000)
    async with _beside_a_silent_issuer(tmp_path, limits) as node:
        body = json.dumps({"token": _UNPUBLISHED}).encode()
        head = node.head("POST", "/ui/api/session", len(body), token="", Content_Type=_JSON)
        for _ in range(_MANY):
            _, writer = await _from(node, _FLOOD)
            writer.write(head + body)

        async def flooded() -> bool:
            return await _waiting(node) >= _MANY // 2

        await eventually(flooded)
        served = await _asked(node, _OTHER)
        await node.create()

        assert 200 == served.status
        assert 0 < await _waiting(node)


async def _waiting(node: Client) -> float:
    return await node.metric("codeq_http_waiting_for_turn")


@asynccontextmanager
async def _beside_a_silent_issuer(tmp_path: Path, limits: LimitSettings) -> AsyncIterator[Client]:
    """Run a node that asks an issuer for its keys and gets no answer."""
    settings = single(tmp_path / "node", limits)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        jwks = AuthProviderSettings(
            kind="jwks", jwks_url=f"http://127.0.0.1:{silent.getsockname()[1]}/keys"
        )
        auth = replace(settings.auth, producer=(*settings.auth.producer, jwks))
        async with serving(replace(settings, auth=auth)) as node:
            yield node


async def _from(node: Client, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection from an address of loopback."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port, local_addr=(address, 0))
    node.open.append(writer)
    return reader, writer


async def _asked(node: Client, address: str) -> Answer:
    reader, writer = await _from(node, address)
    writer.write(_ASK)
    return await asyncio.wait_for(read_answer(reader), DEADLINE_S)


async def _flood(node: Client) -> int:
    """Open more connections than there are places, and return how many are kept."""
    opened = [await _from(node, _FLOOD) for _ in range(2 * _MANY)]
    for _, writer in opened:
        writer.write(_ASK)
    answers = await asyncio.wait_for(
        asyncio.gather(*(read_answer(reader) for reader, _ in opened)), DEADLINE_S
    )
    return sum(answer.status == 200 for answer in answers)
