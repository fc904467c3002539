"""Broker client: what it sends, and what it makes of every kind of answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from codeq_cluster.client import Broker, Refused, Unreachable

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def _server(handler: _Handler) -> AsyncIterator[str]:
    """Serve every path with one handler; yields the base URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        yield str(server.make_url(""))


def _closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


async def test_a_payload_travels_as_it_was_written() -> None:
    """Digits that a float would lose, and the order of keys, arrive."""
    seen: list[tuple[str, str, str]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.path, request.headers["Authorization"], await request.text()))
        return web.json_response({"id": "x"}, status=202)

    payload = '{"b": 12345678901234567890.123456789, "a": null}'
    async with _server(handler) as url, Broker([url], token="t") as broker:
        answer = await broker.create({"command": "c"}, payload=payload)

    assert answer == {"id": "x"}
    assert seen == [
        ("/v1/codeq/tasks", "Bearer t", f'{{"command": "c", "payload": {payload}}}'),
    ]


async def test_an_error_keeps_its_status_text_and_code() -> None:
    """A caller can tell what may be retried."""

    async def handler(_: web.Request) -> web.Response:
        body = {"error": "no leader for shard", "code": "no-leader", "retryable": True}
        return web.json_response(body, status=503)

    async with _server(handler) as url, Broker([url], token="t") as broker:
        with pytest.raises(Refused, match="no leader for shard") as caught:
            await broker.task("a/b")

    assert (caught.value.status, caught.value.code) == (503, "no-leader")
    assert caught.value.retryable


async def test_a_server_that_is_none_of_ours_is_told() -> None:
    """A page of somebody else is no answer."""

    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    async with _server(handler) as url, Broker([url], token="t") as broker:
        with pytest.raises(Refused, match="is this a codeq-cluster"):
            await broker.healthy()


async def test_a_node_without_a_connection_is_passed_over() -> None:
    """Nothing was sent to it, so the next node may be asked for anything."""

    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async with _server(handler) as url, Broker([_closed_port(), url], token="t") as broker:
        assert await broker.healthy() == {"status": "ok"}


async def test_no_node_at_all_is_unreachable() -> None:
    """The error says so, and that nothing was done is part of its meaning."""
    async with Broker([_closed_port()], token="t") as broker:
        with pytest.raises(Unreachable, match="no node takes a connection"):
            await broker.ready()


async def test_a_connection_that_breaks_leaves_the_outcome_unknown() -> None:
    """A request that may have been carried out is not sent to another node."""
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        assert request.transport
        request.transport.close()
        return web.Response()

    async with _server(handler) as url, Broker([url, url], token="t") as broker:
        with pytest.raises(Refused, match="outcome unknown") as caught:
            await broker.create({"command": "c"}, payload="1")

    assert (caught.value.code, calls) == ("outcome-unknown", 1)


async def test_an_answer_that_takes_too_long_is_given_up() -> None:
    """Every call ends within its bound."""
    release = asyncio.Event()

    async def handler(_: web.Request) -> web.Response:
        await release.wait()
        return web.json_response({})

    async with _server(handler) as url, Broker([url], token="t", timeout_s=0.05) as broker:
        with pytest.raises(Refused, match="TimeoutError"):
            await broker.cancel("x")
        release.set()


async def test_a_read_goes_on_to_the_next_node_when_one_does_not_answer() -> None:
    """A node that stands still takes connections; nothing can come of a read but its answer."""
    release = asyncio.Event()

    async def silent(_: web.Request) -> web.Response:
        await release.wait()
        return web.json_response({})

    async def answers(_: web.Request) -> web.Response:
        return web.json_response({"id": "x"})

    async with _server(silent) as still, _server(answers) as next_one:
        # Each has so long to answer, and the next one is not to be too slow for it.
        async with Broker([still, next_one], token="t", timeout_s=2.0) as broker:
            assert await broker.task("x") == {"id": "x"}
        async with Broker([still], token="t", timeout_s=0.05) as broker:
            with pytest.raises(Refused, match="did not come") as caught:
                await broker.task("x")
        release.set()

    assert caught.value.code == "no-answer"
    assert "unknown" not in str(caught.value)
