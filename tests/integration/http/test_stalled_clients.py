"""Stalled clients: each one loses its connection in time, and no other client notices."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from tests.integration.http.client import DEADLINE_S, Client, read_answer
from tests.integration.http.conftest import Running

QUICK = {"header_timeout_ms": 300, "body_timeout_ms": 500}
ASK = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"
IDLE = {"idle_timeout_ms": 1000}


async def closed_by_the_node(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes sent before the node closed the connection, which it must do."""
    async with asyncio.timeout(DEADLINE_S):
        return await reader.read()


@pytest.mark.parametrize(
    "sent",
    [
        b"POST",
        b"POST /v1/codeq/tasks HTTP/1.1\r\nHost: node\r\nX-Half: y",
        ASK + b"GET /hea",
        ASK + ASK + b"GET /hea",
    ],
)
async def test_a_client_that_stalls_in_a_head_loses_its_connection(
    node_with: Running, sent: bytes
) -> None:
    """The part of the head that came, and the requests before it, do not matter."""
    async with node_with(**QUICK) as node:
        reader, writer = await node.connect()
        writer.write(sent)

        await closed_by_the_node(reader)
        assert 200 == (await node.get("/readyz")).status


@pytest.mark.parametrize("served_before", [False, True])
async def test_a_head_dripping_in_is_bounded_as_a_whole(
    node_with: Running, served_before: bool
) -> None:
    """Single bytes do not keep a connection open, whether it has been served before or not."""
    async with node_with(**QUICK) as node:
        reader, writer = await node.connect()
        if served_before:
            writer.write(ASK)
            assert 200 == (await read_answer(reader)).status
        writer.write(b"GET /healthz HTTP/1.1\r\nX-Endless: ")
        await dripping(b"y", reader, writer)

        assert 200 == (await node.get("/readyz")).status


async def dripping(drop: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write single bytes until the node closes the connection, which it must do silently."""
    closing = asyncio.ensure_future(reader.read())
    async with asyncio.timeout(DEADLINE_S):
        while not closing.done():
            writer.write(drop)
            await asyncio.wait([closing], timeout=0.02)
    with contextlib.suppress(ConnectionError):  # A byte after the end gets a reset.
        assert b"" == await closing


@pytest.mark.parametrize("sent", [b"", ASK, ASK + b"GET /hea"])
async def test_a_client_that_asks_nothing_more_loses_its_connection(
    node_with: Running, sent: bytes
) -> None:
    """The timeout holds for connections with and without earlier requests."""
    async with node_with(**IDLE) as node:
        reader, writer = await node.connect()
        writer.write(sent)

        await closed_by_the_node(reader)
        assert 200 == (await node.get("/readyz")).status


async def test_a_head_in_pieces_is_fine_while_it_comes_in_time(node_with: Running) -> None:
    """The timer ends with the last byte."""
    async with node_with(**{**QUICK, "header_timeout_ms": 5000}) as node:
        reader, writer = await node.connect()
        for piece in (b"GET /heal", b"thz HTTP/1.1\r\nHo", b"st: node\r\n\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        answer = await asyncio.wait_for(read_answer(reader), DEADLINE_S)

        assert 200 == answer.status


async def test_a_client_that_stalls_in_a_body_gets_an_error_and_loses_its_connection(
    node_with: Running,
) -> None:
    """Other clients are served while it stalls."""
    async with node_with(**QUICK) as node:
        reader, writer = await node.connect()
        writer.write(node.head("POST", "tasks", 1000) + b'{"command":')
        served = await node.post("tasks", {"command": "c", "payload": {}})
        answer = await asyncio.wait_for(read_answer(reader), DEADLINE_S)

        assert 202 == served.status
        assert (408, "request-timeout") == (answer.status, answer.json["code"])
        assert b"" == await closed_by_the_node(reader)
        assert 1 == (await node.depth("c"))["ready"]


@pytest.mark.parametrize(
    ("length", "drop"),
    [(b"Content-Length: 1048576", b" "), (b"Transfer-Encoding: chunked", b"1\r\n \r\n")],
)
async def test_a_body_dripping_in_is_bounded_as_a_whole(
    node_with: Running, length: bytes, drop: bytes
) -> None:
    """Single bytes do not keep a connection open."""
    async with node_with(**QUICK) as node:
        reader, writer = await node.connect()
        writer.write(node.head("POST", "tasks", 0).replace(b"Content-Length: 0", length))

        answering = asyncio.ensure_future(read_answer(reader))
        async with asyncio.timeout(DEADLINE_S):
            while not answering.done():
                writer.write(drop)
                await asyncio.wait([answering], timeout=0.02)

        answer = answering.result()
        assert 408 == answer.status


async def test_an_unauthenticated_body_is_not_waited_for(node_with: Running) -> None:
    """The answer comes before the body."""
    async with node_with() as node:
        reader, writer = await node.connect()
        writer.write(node.head("POST", "tasks", 2**20, token="wrong"))
        answer = await asyncio.wait_for(read_answer(reader), DEADLINE_S)

        assert 401 == answer.status


@pytest.mark.parametrize("sips", [False, True])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_client_that_does_not_read_its_answer_loses_its_connection(
    node_with: Running, run: Callable[[Coroutine[None, None, None]], None], sips: bool
) -> None:
    """Reading single bytes does not help. The event loops have different transports."""
    run(not_reading(node_with, sips=sips))


async def not_reading(node_with: Running, *, sips: bool) -> None:
    """Claim far more than fits into the buffers, and read almost nothing."""
    async with node_with(**QUICK) as node:
        for _ in range(40):
            await node.create("large", payload="x" * 500_000)
        with socket.socket() as raw:
            await connect_narrowly(raw, node)
            body = b'{"count":40,"commands":["large"]}'
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(raw, node.head("POST", "tasks/claim/batch", len(body)) + body)
            async with asyncio.timeout(DEADLINE_S):
                while not hung_up(raw):
                    if sips:
                        with contextlib.suppress(BlockingIOError, ConnectionError):
                            raw.recv(1)
                    assert 200 == (await node.get("/readyz")).status

        # The stalled client's leases stay until they end; the node serves others.
        depth = await node.depth("large")
        assert depth["inProgress"] != 0
        assert 200 == (await node.get("/readyz")).status


async def test_answers_that_nobody_reads_have_a_room(node_with: Running) -> None:
    """The one for which its address has no room is dropped; once one is read there is room."""
    async with node_with(unread_bytes_max=16 * 2**20) as node:
        for _ in range(24):
            await node.create("large", payload="x" * 1_000_000)
        body = b'{"count":8,"commands":["large"]}'
        claim = node.head("POST", "tasks/claim/batch", len(body)) + body
        loop = asyncio.get_running_loop()
        with socket.socket() as first, socket.socket() as second, socket.socket() as third:
            async with asyncio.timeout(DEADLINE_S):
                for raw in (first, second):
                    await connect_narrowly(raw, node)
                    await loop.sock_sendall(raw, claim)
                    assert b"HTTP" == await loop.sock_recv(raw, 4)
                while not hung_up(second):
                    assert 200 == (await node.get("/readyz")).status
            assert not hung_up(first)
            async with asyncio.timeout(DEADLINE_S):
                read = 0
                while read < 8_000_000:
                    read += len(await loop.sock_recv(first, 2**20))
                await connect_narrowly(third, node)
                await loop.sock_sendall(third, claim)
                assert b"HTTP" == await loop.sock_recv(third, 4)
                assert 200 == (await node.get("/readyz")).status
            assert not hung_up(third)


async def test_a_flood_of_requests_with_unread_answers_is_cut_off(
    node_with: Running,
) -> None:
    """The node stops reading and then closes the connection; others are served meanwhile."""
    async with node_with(**QUICK) as node:
        with socket.socket() as raw:
            await connect_narrowly(raw, node)
            taken, flood = 0, ASK.replace(b"/healthz", b"/openapi.json") * 1000
            async with asyncio.timeout(DEADLINE_S):
                while not hung_up(raw):
                    with contextlib.suppress(BlockingIOError, ConnectionError):
                        taken += raw.send(flood)
                    assert 200 == (await node.get("/readyz")).status

        # At most the bytes in the kernel's two buffers: the node itself buffers nothing.
        assert taken < 32 * 2**20


async def connect_narrowly(raw: socket.socket, node: Client) -> None:
    """Connect with the smallest buffers."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", node.port))


def hung_up(raw: socket.socket) -> bool:
    """Return whether the kernel reports that the other side is gone."""
    poll = select.poll()
    poll.register(raw, select.POLLRDHUP)
    return bool(poll.poll(0))


async def test_requests_in_a_row_are_answered_in_order(node_with: Running) -> None:
    """A client may send the next request before the last one is answered."""
    async with node_with() as node:
        reader, writer = await node.connect()
        asked = [f"asked-{number}" for number in range(200)]
        for request_id in asked:
            writer.write(node.head("GET", "/healthz", 0, X_Request_Id=request_id))
        async with asyncio.timeout(DEADLINE_S):
            answers = [await read_answer(reader) for _ in asked]

        assert asked == [answer.headers["x-request-id"] for answer in answers]


@pytest.mark.parametrize("sent", [b"", b"GET /hea", ASK])
async def test_stalled_clients_cannot_keep_all_places(node_with: Running, sent: bytes) -> None:
    """Each place becomes free in time, although no client releases it."""
    async with node_with(**QUICK, idle_timeout_ms=300, connections_max=6) as node:
        async with asyncio.timeout(DEADLINE_S):
            while (await node.get("/healthz")).status == 200:
                # One more than there are places, because the last answer may still hold one.
                for _ in range(4):
                    _, writer = await node.connect()
                    writer.write(sent)
            # The good client's own connection uses a place too, until it is closed.
            while (await node.get("/readyz")).status != 200:
                pass


async def test_connections_beyond_the_bound_are_turned_away(node_with: Running) -> None:
    """An address has half of them; they are accepted again as soon as there is room."""
    async with node_with(connections_max=4) as node:
        first, second = await node.connect(), await node.connect()
        for _, writer in (first, second):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
        for reader, _ in (first, second):
            assert 200 == (await read_answer(reader)).status
        reader, _ = await node.connect()
        turned_away = await read_answer(reader)
        first[1].close()
        async with asyncio.timeout(DEADLINE_S):
            while (await node.get("/healthz")).status != 200:
                pass

        assert (503, "overloaded") == (turned_away.status, turned_away.json["code"])
        assert "not-applied" == turned_away.headers["x-outcome"]
