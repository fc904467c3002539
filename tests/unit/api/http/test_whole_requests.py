"""Whole requests: the fast parser reads each as the library would, or leaves it to the library."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError, HttpRequestParser, HttpVersion11
from hypothesis import example, given
from hypothesis import strategies as st

from codeq_cluster.api.app import BASE, ROUTES
from codeq_cluster.api.http.whole_requests import Whole, WholeRoutes

_ID = "0190a5e0-0000-7000-8000-000000000000"
_LINES = (
    b"Host: node",
    b"Authorization: Bearer token",
    b"authorization: Bearer other",
    b"Content-Type: application/json",
    b"Content-Length: 2",
    b"content-length: 2",
    b"Content-Length: 1",
    b"Content-Length: +2",
    b"Content-Length: 2, 2",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Connection: keep-alive",
    b"Connection: Keep-Alive",
    b"Connection: close",
    b"Connection: upgrade",
    b"Upgrade: websocket",
    b"Expect: 100-continue",
    b"Content-Encoding: gzip",
    b"X-Empty: ",
    b"X-None:",
    b"X-Spaces:  two  ",
    b"X-Tab: a\tb",
    b"X-Text: a b: c",
    b"X-Folded: a\r\n b",
    b"X-Bare: a\nX-Line: b",
    b"X-Return: a\rb",
    b"X-Nul: a\0b",
    b"X-Latin: \xe9",
    b"X Space: a",
    b" X-Indented: a",
    b"X-Under_score: a",
    b": no name",
    b"no colon",
)
_PATHS = (
    b"/tasks",
    b"/tasks/",
    b"/tasks/claim",
    b"/tasks/claim/batch",
    b"/tasks/id/result",
    b"/tasks/id/result/",
    b"/tasks/../result",
    b"/tasks/./result",
    b"/tasks//result",
    b"/tasks/a%2Fb/result",
    b"/tasks/a:b/heartbeat",
    b"/tasks?consistency=stale",
    b"/tasks#part",
    b"/tasksresult",
    b"/tasks/id/explain",
)


@dataclass(frozen=True, slots=True)
class Read:
    """The content of a request, from either parser."""

    path: str
    headers: dict[str, str]
    body: bytes


def routes(*, body_bytes_max: int = 1000) -> WholeRoutes[str]:
    """Return the table of the application, each route named by its path."""
    table = WholeRoutes[str](BASE + "/tasks", body_bytes_max=body_bytes_max)
    for route in ROUTES:
        if route.whole:
            table.add(route.path, route.path)
    return table


def request(
    path: str = "/tasks", body: bytes = b"{}", *lines: bytes, version: bytes = b"1.1"
) -> bytes:
    """Return a request of the busiest kind, with further lines in its head."""
    head = [
        b"POST %b HTTP/%b" % ((BASE + path).encode(), version),
        b"Host: node",
        b"Authorization: Bearer token",
        b"Content-Length: %d" % len(body),
        *lines,
    ]
    return b"\r\n".join([*head, b"", body])


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Give the library's parser the event loop that it requires."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def by_the_library(data: bytes, loop: asyncio.AbstractEventLoop) -> Read | None:
    """Return the only request in `data` by the library's parser, if the connection stays open."""
    protocol = BaseProtocol(loop)
    parser = HttpRequestParser(protocol, loop, 2**16, max_headers=128, auto_decompress=False)
    protocol._parser = parser  # As the library's own protocols do.
    try:
        messages, upgraded, rest = parser.feed_data(data)
    except HttpProcessingError:
        return None
    if len(messages) != 1 or upgraded or rest:
        return None
    message, payload = messages[0]
    if message.should_close or message.version != HttpVersion11 or not payload.is_eof():
        return None
    headers = {name.lower(): text for name, text in message.headers.items()}
    assert len(message.headers) == len(headers)
    body = b"" if payload.at_eof() else payload.read_nowait()
    return Read(str(message.url), headers, body)


_heads = st.builds(
    lambda start, lines, body: b"\r\n".join([start, *lines, b"", body]),
    st.builds(
        b"%b %b%b HTTP/%b".__mod__,
        st.tuples(
            st.sampled_from([b"POST", b"POST", b"POST", b"GET", b"post"]),
            st.just(BASE.encode()),
            st.sampled_from(_PATHS),
            st.sampled_from([b"1.1", b"1.1", b"1.1", b"1.0", b"2.0"]),
        ),
    ),
    st.lists(st.sampled_from(_LINES), max_size=6),
    st.sampled_from([b"", b"{}", b"{}{}", b"\xff\xff"]),
)
_usual = st.builds(
    request,
    st.sampled_from([path.decode() for path in _PATHS]),
    st.sampled_from([b"", b"{}", b"\xff\xff"]),
    st.sampled_from(_LINES),
)


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """Return a usual request with a few bytes inserted, removed or replaced."""
    data = bytearray(draw(_usual))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        put = draw(st.sampled_from([b"", b"\r", b"\n", b"\r\n", b" ", b":", b"\t", b"\0", b"A"]))
        data[at : at + draw(st.integers(0, 2))] = put
    return bytes(data)


@given(data=st.one_of(_usual, _damaged(), _heads))
@example(data=request())
@example(data=request(f"/tasks/{_ID}/result"))
def test_the_fast_parser_reads_requests_as_the_library_would(
    data: bytes, loop: asyncio.AbstractEventLoop
) -> None:
    """Path, headers and body agree, and the library would keep the connection too."""
    found = routes().read(data)
    if found is not None:
        _, whole = found
        path = data.split(b" ", 2)[1].decode()

        assert Read(path, dict(whole.headers), whole.body) == by_the_library(data, loop)


@pytest.mark.parametrize("pattern", [each.path for each in ROUTES if each.whole])
def test_every_route_that_takes_whole_requests_is_found(pattern: str) -> None:
    """The path matches the route's pattern, with an id in place of the parameter."""
    found = routes().read(request(pattern.removeprefix(BASE).replace("{id}", _ID)))

    assert found is not None
    assert (
        pattern,
        {"id": _ID} if "{id}" in pattern else {},
    ) == (found[0], found[1].match_info)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(request()[:-1], id="less than a request"),
        pytest.param(request() * 2, id="more than a request"),
        pytest.param(request(body=b"x" * 1001), id="a body beyond the limit"),
        pytest.param(request("/tasks", b"{}", b"X-Long: " + b"y" * 8000), id="a long head"),
        pytest.param(
            request("/tasks", b"{}", *(b"X-%d: y" % n for n in range(64))), id="many headers"
        ),
        pytest.param(request("/tasks", b"{}", b"Host: other"), id="a header twice"),
        pytest.param(request("/tasks", b"{}", b"Connection: close"), id="the last request"),
        pytest.param(request("/tasks", b"{}", b"Expect: 100-continue"), id="an expectation"),
        pytest.param(request(version=b"1.0"), id="an older version"),
        pytest.param(request("/tasks?a=b"), id="a query"),
        pytest.param(request("/tasks/a%41/result"), id="an escape in the path"),
        pytest.param(request("/tasks/../result"), id="a way up"),
        pytest.param(request("/tasks//result"), id="no id"),
        pytest.param(request("/tasks/id/explain"), id="another route"),
        pytest.param(request("/nothing"), id="no route"),
    ],
)
def test_what_is_no_usual_request_is_left_to_the_library(data: bytes) -> None:
    """The library knows how to answer it, and enforces the limits."""
    assert routes().read(request()) is not None
    assert routes().read(data) is None


def test_a_body_of_the_greatest_size_is_read_here() -> None:
    """The bound is the same as in the library's parser."""
    found = routes(body_bytes_max=2).read(request(body=b"{}"))

    assert found is not None
    assert isinstance(found[1], Whole)
    assert b"{}" == found[1].body
