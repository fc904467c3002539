"""A server that stops accepting connections answers requests and closes idle connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from aiohttp import web

from codeq_cluster.api.app import ACCESS_LOG, STRANGERS, WAITS
from codeq_cluster.api.http.access_log import AccessLog
from codeq_cluster.api.http.callers import Callers
from codeq_cluster.api.http.strangers import Strangers
from codeq_cluster.api.http.waits import Waits
from codeq_cluster.api.server import HttpServer
from codeq_cluster.fair_turns import FairTurns
from codeq_cluster.settings import LimitSettings, ProxySettings
from codeq_cluster.telemetry import Metrics
from tests.integration.http.client import DEADLINE_S, read_answer

_REQUEST = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n"


async def _answer(_: web.Request) -> web.Response:
    return web.Response(text="here")


@contextlib.asynccontextmanager
async def _serving() -> AsyncIterator[HttpServer]:
    app = web.Application()
    callers = Callers(ProxySettings())
    app[ACCESS_LOG] = AccessLog("never", callers)
    app[WAITS] = Waits(LimitSettings(), FairTurns(64, name="the room"))
    app[STRANGERS] = Strangers(LimitSettings(), callers)
    app.router.add_get("/", _answer)
    server = HttpServer(
        app,
        host="127.0.0.1",
        port=0,
        limits=LimitSettings(),
        metrics=Metrics(commands_max=1),
    )
    await server.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield server
    finally:
        await server.stop()


async def _connected(
    server: HttpServer,
) -> tuple[socket.socket, asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection that has had an answer and is idle."""
    raw = socket.create_connection(("127.0.0.1", server.port))
    sending = raw.dup()
    reader, writer = await asyncio.open_connection(sock=raw)
    writer.write(_REQUEST)
    assert 200 == (await read_answer(reader)).status
    return sending, reader, writer


async def test_a_request_that_the_kernel_holds_is_no_idle_connection() -> None:
    """A request already sent is answered, and the idle connection beside it is closed."""
    async with _serving() as server:
        asking, answers, asker = await _connected(server)
        resting, nothing, rester = await _connected(server)
        # The loop does not run between these lines, so the server cannot have read the request.
        asking.send(_REQUEST)
        server.close_idle()
        answer = await read_answer(answers)
        rest = await nothing.read()
        for each in (asking, resting, asker, rester):
            each.close()

    assert 200 == answer.status
    assert b"" == rest


async def test_a_connection_in_the_kernels_backlog_is_served() -> None:
    """The kernel has accepted the connection, so its client may have sent a request."""
    async with _serving() as server:
        # The loop does not run between these lines, so the server cannot have seen the connection.
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.send(_REQUEST)
        leaving = asyncio.create_task(server.leave())
        reader, writer = await asyncio.open_connection(sock=raw)
        answer = await read_answer(reader)
        await leaving
        writer.close()

    assert 200 == answer.status
    assert "close" == answer.headers["connection"]
