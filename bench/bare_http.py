"""Bare HTTP: keep-alive connections that cost a load generator a few microseconds a request."""

from __future__ import annotations

import asyncio
from typing import cast
from urllib.parse import urlsplit

Answer = tuple[int, bytes]


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request in flight.

    It knows enough HTTP/1.1 for servers that are being measured: bodies with a length or in
    chunks, and answers without a body.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._received = b""
        self._asked_s = 0.0

    @classmethod
    async def open(cls, url: str) -> Connection:
        """Connect to the host and port of a base URL.

        Raises:
            OSError: Nobody listens there.
        """
        where = urlsplit(url)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, where.hostname, where.port)
        return connection

    @property
    def closed(self) -> bool:
        """Whether either side has ended the connection."""
        return self._transport is None or self._transport.is_closing()

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a whole request; the future is its status and body.

        The future fails with ConnectionError when the connection ends first.
        """
        assert self._waiting is None, "one request in flight"
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        self._asked_s = loop.time()
        self._transport.write(request)
        return self._waiting

    def give_up(self, asked_before_s: float) -> None:
        """End the connection if its request has been waiting since before an instant."""
        if self._waiting is not None and self._asked_s < asked_before_s:
            self.close()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()

    # Of the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request in flight."""
        self._transport = None
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(ConnectionError(str(exc or "closed by the server")))

    def data_received(self, data: bytes) -> None:
        """Answer the request in flight once its answer is whole."""
        self._received = received = self._received + data if self._received else data
        answer = parse(received)
        if answer is None:
            return
        self._received = b""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            self.close()
        elif not waiting.done():
            waiting.set_result(answer)


def request_head(url: str, path: str, token: str) -> bytes:
    """Return a POST's header without its body's length, for `with_body`."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    ).encode()


def with_body(head: bytes, body: bytes) -> bytes:
    """Return the whole request."""
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


def parse(received: bytes) -> Answer | None:
    """Return status and body of one answer, or None while a part of it is missing.

    Args:
        received: From the status line on, with nothing after the answer's end.

    Raises:
        ValueError: This is no HTTP/1.1 answer.
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
    """Return the chunks from `at` as one, or None while the last one is missing."""
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
