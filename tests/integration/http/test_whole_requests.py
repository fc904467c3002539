"""Requests in one piece: answered like all others, with one asyncio task and one write."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
from aiohttp import web

from codeq_cluster.api.app import ACCESS_LOG, STRANGERS, WAITS, WHOLE_ROUTES
from codeq_cluster.api.http.access_log import AccessLog
from codeq_cluster.api.http.answer import HttpAnswer
from codeq_cluster.api.http.call import Asked
from codeq_cluster.api.http.callers import Callers
from codeq_cluster.api.http.middleware import Answering
from codeq_cluster.api.http.strangers import Strangers
from codeq_cluster.api.http.waits import Waits
from codeq_cluster.api.http.whole_requests import WholeRoutes
from codeq_cluster.api.server import HttpServer
from codeq_cluster.fair_turns import FairTurns
from codeq_cluster.settings import LimitSettings, ProxySettings
from codeq_cluster.telemetry import Metrics
from tests.integration.http.client import DEADLINE_S, Client, read_answer
from tests.integration.http.client import Answer as Read

_ID = "0190a5e0-0000-7000-8000-000000000000"
_REQUESTS = {
    "no command": ("tasks", b'{"payload":1}'),
    "no JSON": ("tasks", b"{"),
    "no UTF-8": ("tasks", b'{"command":"\xff"}'),
    "too large": ("tasks", b" " * (2**20 + 1)),
    "an empty batch": ("tasks/batch", b'{"tasks":[]}'),
    "a batch of refusals": ("tasks/batch", b'{"tasks":[{},{"command":"a b"}]}'),
    "nothing to claim": ("tasks/claim", b'{"commands":["nothing-of-this"]}'),
    "nothing to claim at all": ("tasks/claim/batch", b'{"commands":["nothing"],"count":2}'),
    "too long a lease": ("tasks/claim", b'{"leaseSeconds":99999999}'),
    "a lease of nobody's": (f"tasks/{_ID}/heartbeat", b"{}"),
    "no body to give back": (f"tasks/{_ID}/abandon", b""),
    "no task to put off": (f"tasks/{_ID}/nack", b'{"delaySeconds":1}'),
    "a result of nothing": (f"tasks/{_ID}/result", b'{"status":"COMPLETED","result":1}'),
    "a result without a status": (f"tasks/{_ID}/result", b"{}"),
    "results of nothing": (
        "tasks/batch/results",
        b'{"results":[{"taskId":"none","status":"COMPLETED","result":1},{}]}',
    ),
    "an id too long": (f"tasks/{'a' * 129}/heartbeat", b"{}"),
}
_TWICE = b"X-Twice: a\r\nX-Twice: b\r\n"  # The fast parser leaves such a request to the library.
_LIBRARY = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"
_IDLE = {"idle_timeout_ms": 2000}


async def _kept(node: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection with an earlier answer: only there a request surely arrives whole."""
    reader, writer = await node.connect()
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
    assert 200 == (await read_answer(reader)).status
    return reader, writer


def _told(answer: Read) -> tuple[int, dict[str, str], bytes]:
    headers = {name: text for name, text in answer.headers.items() if name != "date"}
    return answer.status, headers, answer.body


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("token", ["acme", "narrow", "nobody", ""])
@pytest.mark.parametrize("name", _REQUESTS)
async def test_an_answer_is_the_same_either_way(node: Client, name: str, token: str) -> None:
    """Status, headers and body do not depend on which parser reads the request."""
    path, body = _REQUESTS[name]
    head = node.head("POST", path, len(body), token=token, X_Request_Id="the-same")
    reader, writer = await _kept(node)
    answers = []
    for more in (b"", _TWICE):
        writer.write(head[:-2] + more + b"\r\n" + body)
        async with asyncio.timeout(DEADLINE_S):
            answers.append(await read_answer(reader))

    assert _told(answers[1]) == _told(answers[0])
    assert "date" in answers[0].headers


@pytest.mark.asyncio(loop_scope="session")
async def test_a_cycle_on_one_connection(node: Client) -> None:
    """Create, claim, heartbeat and result each arrive in one piece."""
    reader, writer = await _kept(node)

    async def post(path: str, body: bytes) -> Read:
        writer.write(node.head("POST", path, len(body)) + body)
        async with asyncio.timeout(DEADLINE_S):
            return await read_answer(reader)

    created = await post("tasks", b'{"command":"in-one-piece","payload":{"n":1}}')
    claimed = await post("tasks/claim", b'{"commands":["in-one-piece"]}')
    extended = await post(f"tasks/{claimed.json['id']}/heartbeat", b"{}")
    ended = await post(
        f"tasks/{claimed.json['id']}/result", b'{"status":"COMPLETED","result":{"ok":true}}'
    )

    assert [202, 200, 200, 200] == [each.status for each in (created, claimed, extended, ended)]
    assert claimed.json["id"] == created.json["id"] == ended.json["taskId"]
    assert '{"n":1}' == claimed.json["payload"]


@pytest.mark.parametrize("asked", [1, 20], ids=["one", "more than is kept in memory"])
async def test_requests_that_arrive_during_an_answer_are_answered_after_it(asked: int) -> None:
    """Requests are answered in order, and beyond a bound they are not read meanwhile."""
    async with _serving() as (server, served):
        reader, writer = await _connected(server, served)
        writer.write(_request(b"first"))
        await served.begun.wait()
        for number in range(asked):
            writer.write(_request(b"%d-" % number + b"x" * 10_000))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
        await writer.drain()
        served.go_on.set()
        answers = [(await read_answer(reader)).body.partition(b"-")[0] for _ in range(asked + 2)]

    assert [b"first", *(b"%d" % number for number in range(asked)), b"healthy"] == answers


async def test_the_next_request_of_a_connection_is_not_begun_during_an_answer() -> None:
    """If a client sends a create and its claim together, they are done in that order."""
    async with _serving() as (server, served):
        reader, writer = await _connected(server, served)
        writer.write(_request(b"first"))
        await served.begun.wait()
        served.begun.clear()
        writer.write(_request(b"second"))
        # A later connection has been served, so the bytes sent before it have arrived.
        await _connected(server, served)
        begun = served.begun.is_set()
        served.go_on.set()
        answers = [(await read_answer(reader)).body for _ in range(2)]

    assert not begun
    assert [b"first", b"second"] == answers


@pytest.mark.parametrize("first", [b"", _LIBRARY, b"POST /tasks HTTP/1.1"])
async def test_a_request_is_not_read_apart_from_the_head_it_continues(first: bytes) -> None:
    """Bytes that follow a part of a head belong to that head, whatever they look like."""
    first = _request(b"whole") if first.startswith(b"POST") else first
    async with _serving() as (server, served):
        served.go_on.set()
        reader, writer = await _connected(server, served)
        writer.write(first + b"GET /healthz HTTP/1.1\r\nX-Glued: ")
        if first:
            assert 200 == (await read_answer(reader)).status
        # A later connection has been served, so the bytes sent before it have arrived.
        await _connected(server, served)
        writer.write(_request(b"not a request"))
        answer = await read_answer(reader)

    assert (200, b"healthy") == (answer.status, answer.body)


async def test_a_request_that_follows_an_offer_to_upgrade_is_served() -> None:
    """The library would drop the bytes that follow such a request in one packet."""
    offer = _LIBRARY[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    async with _serving() as (server, served):
        served.go_on.set()
        reader, writer = await _connected(server, served)
        writer.write(offer + _request(b"kept")[:-2])
        answers = [(await read_answer(reader)).body]
        writer.write(b"pt")
        answers.append((await read_answer(reader)).body)

    assert [b"healthy", b"kept"] == answers


@pytest.mark.parametrize("tail", [b"0\r\nX-Late: a\r\n\r\n", b"0;a=b\r\n\r\n"])
async def test_a_trailer_is_no_header_of_the_next_request(tail: bytes) -> None:
    """The library would add it there, so the connection ends with the request that has one."""
    head = b"POST /tasks HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"
    async with _serving() as (server, served):
        served.go_on.set()
        reader, writer = await _connected(server, served)
        writer.write(head + b"0\r\n\r\n" + head + tail + _LIBRARY)
        answers = [await read_answer(reader) for _ in range(2)]
        rest = await reader.read()

    assert [b"ab", b"ab"] == [each.body for each in answers]
    assert (None, "close") == tuple(each.headers.get("connection") for each in answers)
    assert b"" == rest


async def test_good_requests_are_served_before_a_bad_one_in_their_packet() -> None:
    """Each is answered in order, and the connection ends with the bad one."""
    async with _serving() as (server, served):
        served.go_on.set()
        reader, writer = await _connected(server, served)
        writer.write(_request(b"good") + _LIBRARY + _request(b"good") + b"bad\r\n\r\n" + _LIBRARY)
        answers = [await read_answer(reader) for _ in range(4)]
        rest = await reader.read()

    assert [200, 200, 200, 400] == [each.status for each in answers]
    assert ([b"good", b"healthy", b"good"], b"") == ([each.body for each in answers[:3]], rest)


async def test_a_head_begun_during_an_answer_ends_neither_the_answer_nor_the_limit() -> None:
    """A part of a head closes the connection in time, but not before the answer."""
    async with _serving(LimitSettings(header_timeout_ms=100)) as (server, served):
        reader, writer = await _connected(server, served)
        writer.write(_request(b"first", _TWICE))
        writer.write(_LIBRARY[:-2])
        await served.begun.wait()
        asyncio.get_running_loop().call_later(0.35, served.go_on.set)
        answer = await read_answer(reader)
        rest = await reader.read()

    assert (b"first", b"") == (answer.body, rest)


async def test_a_client_that_goes_away_cancels_its_request() -> None:
    """Nobody would read the answer; others are served."""
    async with _serving() as (server, served):
        _, writer = await _connected(server, served)
        writer.write(_request(b"first"))
        await served.begun.wait()
        writer.close()
        await served.cancelled.wait()
        served.go_on.set()
        reader, writer = await _connected(server, served)
        writer.write(_request(b"next"))

        assert b"next" == (await read_answer(reader)).body


async def test_a_server_that_leaves_closes_the_connection_with_the_answer() -> None:
    """The answer announces the close, so the client goes to another node."""
    async with _serving() as (server, served):
        reader, writer = await _connected(server, served)
        writer.write(_request(b"first"))
        await served.begun.wait()
        leaving = asyncio.create_task(server.leave())
        await asyncio.sleep(0)  # The first step of a stop: new connections are refused.
        served.go_on.set()
        answer = await read_answer(reader)
        rest = await reader.read()
        await leaving

    assert ("close", b"first", b"") == (answer.headers["connection"], answer.body, rest)


async def test_a_server_that_stops_cuts_off_requests_in_progress() -> None:
    """The request is cancelled, and the connection closed."""
    async with _serving() as (server, served):
        reader, writer = await _connected(server, served)
        writer.write(_request(b"first"))
        await served.begun.wait()
        await server.stop()

        assert served.cancelled.is_set()
        assert b"" == await reader.read()


async def test_a_connection_whose_request_takes_long_is_not_idle() -> None:
    """It is closed after a whole idle period, not before."""
    async with _serving(LimitSettings(**_IDLE)) as (server, served):
        reader, writer = await _connected(server, served)
        loop = asyncio.get_running_loop()
        writer.write(_request(b"first"))
        await served.begun.wait()
        # The idle period ends during the request.
        loop.call_later(1.5 * _IDLE["idle_timeout_ms"] / 1000, served.go_on.set)
        answer = await read_answer(reader)
        rest = await reader.read()

    assert (b"first", b"") == (answer.body, rest)


async def test_a_request_costs_one_task_and_one_write_and_no_timer() -> None:
    """The test counts the cost of each further request on a connection."""
    async with _serving() as (server, served):
        served.go_on.set()
        reader, writer = await _connected(server, served)
        connection = next(iter(server._open))
        assert connection.transport is not None
        watched = _Watched(connection.transport)
        connection.transport = watched  # type: ignore[assignment] - all that it is asked for
        with _counting(asyncio.get_running_loop()) as counted:
            for _ in range(10):
                writer.write(_request(b"again"))
                assert b"again" == (await read_answer(reader)).body
        connection.transport = watched.transport

    assert (10, {"tasks": 10, "timers": 0}) == (watched.writes, counted)


class _Served:
    """A route that answers with the request's body, once it may."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.open: list[asyncio.StreamWriter] = []  # The transports are closed at the end.

    async def answer(self, asked: Asked) -> HttpAnswer:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        body = await asked.read() if isinstance(asked, web.Request) else asked.body
        return HttpAnswer(body, request_id="r")


class _Watched:
    """A transport that counts writes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.writes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.transport.write(data)


@contextlib.contextmanager
def _counting(loop: asyncio.AbstractEventLoop) -> Iterator[dict[str, int]]:
    counted = {"tasks": 0, "timers": 0}
    call_at = loop.call_at

    def task(
        of: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, object], **named: Any
    ) -> asyncio.Task[object]:
        counted["tasks"] += 1
        return asyncio.Task(coro, loop=of, **named)  # type: ignore[arg-type]

    def timer(
        when: float, callback: Callable[..., object], *arguments: object, **named: Any
    ) -> asyncio.TimerHandle:
        counted["timers"] += 1
        return call_at(when, callback, *arguments, **named)

    loop.set_task_factory(task)
    loop.call_at = timer
    try:
        yield counted
    finally:
        loop.set_task_factory(None)
        loop.call_at = call_at


@contextlib.asynccontextmanager
async def _serving(
    limits: LimitSettings | None = None,
) -> AsyncIterator[tuple[HttpServer, _Served]]:
    served = _Served()
    app = web.Application()
    callers = Callers(ProxySettings())
    app[ACCESS_LOG] = AccessLog("never", callers)
    app[WAITS] = Waits(LimitSettings(), FairTurns(64, name="the room"))
    app[STRANGERS] = Strangers(limits or LimitSettings(), callers)
    whole = app[WHOLE_ROUTES] = WholeRoutes[Answering]("/tasks", body_bytes_max=2**20)
    whole.add("/tasks", served.answer)

    async def by_the_library(request: web.Request) -> web.Response:
        return (await served.answer(request)).response()

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="healthy")

    app.router.add_post("/tasks", by_the_library)
    app.router.add_get("/healthz", healthy)
    server = HttpServer(
        app,
        host="127.0.0.1",
        port=0,
        limits=limits or LimitSettings(),
        metrics=Metrics(commands_max=1),
    )
    await server.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield server, served
    finally:
        for writer in served.open:
            writer.close()
        await server.stop()


async def _connected(
    server: HttpServer, served: _Served
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection that has had an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    served.open.append(writer)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
    assert 200 == (await read_answer(reader)).status
    return reader, writer


def _request(body: bytes, lines: bytes = b"") -> bytes:
    head = b"POST /tasks HTTP/1.1\r\nHost: node\r\n%bContent-Length: %d\r\n\r\n"
    return head % (lines, len(body)) + body
