"""Both readers: with and without the library, any bytes in any packets are the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, pairwise

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from codeq_cluster.api.http.message_ends import HEAD_BYTES_MAX
from tests.unit.api.http.wire import Connections, Loop, Outcome, each_answer, statuses

Packets = list[tuple[bytes, bool]]

_LENGTHS = (
    b"+2",
    b"-2",
    b"2, 2",
    b"2,3",
    b"0x2",
    b"002",
    b"2 ",
    b" 2",
    b"",
    b"2_0",
    b"9" * 25,
    b"\xb2",
)
_CODINGS = (
    b"chunked",
    b"Chunked",
    b"chunked, chunked",
    b"gzip, chunked",
    b"chunked, identity",
    b"identity",
    b"xchunked",
    b"\x0bchunked",
    b'"chunked"',
    b"",
)
_LINES = (
    *(b"Content-Length: " + each for each in _LENGTHS),
    *(b"Transfer-Encoding: " + each for each in _CODINGS),
    b"Content-Length: 2\r\nContent-Length: 2",
    b"content-length: 2\r\nContent-Length: 3",
    b"Content-Length : 2",
    b"Content-Length\t: 2",
    b" Content-Length: 2",
    b"Content_Length: 2",
    b"X: y\rContent-Length: 2",
    b"X: y\nContent-Length: 2",
    b"X: y\r\n folded",
    b"X: y\r\n\tContent-Length: 2",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding:chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    b"Transfer-Encoding:\r\n chunked",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Upgrade\r\nUpgrade: h2c",
    b"Connection: Upgrade\r\nUpgrade: websocket",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"Expect: 200-maybe",
    b"Host: other",
    b"Host: ",
    b"X-Nul: a\0b",
    b"X-High: \xe9\xff",
    b"X-Utf: \xc3\xa9",
    b"X-Control: \x01\x7f",
    b"X-Empty:",
    b"X-Spaces:  a  ",
    b"X-Under_score: a",
    b"X-Twice: a\r\nX-Twice: b",
    b"X-Request-Id: mine",
    b"X-Long: " + b"y" * 9000,
    b"X-Many: y\r\n" * 130 + b"X-End: y",
    b": nameless",
    b"colonless",
    b"X(Y): z",
)
_LONG_LINE = 8000
_TARGETS = (
    b"/tasks",
    b"/tasks/a/result",
    b"/library",
    b"/unread",
    b"/nothing",
    b"/tasks?a=b",
    b"/tasks#a",
    b"/tasks/%2e%2e/result",
    b"//tasks",
    b"http://node/tasks",
    b"node:1",
    b"*",
    b"/t\xffsks",
    b"/ta sks",
    b"",
    b"/library?" + b"q" * 9000,
)
_METHODS = (
    b"GET",
    b"HEAD",
    b"PUT",
    b"OPTIONS",
    b"CONNECT",
    b"PATCH",
    b"post",
    b"PRI",
    b"M-SEARCH",
    b"P\0ST",
)
_VERSIONS = (
    b"HTTP/1.0",
    b"HTTP/1.2",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"http/1.1",
    b"HTTP/1.1 ",
    b"HTTP/11",
)
_CHUNKS = (
    b"2\r\n{}\r\n0\r\n\r\n",
    b"2;a=b\r\n{}\r\n0\r\n\r\n",
    b'2;a="\r\n{}\r\n0\r\n\r\n',
    b"2;a\n{}\r\n0\r\n\r\n",
    b"02\r\n{}\r\n00\r\n\r\n",
    b"2\r\n{}\r\n0\r\nX-Trailer: y\r\n\r\n",
    b"2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n",
    b"4\r\n\r\n\r\n\r\n0\r\n\r\n",
    b"0\r\n\r\n",
    b"2\r\n{}0\r\n\r\n",
    b"2\n{}\n0\n\n",
    b"2 \r\n{}\r\n0\r\n\r\n",
    b"0x2\r\n{}\r\n0\r\n\r\n",
    b"-2\r\n{}\r\n0\r\n\r\n",
    b"ffffffffffffffff1\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}\r\n0",
    b"2\r\n{",
)
_PUT = (
    b"",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b":",
    b"\t",
    b"\0",
    b"A",
    b"0",
    b"\xff",
    b"GET ",
)


def _message(
    method: bytes, target: bytes, *lines: bytes, version: bytes = b"HTTP/1.1", body: bytes = b""
) -> bytes:
    return b"\r\n".join([b" ".join([method, target, version]), *lines, b"", body])


def _post(body: bytes, *lines: bytes, target: bytes = b"/tasks") -> bytes:
    return _message(
        b"POST", target, b"Host: n", *lines, b"Content-Length: %d" % len(body), body=body
    )


def _padded(message: bytes, head_bytes: int) -> bytes:
    """Return a message whose head, with its empty line, has this many bytes."""
    lines, _, body = message.partition(b"\r\n\r\n")
    left = head_bytes - len(lines) - 4
    while left:
        size = left if left <= _LONG_LINE else min(_LONG_LINE, left - len(b"\r\nX: y"))
        lines += b"\r\nX: ".ljust(size, b"y")
        left -= size
    return lines + b"\r\n\r\n" + body


_bodies = st.sampled_from([b"", b"{}", b"{}{}", b"\r\n\r\n", b"a" * 999, b"a" * 1001, b"\xff"])
_whole = st.builds(_post, _bodies, target=st.sampled_from([b"/tasks", b"/tasks/a/result"]))
_plain = st.one_of(
    st.builds(_post, _bodies, target=st.sampled_from([b"/library", b"/unread", b"/nothing"])),
    st.sampled_from([b"GET", b"HEAD", b"DELETE"]).map(
        lambda method: _message(method, b"/library", b"Host: n")
    ),
)
_smuggled = _post(b"{}")
_bodies_with_requests = _bodies | st.just(_smuggled) | st.just(_smuggled[:-4])
_chunked = st.builds(
    lambda target, lines, body: _message(
        b"POST", target, b"Host: n", *lines, b"Transfer-Encoding: chunked", body=body
    ),
    st.sampled_from([b"/tasks", b"/library", b"/unread"]),
    st.lists(st.sampled_from(_LINES), max_size=1),
    st.sampled_from(_CHUNKS),
)
_odd = st.builds(
    lambda method, target, version, lines, length, body: _message(
        method, target, *lines, *length, version=version, body=body
    ),
    st.just(b"POST") | st.sampled_from(_METHODS),
    st.just(b"/tasks") | st.sampled_from(_TARGETS),
    st.just(b"HTTP/1.1") | st.just(b"HTTP/1.1") | st.sampled_from(_VERSIONS),
    st.builds(
        lambda hosts, lines: [*hosts, *lines],
        st.sampled_from([[b"Host: n"]] * 7 + [[]]),
        st.lists(st.sampled_from(_LINES), max_size=3),
    ),
    st.sampled_from([[], [b"Content-Length: 2"], [b"Content-Length: %d" % len(_smuggled)]]),
    _bodies_with_requests,
)
_odd_post = st.builds(_post, st.just(b"{}"), st.sampled_from(_LINES))
# Heads up to, at and beyond the bound; the library has one for a single line alone.
_large = st.builds(
    lambda target, size: _padded(_post(b"{}", target=target), size),
    st.sampled_from([b"/tasks", b"/library"]),
    st.integers(HEAD_BYTES_MAX - 4, HEAD_BYTES_MAX + 4) | st.just(HEAD_BYTES_MAX + 4000),
)
# A head's beginning may take in the message that follows: as a header's value, or as the target.
_parts = st.sampled_from(
    [
        b"GET /library HTTP/1.1\r\nX-Glued: ",
        b"GET /library HTTP/1.1\r\nHost: n\r\nX-Glued: ",
        b"POST /library HTTP/1.1\r\nHost: n\r\nContent-Length: 400\r\n\r\n",
        b"POST /tasks HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n",
        b"POST /tasks HTTP/1.1\r\n",
        b"GET /library HTTP/1.1\r\nHost: n\r\n",
        b"GET ",
        b"\r\n",
        b"\r",
        b"\r\n\r\n",
        b"\0",
        b"\x16\x03\x01\x02",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]
)


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """Return a message with a few bytes inserted, removed or replaced."""
    data = bytearray(draw(_whole | _chunked))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(_PUT))
    return bytes(data)


_good = st.one_of(_whole, _whole, _plain, _chunked)
_seldom = st.integers(0, 19).map(lambda drawn: drawn == 7)
# A request follows the part of a head that came with an earlier request.
_glued = st.tuples(st.builds(bytes.__add__, _good, _parts), _whole)
_alone = st.one_of(_good, _whole, _parts, _odd, _odd_post, _damaged()).map(lambda each: (each,))
_often = st.sampled_from([True, True, True, False])


@st.composite
def _streams(draw: st.DrawFn) -> Packets:
    """Return messages, cut into packets at some of their ends and at some other places."""
    # A connection that ends with its first message would show little.
    first = draw(_whole | _plain)
    rest = list(chain(*draw(st.lists(_glued | _alone, min_size=1, max_size=4))))
    if draw(_seldom):  # The library gets its many bytes one by one.
        rest.append(draw(_large))
    messages = [first, *rest]
    if sum(map(len, messages)) < 600 and draw(st.sampled_from([False, False, True])):
        messages = [first] * 40 + rest  # More than the library takes at once.
    packets: Packets = []
    packet = b""
    for message in messages:
        inside = [] if draw(_often) else draw(st.lists(st.integers(0, len(message)), max_size=2))
        cuts = [0, *sorted(inside), len(message)]
        for begin, end in pairwise(cuts):
            packet += message[begin:end]
            if packet and (end < len(message) or draw(_often)):
                packets.append((packet, draw(_often)))
                packet = b""
    return [*packets, (packet, True)] if packet else packets


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    """Give all examples one loop."""
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def connections(loop: Loop) -> Iterator[Connections]:
    """Give all examples one application."""
    made = Connections()
    loop.run_until_complete(made.open())
    yield made
    loop.run_until_complete(made.close())


def _last_words(outcome: Outcome) -> bool:
    """Return whether the connection was closed, and its last answer said that it would be.

    A bad request is refused together with those in its packet whose ends are unknown, a head that
    is too large is refused, and a client that wants to leave HTTP is told that the connection ends.
    """
    last = b"".join(each_answer(outcome)[-1:])
    return outcome.closed and (last.startswith(b"HTTP/1.0 400 ") or b"Connection: close" in last)


def _begins(short: Outcome, long: Outcome, said: Callable[[Outcome], list[bytes]]) -> bool:
    """Return whether two connections went the same way, or one of them ended before the other.

    Args:
        short: The one that may have ended earlier, if it told its client.
        long: The other.
        said: Which parts of the answers must be the same.
    """
    if not _last_words(short):
        return (short.seen, said(short), short.closed) == (long.seen, said(long), long.closed)
    before = said(short)[:-1]
    return short.seen == long.seen[: len(short.seen)] and before == said(long)[: len(before)]


@settings(max_examples=300, deadline=None)
@given(packets=_streams())
@example(packets=[(_message(b"POST", b"/tasks", b"Content-Length: 2", body=b"{}"), True)])
@example(packets=[(_smuggled + _padded(_smuggled, HEAD_BYTES_MAX + 4), True)])
@example(
    packets=[
        (_post(b"aaaa", target=b"/unread")[:-2], True),
        (b"aa" + _message(b"GET", b"/a b", b"Host: n"), True),
    ]
)
@example(packets=[(_smuggled + b"GET /library HTTP/1.1\r\nX-Glued: ", True), (_smuggled, True)])
def test_requests_do_not_depend_on_their_reader_nor_on_packets(
    packets: Packets, connections: Connections, loop: Loop
) -> None:
    """With the fast reader, without it and cut in one way or another, requests are the same."""
    stream = b"".join(packet for packet, _ in packets)
    play = loop.run_until_complete
    fast = play(connections.ours(packets, whole=True))
    slow = play(connections.ours(packets, whole=False))
    uncut = play(connections.ours([(stream, True)], whole=True))
    library = play(connections.library(stream))
    event(f"whole {min(fast.whole, 3)}, seen {min(len(fast.seen), 3)}, closed {fast.closed}")

    assert (slow.seen, slow.answers, slow.closed) == (fast.seen, fast.answers, fast.closed)
    assert _begins(fast, library, statuses)
    assert _begins(uncut, library, statuses)
    assert _begins(uncut, fast, each_answer) or _begins(fast, uncut, each_answer)
