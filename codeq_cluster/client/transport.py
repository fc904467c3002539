"""Transport: one request to one node over HTTP, and its outcome."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from pathlib import Path

import aiohttp
import msgspec

from codeq_cluster.client import tracing
from codeq_cluster.client.refusals import (
    CLOSED,
    ConnectionGone,
    Refused,
    Unreachable,
    Untrusted,
    said,
)
from codeq_cluster.client.tokens import described
from codeq_cluster.errors import ConfigInvalid

# Room for two claimed batches of the largest bodies; a status of many shards is smaller.
_ANSWER_BYTES_MAX = 256 * 2**20
_PIECE_BYTES_MAX = 2**20
_CONNECT_S_MAX = 3.0
# With the search for the name, of which one dead server costs 5 s. A search that hangs is known to
# have sent nothing, and must not take the wait of a claim as well.
_FIND_S_MAX = 8.0
_RETRY_AFTER_S_MAX = 86_400
# Refusals whose cause is the token: the text says which one it was.
_ABOUT_TOKEN = frozenset({"unauthorized", "forbidden", "event-type-not-allowed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that can be sent to any node.

    Attributes:
        path: Includes the query.
        body: JSON, or raw bytes if `binary`; None for no body.
        wait_s: How long the request asks the broker to wait, in seconds.
        repeatable: Whether carrying it out twice is harmless.
        cookie: Name and value; empty for none.
        final: The code of a refusal that the caller has another way for, so the request is not
            repeated; empty for none.
    """

    method: str
    path: str
    body: bytes | None = None
    binary: bool = False
    wait_s: float = 0.0
    repeatable: bool = True
    cookie: str = ""
    final: str = ""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """A successful answer: its body and its headers."""

    content: bytes
    headers: Mapping[str, str]


class _Envelope(msgspec.Struct):
    """The body of a broker's error."""

    error: str = ""
    code: str = ""
    retryable: bool = False
    missing: tuple[str, ...] = ()
    detail: str = ""
    task_id: str = msgspec.field(default="", name="taskId")


class Transport:
    """Connections to the nodes of a cluster, kept open between requests."""

    def __init__(self, *, token: str, trust: ssl.SSLContext | None) -> None:
        """Prepare it.

        Args:
            token: Sent as a bearer token.
            trust: The context for https; None trusts the authorities of the system.
        """
        self._token = token
        self._headers = {"Authorization": f"Bearer {token}"}
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None
        self.is_open = True

    async def close(self) -> None:
        """Close the connections; requests raise `ConnectionGone` from then on."""
        self.is_open = False
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, url: str, request: Request, *, timeout_s: float) -> ServerAnswer:
        """Send a request to one node, once.

        Args:
            url: The node's base URL.
            timeout_s: From now to the last byte of the answer.

        Raises:
            Unreachable: The node took no connection, so nothing was sent.
            Refused: The answer is an error; or no answer came, and the status is 0.
            ConnectionGone: It is closed.
        """
        headers = {
            "Content-Type": "application/octet-stream" if request.binary else "application/json"
        }
        if request.cookie:
            headers["Cookie"] = request.cookie
        tracing.inject(headers)
        timeout = aiohttp.ClientTimeout(
            total=timeout_s,
            connect=min(_FIND_S_MAX, timeout_s - request.wait_s),
            sock_connect=min(_CONNECT_S_MAX, timeout_s),
        )
        with _told(url, request.method):
            async with self._open().request(
                request.method,
                url + request.path,
                data=_data(request.body),
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                ssl=self._trust or True,
            ) as response:
                return await self._answer(response)

    @asynccontextmanager
    async def streamed(
        self, url: str, request: Request, *, after: str, silent_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a stream of events of one node; yield its lines, without their ends.

        Args:
            url: The node's base URL.
            request: A GET without a body.
            after: The last id seen; empty for none.
            silent_s: The stream fails if nothing arrives for so long.

        Raises:
            Unreachable: The node took no connection.
            Refused: The answer is an error; or the stream broke, and the status is 0.
        """
        headers = {"Accept": "text/event-stream"}
        if after:
            headers["Last-Event-ID"] = after
        timeout = aiohttp.ClientTimeout(
            total=None, connect=_FIND_S_MAX, sock_connect=_CONNECT_S_MAX, sock_read=silent_s
        )
        with _told(url, request.method):
            async with self._open().get(
                url + request.path,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                ssl=self._trust or True,
            ) as response:
                if response.status != 200:
                    await self._answer(response)
                    raise foreign(response.url, response.status)
                yield (line.rstrip(b"\r\n") async for line in response.content)

    async def _answer(self, response: aiohttp.ClientResponse) -> ServerAnswer:
        content = await _content(response)
        if response.status < 300:
            return ServerAnswer(content, response.headers)
        try:
            refusal = msgspec.json.decode(content, type=_Envelope)
        except msgspec.DecodeError as error:
            raise foreign(response.url, response.status) from error
        text = refusal.error or f"{response.url}: no reason given"
        if refusal.missing:
            text = f"{text}: {', '.join(refusal.missing)}"
        text = said(text, refusal.detail)
        if refusal.code in _ABOUT_TOKEN:
            text = f"{text}: {described(self._token)}"
        raise Refused(
            text,
            status=response.status,
            code=refusal.code,
            retryable=refusal.retryable,
            retry_after_s=_retry_after_s(response.headers.get("Retry-After", "")),
            nothing_done=response.headers.get("X-Outcome") == "not-applied",
            task_id=refusal.task_id,
        )

    def _open(self) -> aiohttp.ClientSession:
        if not self.is_open:
            raise ConnectionGone(CLOSED)
        if self._session is None:
            # Callers bound how many requests are under way. A limit here would queue heartbeats
            # behind claims.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=connector,
                # Any node accepts a session cookie of the page; a cookie jar would send it only to
                # the node that set it.
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            # The library would send a PUT or DELETE again whose connection broke, also one that
            # must not be repeated, and then say only that the dead node takes no connection.
            self._session._retry_connection = False  # noqa: SLF001 - there is no option for it
        return self._session


def trust(ca_file: Path | None) -> ssl.SSLContext:
    """Return an https context that trusts only these authorities, or the system's.

    Raises:
        ConfigInvalid: The file holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigInvalid(f"ca={ca_file}: {error}; must be a PEM file") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@contextmanager
def _told(url: str, method: str) -> Iterator[None]:
    """Raise what goes wrong within the block as what it means to a caller."""
    try:
        yield
    except aiohttp.ClientSSLError as error:
        raise Untrusted(f"no TLS with {url}: {error.os_error or error}") from error
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise Unreachable(f"no node takes a connection: {url}") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        text = f"{url}: the answer did not come ({str(error) or type(error).__name__})"
        if method == "GET":
            raise Refused(text, status=0, code="no-answer", retryable=True) from error
        raise Refused(
            f"{text}; outcome unknown", status=0, code="outcome-unknown", retryable=True
        ) from error


def _data(body: bytes | None) -> bytes | BytesIO | None:
    """Return a body as the library wants it: a large one in chunks."""
    return BytesIO(body) if body is not None and len(body) > _PIECE_BYTES_MAX else body


def foreign(where: object, status: int) -> Refused:
    """Return the error for an answer that does not come from a broker."""
    return Refused(f"{where}: HTTP {status}, not JSON; is this a codeq-cluster?", status=status)


def _retry_after_s(text: str) -> int:
    """Return a `Retry-After` in seconds, from a number or a date; 0 if it is neither."""
    if text.isdecimal():
        return min(int(text[:9]), _RETRY_AFTER_S_MAX)
    try:
        left = parsedate_to_datetime(text) - datetime.now(UTC)
    except (TypeError, ValueError):
        return 0
    return min(max(0, round(left.total_seconds())), _RETRY_AFTER_S_MAX)


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """Read a whole answer; refuse one that is longer than a broker's answer can be."""
    pieces = bytearray()
    async for piece in response.content.iter_any():
        pieces += piece
        if len(pieces) > _ANSWER_BYTES_MAX:
            raise Refused(
                f"{response.url}: the answer has more than {_ANSWER_BYTES_MAX} bytes",
                status=response.status,
            )
    return bytes(pieces)
