"""Framing: one line for each known way to disagree on where a request ends, and what happens.

The facts are those of the request corpora of h11 and llhttp, and of the known smuggling attacks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.api.http.wire import Connections, Loop, statuses

_AFTER = b"POST /tasks HTTP/1.1\r\nHost: n\r\nContent-Length: 5\r\n\r\nafter"
_TWO = b"2\r\n{}\r\n0\r\n\r\n"


def _post(lines: bytes, body: bytes = b"", *, start: bytes = b"POST /tasks HTTP/1.1") -> bytes:
    return b"%b\r\nHost: n\r\n%b\r\n\r\n%b" % (start, lines, body)


def _chunked(body: bytes) -> bytes:
    return _post(b"Transfer-Encoding: chunked", body)


_KEPT = {
    "length": _post(b"Content-Length: 2", b"{}"),
    "length with zeros": _post(b"Content-Length: 002", b"{}"),
    "length between spaces": _post(b"Content-Length: \t 2 \t", b"{}"),
    "name in capitals": _post(b"CONTENT-LENGTH:2", b"{}"),
    "length, then another header": _post(b"Content-Length: 2\r\nOhai: world", b"{}"),
    "length of a GET": _post(b"Content-Length: 2", b"{}", start=b"GET /library HTTP/1.1"),
    "length of HTTP/1.0": _post(
        b"Connection: keep-alive\r\nContent-Length: 2", b"{}", start=b"POST /tasks HTTP/1.0"
    ),
    "chunked": _chunked(_TWO),
    "chunked in capitals": _post(b"transfer-encoding:CHUNKED", _TWO),
    "chunks": _chunked(b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"),
    "chunk sizes with zeros": _chunked(b"0002\r\n{}\r\n000\r\n\r\n"),
    "empty lines before": b"\r\n\r\n" + _post(b"Content-Length: 2", b"{}"),
    "a proxy's target": _post(
        b"Content-Length: 2", b"{}", start=b"POST http://node/tasks HTTP/1.1"
    ),
    "an offer to upgrade": _post(
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2", b"{}"
    ),
    "an offer of websocket": _post(
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2", b"{}"
    ),
    "the library's name for no length": _post(b"X-Content-Length: 9\r\nContent-Length: 2", b"{}"),
    "a name with an underscore": _post(b"Content_Length: 9\r\nContent-Length: 2", b"{}"),
    "bytes that are not ASCII": _post(b"X: \xc3\xa9\xff\r\nContent-Length: 2", b"{}"),
}
_LAST = {
    "close": _post(b"Connection: close\r\nContent-Length: 2", b"{}"),
    "HTTP/1.0": _post(b"Content-Length: 2", b"{}", start=b"POST /tasks HTTP/1.0"),
    "a trailer": _chunked(b"2\r\n{}\r\n0\r\nVary: *\r\n\r\n"),
    "a chunk extension": _chunked(b"2;a=b\r\n{}\r\n0\r\n\r\n"),
    "a quoted chunk extension": _chunked(b'2;a="b;c"\r\n{}\r\n0\r\n\r\n'),
    "an extension of the last chunk": _chunked(b"2\r\n{}\r\n0;a=b\r\n\r\n"),
}
_REFUSED = {
    "CL.TE": _post(b"Content-Length: 13\r\nTransfer-Encoding: chunked", b"0\r\n\r\nSMUGGLED"),
    "TE.CL": _post(
        b"Transfer-Encoding: chunked\r\nContent-Length: 4", b"1e\r\nGET /x HTTP/1.1\r\n"
    ),
    "TE.TE": _post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x", _TWO),
    "TE.TE, chunked last": _post(
        b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\nX: y", b"z"
    ),
    "no coding": _post(b"Transfer-Encoding:", _TWO),
    "no coding, and a length": _post(b"Transfer-Encoding:\r\nContent-Length: 2", b"{}"),
    "identity": _post(b"Transfer-Encoding: identity", _TWO),
    "identity and a length": _post(b"Transfer-Encoding: identity\r\nContent-Length: 2", b"{}"),
    "unknown coding": _post(b"Transfer-Encoding: pigeons", _TWO),
    "a coding that contains chunked": _post(b"Transfer-Encoding: xchunked", _TWO),
    "a coding that begins with chunked": _post(b"Transfer-Encoding: chunkedx", _TWO),
    "chunked, then another": _post(b"Transfer-Encoding: chunked, deflate", _TWO),
    "vertical tab": _post(b"Transfer-Encoding: \x0bchunked", _TWO),
    "quoted coding": _post(b'Transfer-Encoding: "chunked"', _TWO),
    "coding folded": _post(b"Transfer-Encoding:\r\n chunked", _TWO),
    "space before the colon": _post(b"Transfer-Encoding : chunked", _TWO),
    "tab before the colon": _post(b"Content-Length\t: 2", b"{}"),
    "space before the name": _post(b" Content-Length: 2", b"{}"),
    "folded": _post(b"X: a\r\n b\r\nContent-Length: 2", b"{}"),
    "folded in the name": _post(b"X\r\n : a\r\nContent-Length: 2", b"{}"),
    "lengths that agree": _post(b"Content-Length: 2\r\nContent-Length: 2", b"{}"),
    "lengths that differ": _post(b"Content-Length: 2\r\nContent-Length: 0", b"{}"),
    "a list of lengths": _post(b"Content-Length: 2, 2", b"{}"),
    "length +2": _post(b"Content-Length: +2", b"{}"),
    "length -2": _post(b"Content-Length: -2", b"{}"),
    "length 0x2": _post(b"Content-Length: 0x2", b"{}"),
    "length 2_0": _post(b"Content-Length: 2_0", b"{}"),
    "length 2 2": _post(b"Content-Length: 2 2", b"{}"),
    "length with a superscript": _post(b"Content-Length: \xb2", b"{}"),
    "empty length": _post(b"Content-Length:", b"{}"),
    "length beyond 64 bits": _post(b"Content-Length: 99999999999999999999", b"{}"),
    "CR in a value": _post(b"X: a\rContent-Length: 9\r\nContent-Length: 2", b"{}"),
    "LF in a value": _post(b"X: a\nContent-Length: 9\r\nContent-Length: 2", b"{}"),
    "LF after an empty value": _post(b"X:\nTransfer-Encoding: chunked", _TWO),
    "CR after an empty value": _post(b"X:\rTransfer-Encoding: chunked", _TWO),
    "CR before the empty line": _post(b"Content-Length: 2\r\n\rZ", b"{}"),
    "NUL in a value": _post(b"X: a\0b\r\nContent-Length: 2", b"{}"),
    "NUL in a name": _post(b"X\0: a\r\nContent-Length: 2", b"{}"),
    "control character in a name": _post(b"Fo\x01o: a\r\nContent-Length: 2", b"{}"),
    "at sign in a name": _post(b"Fo@: a\r\nContent-Length: 2", b"{}"),
    "no name": _post(b": a\r\nContent-Length: 2", b"{}"),
    "no colon": _post(b"nothing\r\nContent-Length: 2", b"{}"),
    "two hosts": _post(b"Host: m\r\nContent-Length: 2", b"{}"),
    "no host": b"POST /tasks HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "only LFs": b"POST /tasks HTTP/1.1\nHost: n\nContent-Length: 2\n\n{}",
    "space in the target": _post(b"A: b", start=b"GET /a b HTTP/1.1"),
    "NUL in the target": _post(b"A: b", start=b"GET /a\0b HTTP/1.1"),
    "no such version": _post(b"A: b", start=b"GET / HTTP/5.6"),
    "another protocol": _post(b"A: b", start=b"GET / RTSP/1.0"),
    "nearly the protocol": _post(b"A: b", start=b"GET / IHTTP/1.1"),
    "no such method": _post(b"A: b", start=b"MKCOLA / HTTP/1.1"),
    "method in small letters": _post(b"A: b", start=b"get / HTTP/1.1"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "chunk size beyond 64 bits": _chunked(b"ffffffffffffffff1\r\n{}\r\n0\r\n\r\n"),
    "chunk size 0x2": _chunked(b"0x2\r\n{}\r\n0\r\n\r\n"),
    "chunk size -2": _chunked(b"-2\r\n{}\r\n0\r\n\r\n"),
    "chunk size and a space": _chunked(b"2 \r\n{}\r\n0\r\n\r\n"),
    "chunk size and NUL": _chunked(b"2\0\r\n{}\r\n0\r\n\r\n"),
    "no chunk size": _chunked(b"\r\n{}\r\n0\r\n\r\n"),
    "chunk size and LF": _chunked(b"2\n{}\r\n0\r\n\r\n"),
    "chunk extension and LF": _chunked(b"2;a\n{}\r\n0\r\n\r\n"),
    "chunk extension without a name": _chunked(b"2;\r\n{}\r\n0\r\n\r\n"),
    "chunk extension with an open quote": _chunked(b'2;a="b\r\n{}\r\n0\r\n\r\n'),
    "no line end after a chunk": _chunked(b"2\r\n{}__0\r\n\r\n"),
    "half a line end after a chunk": _chunked(b"2\r\n{}\r_0\r\n\r\n"),
    "LF after a chunk": _chunked(b"2\r\n{}\n0\r\n\r\n"),
    "a chunk longer than its size": _chunked(b"2\r\n{}}\r\n0\r\n\r\n"),
    "a trailer that frames": _chunked(b"2\r\n{}\r\n0\r\nContent-Length: 50\r\n\r\n"),
    "CONNECT": _post(b"Content-Length: 2", b"{}", start=b"CONNECT /library HTTP/1.1"),
    "a folded trailer": _chunked(b"2\r\n{}\r\n0\r\nA: b\r\n c\r\n\r\n"),
}


@pytest.fixture(scope="module")
def connections() -> Iterator[tuple[Loop, Connections]]:
    """Give all cases one application."""
    loop = Loop()
    made = Connections()
    loop.run_until_complete(made.open())
    yield loop, made
    loop.run_until_complete(made.close())
    loop.close()


@pytest.mark.parametrize("whole", [True, False], ids=["fast", "library"])
@pytest.mark.parametrize(
    ("case", "bodies", "closed"),
    [
        *(pytest.param(each, [b"{}", b"after"], False, id=name) for name, each in _KEPT.items()),
        *(pytest.param(each, [b"{}"], True, id=name) for name, each in _LAST.items()),
        *(pytest.param(each, [], True, id=name) for name, each in _REFUSED.items()),
    ],
)
def test_a_request_ends_where_everybody_agrees_or_is_refused(
    case: bytes,
    bodies: list[bytes],
    closed: bool,
    whole: bool,
    connections: tuple[Loop, Connections],
) -> None:
    """It is served and the next follows, or it is the last, or the answer is 400 and the end."""
    loop, made = connections
    at_once, apart, bytewise = (
        loop.run_until_complete(made.ours([(each, True) for each in packets], whole=whole))
        for packets in (
            [case + _AFTER],
            [case, _AFTER],
            [bytes([each]) for each in case + _AFTER],
        )
    )

    for cut in (at_once, apart, bytewise):
        assert (bodies, closed) == ([each.body for each in cut.seen], cut.closed)
        assert statuses(cut) == ([b"200"] * len(bodies) or [b"400"])
    assert (not bodies) == at_once.answers.startswith(b"HTTP/1.0 400 ")
