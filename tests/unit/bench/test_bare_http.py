"""Bare HTTP: answers are read as servers send them, in whatever pieces they arrive."""

from __future__ import annotations

import pytest

from bench.bare_http import parse, request_head, with_body

_WITH_LENGTH = (
    b'HTTP/1.1 202 Accepted\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"id":"a"'
)
_CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n2;name=x\r\nef\r\n0\r\n\r\n"
)
_EMPTY = b"HTTP/1.1 204 No Content\r\nDate: now\r\n\r\n"


@pytest.mark.parametrize(
    ("received", "answer"),
    [
        (_WITH_LENGTH, (202, b'{"id":"a"')),
        (_CHUNKED, (200, b"abcdef")),
        (_EMPTY, (204, b"")),
        (b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", (200, b"")),
    ],
)
def test_an_answer_is_read_once_it_is_whole(received: bytes, answer: tuple[int, bytes]) -> None:
    """Status and body come out of the last byte, and nothing of any part before it."""
    parts = [parse(received[:end]) for end in range(len(received))]

    assert answer == parse(received)
    assert [None] * len(received) == parts


def test_what_is_no_http_is_refused() -> None:
    """A status that is no number is an error, no answer."""
    with pytest.raises(ValueError, match="invalid literal"):
        parse(b"SSH-2.0-OpenSSH\r\n\r\n")


def test_a_request_says_how_long_its_body_is() -> None:
    """Head and body make one request with host, token and length."""
    whole = with_body(request_head("http://127.0.0.1:80", "/tasks", "t"), b"{}")

    assert whole.startswith(b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1:80\r\n")
    assert b"Authorization: Bearer t\r\n" in whole
    assert whole.endswith(b"Content-Length: 2\r\n\r\n{}")
