"""Shapes of requests: a request that two parsers could read differently is refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging

import pytest

from tests.integration.http.client import DEADLINE_S, Client, read_answer

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASK = b"GET /healthz HTTP/1.1\r\nHost: node\r\n"
POST = b"POST /v1/codeq/tasks HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer acme\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
TASK = b'{"command":"shapes","payload":1}'
SMUGGLED = ASK + b"\r\n"


async def said(node: Client, raw: bytes) -> bytes:
    """Return everything that the node answers to exactly these bytes."""
    reader, writer = await node.connect()
    writer.write(raw)
    async with asyncio.timeout(DEADLINE_S):
        return await reader.read()


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding:\r\n chunked\r\n",
        b"X: y\rTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: 5_0\r\n",
        b"Content-Length: \r\n",
        b"Content-Length: %b\r\n" % (b"9" * 100),
    ],
)
async def test_a_body_whose_end_is_in_doubt_hides_no_request(node: Client, head: bytes) -> None:
    """A single 400 ends the connection; the bytes after it are not read as a request."""
    answers = await said(node, POST + head + b"\r\n0\r\n\r\n" + SMUGGLED)

    assert 1 == answers.count(b"HTTP/1.")
    assert b"400" == answers.split(b" ")[1]
    assert b'"code":"bad-request"' in answers


@pytest.mark.parametrize(
    "raw",
    [
        ASK + b"X: y\r\n folded\r\n\r\n",
        ASK + b"X: y\0z\r\n\r\n",
        ASK + b"X Y: z\r\n\r\n",
        ASK + b"XYZ\r\n\r\n",
        ASK + b"Host: other\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\nHost: node\n\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: node\r\n\r\n",
        b"GET /%b HTTP/1.1\r\nHost: node\r\n\r\n" % (b"a" * 20_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SPEAK /healthz HTTP/1.1\r\nHost: node\r\n\r\n",
        ASK + b"X-Large: %b\r\n\r\n" % (b"y" * 10_000),
        CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"ffffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"2\r\n{}XX0\r\n\r\n",
        CHUNKED + b"2;\n{}\r\n0\r\n\r\n",
    ],
)
async def test_bytes_that_are_not_a_request_get_the_usual_envelope(
    node: Client, raw: bytes
) -> None:
    """The node draws a request id, because there is no request that could have one."""
    reader, writer = await node.connect()
    writer.write(raw)
    answer = await asyncio.wait_for(read_answer(reader), DEADLINE_S)

    assert (400, "bad-request") == (answer.status, answer.json["code"])
    assert answer.headers["x-request-id"] == answer.json["requestId"]
    assert 32 == len(answer.headers["x-request-id"])
    assert "application/json; charset=utf-8" == answer.headers["content-type"]
    assert b"" == await asyncio.wait_for(reader.read(), DEADLINE_S)


@pytest.mark.parametrize(
    "body",
    [
        b'20;a=b;c="d"\r\n' + TASK + b"\r\n0\r\n\r\n",
        b"20;" + b"a" * 100_000 + b"\r\n" + TASK + b"\r\n0\r\n\r\n",
        b"20\r\n" + TASK + b"\r\n0\r\nX-Trailer: unheeded\r\n\r\n",
        b"".join(b"1\r\n%c\r\n" % byte for byte in TASK) + b"0\r\n\r\n",
    ],
    ids=["extensions", "a long extension", "a trailer", "a byte a chunk"],
)
async def test_chunks_may_be_as_odd_as_their_grammar_allows(node: Client, body: bytes) -> None:
    """Unknown extensions of chunks are ignored."""
    reader, writer = await node.connect()
    writer.write(CHUNKED + body)
    answer = await asyncio.wait_for(read_answer(reader), DEADLINE_S)
    await node.post(f"tasks/{answer.json['id']}/cancel")

    assert 202 == answer.status


async def test_a_body_of_endless_tiny_chunks_ends_at_the_limit_of_bytes(node: Client) -> None:
    """A body has the same bound however it is cut into chunks."""
    reader, writer = await node.connect()
    writer.write(CHUNKED)
    answering = asyncio.ensure_future(read_answer(reader))
    async with asyncio.timeout(DEADLINE_S):
        while not answering.done():
            writer.write(b"1\r\n \r\n" * 10_000)
            await asyncio.wait([answering], timeout=0.001)

    answer = answering.result()
    assert (413, "body-too-large") == (answer.status, answer.json["code"])


@pytest.mark.parametrize("token", ["acme", "wrong"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_a_packed_body_is_not_unpacked(
    node: Client, caplog: pytest.LogCaptureFixture, encoding: str, token: str
) -> None:
    """A compressed kilobyte counts as a kilobyte, and broken data causes no alarm."""
    with caplog.at_level(logging.WARNING):
        packed = gzip.compress(b" " * 2**20 + TASK)
        answers = [
            await node.post("tasks", body, token=token, Content_Encoding=encoding)
            for body in (packed, b"x" * 100)
        ]

    expected = (400, "invalid-body") if token == "acme" else (401, "unauthorized")
    assert [expected] * 2 == [(answer.status, answer.json["code"]) for answer in answers]
    assert [] == caplog.records


async def test_a_target_that_the_library_stumbles_over_ends_its_connection_alone(
    node: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that anybody can send for free must not fill the log."""
    with caplog.at_level(logging.WARNING):
        answers = await said(node, b"GET http://[]@/ HTTP/1.1\r\nHost: node\r\n\r\n")

    assert b"" == answers
    assert [] == caplog.records
    assert 200 == (await node.get("/healthz")).status


async def test_an_expectation_is_met_or_refused(node: Client) -> None:
    """`100-continue` is answered before the body comes; any other expectation is refused."""
    reader, writer = await node.connect()
    writer.write(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(TASK))
    go_on = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)
    writer.write(TASK)
    created = await asyncio.wait_for(read_answer(reader), DEADLINE_S)
    await node.post(f"tasks/{created.json['id']}/cancel")
    odd = await node.post("tasks", TASK, Expect="magic")

    assert go_on.startswith(b"HTTP/1.1 100 ")
    assert 202 == created.status
    assert (417, "expectation-failed") == (odd.status, odd.json["code"])


async def test_no_other_protocol_is_switched_to(node: Client) -> None:
    """A request to upgrade is answered like any other."""
    answers = [
        await node.get("/healthz", Connection="Upgrade", Upgrade="websocket"),
        await node.get("/healthz", Connection="Upgrade, HTTP2-Settings", Upgrade="h2c"),
    ]

    assert [200, 200] == [answer.status for answer in answers]


@pytest.mark.parametrize("state", [b"a=\xff", b"a=\xc3\xa9", b"a=\x80,b=c"])
async def test_a_trace_state_that_is_no_text_of_a_header_is_left_out(
    node: Client, state: bytes
) -> None:
    """By W3C Trace Context the trace continues without it, and the task is created."""
    parent = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    head = POST + b"Connection: close\r\nContent-Length: %d\r\n" % len(TASK)
    traced = head + b"traceparent: %b\r\ntracestate: %b\r\n\r\n" % (parent, state)

    answer = await said(node, traced + TASK)
    made = json.loads(answer.partition(b"\r\n\r\n")[2])

    assert b"202" == answer.split(b" ")[1]
    assert parent.decode() == made["traceParent"]
    assert "traceState" not in made


@pytest.mark.parametrize("second", [b"Bearer other", b"Bearer acme", b"", b"Basic x"])
async def test_a_caller_with_two_authorization_headers_is_refused(
    node: Client, second: bytes
) -> None:
    """A proxy before the node may have checked the other of the two headers."""
    once = b"GET /v1/codeq/admin/queues HTTP/1.1\r\nHost: node\r\nConnection: close\r\n"
    once += b"Authorization: Bearer acme\r\n"

    good = await said(node, once + b"\r\n")
    twice = await said(node, once + b"Authorization: %b\r\n\r\n" % second)

    assert b"200" == good.split(b" ")[1]
    assert b"401" == twice.split(b" ")[1]
