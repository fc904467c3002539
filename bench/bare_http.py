"""Bare HTTP: keep-alive connections that cost a load generator a few microseconds a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

# The status of a request whose connection ended before its answer.
UNANSWERED = 0


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request in flight.

    It knows enough HTTP/1.1 for the servers measured here: bodies with a length or in chunks, and
    answers without a body.

    Args:
        answered: Called with status and body of each answer, in the same pass of the loop that
            received its end; with UNANSWERED and the reason if there will be none.
    """

    def __init__(self, answered: Callable[[int, bytes], None]) -> None:
        self._answered = answered
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._asked_s: float | None = None

    @classmethod
    async def open(cls, url: str, answered: Callable[[int, bytes], None]) -> Connection:
        """Connect to the host and port of a base URL.

        Raises:
            OSError: Nobody listens there.
        """
        where = urlsplit(url)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: cls(answered), where.hostname, where.port
        )
        return connection

    @property
    def closed(self) -> bool:
        """Whether either side has ended the connection."""
        return self._transport is None or self._transport.is_closing()

    def ask(self, request: bytes, now_s: float) -> None:
        """Send a whole request; `answered` is called at its end."""
        assert self._asked_s is None, "one request in flight"
        assert self._transport is not None, "not closed"
        self._asked_s = now_s
        self._transport.write(request)

    def give_up(self, asked_before_s: float) -> None:
        """End the connection if its request has been waiting since before an instant."""
        if self._asked_s is not None and self._asked_s < asked_before_s:
            self.close()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    # The callbacks of asyncio's protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the request in flight gets no answer."""
        self._transport = None
        if self._asked_s is not None:
            self._asked_s = None
            self._answered(UNANSWERED, str(exc or "closed by the server").encode())

    def data_received(self, data: bytes) -> None:
        """Report the answer of the request in flight once it is complete."""
        if self._received:
            data = self._received + data
        answer = parse(data)
        if answer is None:
            self._received = data
            return
        self._received = b""
        if self._asked_s is None:
            self.close()  # Bytes without a request: the next answer would be misread.
            return
        self._asked_s = None
        self._answered(*answer)


def request_head(url: str, path: str, token: str) -> bytes:
    """Return a POST's header without its Content-Length, for `with_body`."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    ).encode()


def with_body(head: bytes, body: bytes) -> bytes:
    """Return the whole request."""
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


def parse(received: bytes) -> tuple[int, bytes] | None:
    """Return status and body of one answer, or None while a part of it is missing.

    Args:
        received: From the status line on, with nothing after the answer's end.

    Raises:
        ValueError: This is not an HTTP/1.1 answer.
    """
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head, status = received[:end].lower(), int(received[9:12])
    length_at = head.find(b"\r\ncontent-length:")
    if length_at >= 0:
        line_end = head.find(b"\r\n", length_at + 2)
        length = int(head[length_at + 17 : line_end if line_end > 0 else None])
        body = received[end + 4 :]
        return (status, body) if len(body) >= length else None
    if b"\r\ntransfer-encoding: chunked" in head:
        body = _joined(received, end + 4)
        return None if body is None else (status, body)
    return status, b""


def _joined(received: bytes, at: int) -> bytes | None:
    """Return the joined chunks from `at`, or None while the last one is missing."""
    chunks = []
    while True:
        line_end = received.find(b"\r\n", at)
        if line_end < 0:
            return None
        size = int(received[at:line_end].partition(b";")[0], 16)
        chunk_end = line_end + 2 + size
        if len(received) < chunk_end + 2:
            return None
        if size == 0:
            return b"".join(chunks)
        chunks.append(received[line_end + 2 : chunk_end])
        at = chunk_end + 2
