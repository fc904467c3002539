"""HTTP connections: requests over kept connections, at a tenth of a full client's cost.

A generator shares the cores with the nodes it measures, so its own cost distorts the figures.
"""

from __future__ import annotations

import asyncio
from typing import cast
from urllib.parse import urlsplit

import httptools


class Refused(Exception):
    """No connection was made: certainly nothing was sent."""


class Broken(Exception):
    """The connection ended, or took too long, before the answer was complete."""


class Connections:
    """Connections to one server: as many as there are requests in flight, kept for reuse.

    Args:
        url: `http://host:port`.
        token: Bearer token of every request.
        timeout_s: Of a request, including its connection.
    """

    def __init__(self, url: str, *, token: str, timeout_s: float) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._head = f"Host: {address.netloc}\r\nAuthorization: Bearer {token}\r\n".encode()
        self._timeout_s = timeout_s
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer.

        Raises:
            Refused: Nothing was sent.
            Broken: The outcome is unknown.
        """
        request = b"POST %b HTTP/1.1\r\n%bContent-Type: application/json\r\n" % (
            path.encode(),
            self._head,
        ) + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        connection = await self._taken()
        answer = await connection.ask(request, timeout_s=self._timeout_s)
        if connection.usable:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def _taken(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        connecting = asyncio.get_running_loop().create_connection(
            _Connection, self._host, self._port
        )
        try:
            _, connection = await asyncio.wait_for(connecting, self._timeout_s)
        except OSError as error:
            raise Refused(str(error)) from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection with one request at a time; the parser calls back with the answer's parts."""

    def __init__(self) -> None:
        self.usable = True
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._body: list[bytes] = []

    async def ask(self, request: bytes, *, timeout_s: float) -> tuple[int, bytes]:
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._body = []
        self._transport.write(request)
        late = loop.call_later(timeout_s, self._end, Broken(f"no answer for {timeout_s:g} s"))
        try:
            return await self._answer
        finally:
            late.cancel()

    def close(self) -> None:
        self._end(Broken("closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(Broken(f"no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(Broken(str(exc or "the connection was closed")))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.usable = False
            assert self._transport is not None
            self._transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._body)))

    def _end(self, broken: Broken) -> None:
        self.usable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(broken)
        if self._transport is not None:
            self._transport.abort()
