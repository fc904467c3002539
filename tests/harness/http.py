"""HTTP: requests of tests and loads over kept connections, at 0.02 to 0.03 ms of CPU each.

The load generators share the cores with the nodes they measure, so their client must be cheap. It
supports the parts of HTTP/1.1 that these servers send: a body with a length, a body in chunks, or
no body.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

import msgspec

# The status of a request whose connection ended before its answer.
UNANSWERED = 0
ANSWER_WITHIN_S = 15.0

_END = b"\r\n\r\n"


class Refused(ConnectionError):
    """No connection was made: certainly nothing was sent."""


class Broken(ConnectionError):
    """The connection ended before the answer was complete: the outcome is unknown."""


class Late(Broken):
    """The answer did not come in time."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """One answer.

    Attributes:
        status: UNANSWERED if there is no answer; then `body` has the reason.
        head: Status line and headers, as they came.
    """

    status: int
    head: bytes
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """Headers by their names in lower case; of several with one name, the last."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return {name.lower(): value.strip() for name, _, value in pairs}

    @property
    def json(self) -> Any:
        """The body decoded.

        Raises:
            msgspec.DecodeError: It is not JSON.
        """
        return msgspec.json.decode(self.body)


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request in flight.

    Args:
        answered: Called with each answer, in the same pass of the loop that received its end; with
            status UNANSWERED if there will be none.
    """

    def __init__(self, answered: Callable[[HttpAnswer], None]) -> None:
        self.answered = answered
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._asked_s: float | None = None
        self._bodiless = False
        self._fault = ""

    @classmethod
    async def open(
        cls,
        url: str,
        answered: Callable[[HttpAnswer], None],
        *,
        trust: ssl.SSLContext | None = None,
    ) -> Connection:
        """Connect to the host and port of a base URL.

        Args:
            url: `http://host:port` or `https://host:port`.
            answered: As of the class.
            trust: Verifies the server's certificate; without effect on plain HTTP.

        Raises:
            OSError: Nobody listens there, or the certificate is not trusted.
        """
        where = urlsplit(url)
        secure = where.scheme == "https"
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: cls(answered),
            where.hostname or "",
            where.port or (443 if secure else 80),
            ssl=(trust or True) if secure else None,
        )
        return connection

    @property
    def closed(self) -> bool:
        """Whether either side has ended the connection."""
        return self._transport is None or self._transport.is_closing()

    def ask(self, request: bytes, now_s: float) -> None:
        """Send a whole request; `answered` is called at its end.

        Raises:
            Refused: The connection was lost before.
        """
        assert self._asked_s is None, "one request in flight"
        if self._transport is None or self._transport.is_closing():
            raise Refused("the connection was lost before its request")
        self._asked_s = now_s
        self._bodiless = request.startswith(b"HEAD ")
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
            reason = self._fault or str(exc or "closed by the server")
            self.answered(HttpAnswer(UNANSWERED, b"", reason.encode()))

    def data_received(self, data: bytes) -> None:
        """Report the answer of the request in flight once it is complete."""
        if self._received:
            data = self._received + data
        try:
            answer = parse(data, bodiless=self._bodiless)
        except ValueError as error:
            self._fault = f"no HTTP: {error}"
            self.close()
            return
        if answer is None:
            self._received = data
            return
        self._received = b""
        if self._asked_s is None:
            self.close()  # Bytes without a request: the next answer would be misread.
            return
        self._asked_s = None
        self.answered(answer)


class HttpClient:
    """Requests to any number of servers, with one connection per request in flight.

    An async context manager; leaving it closes every connection.

    Args:
        timeout_s: Of a request, including its connection.
        trust: Verifies the servers' certificates; without effect on plain HTTP.
        keep: Reuse connections; otherwise each request opens one.
    """

    def __init__(
        self,
        *,
        timeout_s: float = ANSWER_WITHIN_S,
        trust: ssl.SSLContext | None = None,
        keep: bool = True,
    ) -> None:
        self._timeout_s = timeout_s
        self._trust = trust
        self._keep = keep
        self._idle: dict[str, list[Connection]] = {}
        self._busy: set[Connection] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; requests in flight end as Broken."""
        for connection in (*self._busy, *(each for idle in self._idle.values() for each in idle)):
            connection.close()
        self._idle.clear()
        await asyncio.sleep(
            0
        )  # The loop closes the sockets of aborted transports in its next pass.

    async def send(
        self,
        method: str,
        url: str,
        path: str,
        *,
        token: str = "",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        connect_s: float | None = None,
    ) -> HttpAnswer:
        """Send one request and return its answer, whatever its status.

        Args:
            method: HTTP method.
            url: Base URL of the server.
            path: With its query.
            token: Bearer token; empty for none.
            body: None sends none.
            headers: Further headers.
            timeout_s: Of this request, including its connection; None for the client's.
            connect_s: Of its connection; None for the same.

        Raises:
            Refused: Nothing was sent.
            Broken: The outcome is unknown; Late if the time was over.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        request = request_bytes(method, url, path, token=token, body=body, headers=headers)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[HttpAnswer] = loop.create_future()
        late_s = loop.time() + timeout_s
        connection = await self._taken(url, connect_s or timeout_s)
        connection.answered = partial(_settle, ended)
        self._busy.add(connection)
        late = loop.call_at(late_s, _expire, ended)
        try:
            connection.ask(request, loop.time())
            answer = await ended
        except BaseException:
            connection.close()
            raise
        finally:
            late.cancel()
            self._busy.discard(connection)
        if self._keep and b"\r\nconnection: close" not in answer.head.lower():
            self._idle.setdefault(url, []).append(connection)
        else:
            connection.close()
        return answer

    async def _taken(self, url: str, within_s: float) -> Connection:
        idle = self._idle.get(url)
        while idle:
            connection = idle.pop()
            if not connection.closed:
                return connection
        try:
            async with asyncio.timeout(within_s):
                return await Connection.open(url, _unheard, trust=self._trust)
        except OSError as error:
            raise Refused(f"{type(error).__name__}: {error}") from error


def fetch(
    method: str, url: str, path: str, *, token: str = "", body: bytes | None = None
) -> HttpAnswer:
    """Return the answer to one request, for callers outside of an event loop.

    Raises:
        ConnectionError: As of `HttpClient.send`.
    """

    async def sent() -> HttpAnswer:
        async with HttpClient() as client:
            return await client.send(method, url, path, token=token, body=body)

    return asyncio.run(sent())


def request_bytes(
    method: str,
    url: str,
    path: str,
    *,
    token: str = "",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return a whole request; a body is JSON unless a header says otherwise."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {url.partition('://')[2]}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
        if not headers or "Content-Type" not in headers:
            lines.append("Content-Type: application/json")
    elif method in {"POST", "PUT"}:
        lines.append("Content-Length: 0")
    if headers:
        lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def parse(received: bytes, *, bodiless: bool = False) -> HttpAnswer | None:
    """Return one answer, or None while a part of it is missing.

    Args:
        received: From the status line on, with nothing after the answer's end.
        bodiless: It answers a HEAD, whose announced body does not come.

    Raises:
        ValueError: This is not an HTTP/1.1 answer.
    """
    end = received.find(_END)
    if end < 0:
        return None
    head = received[:end]
    status = int(head[9:12])
    if bodiless:
        return HttpAnswer(status, head, b"")
    length = body_bytes(head)
    if length is not None:
        body = received[end + 4 :]
        return HttpAnswer(status, head, body) if len(body) >= length else None
    if b"\r\ntransfer-encoding: chunked" in head.lower():
        joined = _joined(received, end + 4)
        return None if joined is None else HttpAnswer(status, head, joined)
    return HttpAnswer(status, head, b"")


def body_bytes(head: bytes) -> int | None:
    """Return the length of the body that a head announces, or None if it announces none."""
    head = head.lower()
    length_at = head.find(b"\r\ncontent-length:")
    if length_at < 0:
        return None
    line_end = head.find(b"\r\n", length_at + 2)
    return int(head[length_at + 17 : line_end if line_end > 0 else None])


def _joined(received: bytes, at: int) -> bytes | None:
    """Return the joined chunks from `at`, or None while the last one is missing."""
    chunks: list[bytes] = []
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


def _settle(ended: asyncio.Future[HttpAnswer], answer: HttpAnswer) -> None:
    if ended.done():
        return
    if answer.status == UNANSWERED:
        ended.set_exception(Broken(answer.body.decode()))
    else:
        ended.set_result(answer)


def _expire(ended: asyncio.Future[HttpAnswer]) -> None:
    if not ended.done():
        ended.set_exception(Late("no answer in time"))


def _unheard(_answer: HttpAnswer) -> None:
    """Do nothing: no request is in flight."""
