"""HTTP client: answers are read in any pieces, and each kind of failure has its own error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.harness.http import Broken, Connection, HttpClient, Late, Refused, parse, request_bytes
from tests.harness.waiting import until

_WITH_LENGTH = (
    b'HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"id":"a"'
)
_CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n2;name=x\r\nef\r\n0\r\n\r\n"
)
_EMPTY = b"HTTP/1.1 204 No Content\r\nDate: now\r\n\r\n"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """Serve every connection by one function; yields the base URL."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("received", "status", "body"),
    [
        (_WITH_LENGTH, 202, b'{"id":"a"'),
        (_CHUNKED, 200, b"abcdef"),
        (_EMPTY, 204, b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", 200, b""),
    ],
)
def test_an_answer_is_read_once_it_is_whole(received: bytes, status: int, body: bytes) -> None:
    """The last byte yields status and body; no part before it yields anything."""
    parts = [parse(received[:end]) for end in range(len(received))]
    answer = parse(received)

    assert answer is not None
    assert (status, body) == (answer.status, answer.body)
    assert [None] * len(received) == parts


def test_an_answer_to_head_has_no_body_to_wait_for() -> None:
    """The length is that of a body that does not come; headers have lower-case names."""
    head = _WITH_LENGTH.partition(b'{"id')[0]
    answer = parse(head, bodiless=True)

    assert answer is not None
    assert b"" == answer.body
    assert {"content-type": "application/json", "content-length": "9"} == answer.headers


def test_an_answer_that_is_not_http_is_refused() -> None:
    """A status that is not a number is an error and no answer."""
    with pytest.raises(ValueError, match="invalid literal"):
        parse(b"SSH-2.0-OpenSSH\r\n\r\n")


def test_a_request_says_how_long_its_body_is() -> None:
    """The request has host, token and length in its head, then the body."""
    whole = request_bytes("POST", "http://127.0.0.1:80", "/tasks", token="t", body=b"{}")

    assert whole.startswith(b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1:80\r\n")
    assert b"Authorization: Bearer t\r\n" in whole
    assert b"Content-Length: 2\r\n" in whole
    assert whole.endswith(b"\r\n\r\n{}")


async def test_a_connection_serves_one_request_after_the_other() -> None:
    """The connection is used again until the server announces its close."""
    connections = 0

    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for more in (b"", b"Connection: close\r\n"):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\n{}" % more)

    async with serving(twice) as url, HttpClient() as client:
        answers = [await client.send("GET", url, "/") for _ in range(4)]

    assert [{}] * 4 == [answer.json for answer in answers]
    assert 2 == connections


async def test_nothing_was_sent_where_nobody_listens() -> None:
    """A refused connection has another error than one that breaks."""

    async def nobody(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        """Never called."""

    async with serving(nobody) as url:
        gone = url
    async with HttpClient() as client:
        with pytest.raises(Refused):
            await client.send("POST", gone, "/", body=b"{}")


async def test_nothing_was_sent_on_a_connection_that_is_lost_before() -> None:
    """A server that accepts and closes at once refuses the request; it has read none of it."""

    async def closing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        """Read nothing; the end of this closes the connection."""

    async with serving(closing) as url:
        connection = await Connection.open(url, lambda _answer: None)

        async def lost() -> bool:
            return connection.closed

        await until(lost, what="the end of the connection")

        with pytest.raises(Refused, match="before its request"):
            connection.ask(request_bytes("GET", url, "/"), 0.0)


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"SSH\r\n\r\n"]
)
async def test_an_answer_that_is_cut_short_is_no_answer(said: bytes) -> None:
    """If the connection ends before the answer does, the outcome is unknown."""

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)

    async with serving(cut) as url, HttpClient() as client:
        with pytest.raises(Broken):
            await client.send("GET", url, "/")


async def test_an_answer_that_does_not_come_is_given_up() -> None:
    """The request ends with a timeout, and its connection is not used again."""
    closed = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()
        closed.set()

    async with serving(silent) as url, HttpClient() as client:
        with pytest.raises(Late):
            await client.send("GET", url, "/", timeout_s=0.05)
        async with asyncio.timeout(5):
            await closed.wait()

    assert closed.is_set()
