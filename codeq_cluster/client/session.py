"""Session: requests to the nodes of one cluster, and what is made of their answers."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlencode

import aiohttp

from codeq_cluster.client.refusals import Refused, Unreachable, Untrusted
from codeq_cluster.errors import ConfigInvalid

BASE = "/v1/codeq"

# Two claimed batches of the largest bodies fit; a status of many shards is smaller.
_ANSWER_BYTES_MAX = 256 * 2**20
_CONNECT_S_MAX = 3.0


class Session:
    """A session with the nodes of one cluster; an async context manager.

    A request goes to the first node that takes the connection. Once it is sent it is not sent
    again, since only the caller knows whether a second time would do harm; the next request
    begins with the next node, as the one that did not answer may be gone.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str,
        timeout_s: float = 15.0,
        ca_file: Path | None = None,
    ) -> None:
        """Prepare a session.

        Args:
            urls: Base URLs, at least one, tried in order.
            token: Sent as a bearer token.
            timeout_s: Of one request; a wait the request asks for comes on top.
            ca_file: PEM file of the only authorities believed for https; None believes those of
                the system.

        Raises:
            ConfigInvalid: The file holds no certificate.
        """
        assert urls
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
        }
        self._timeout_s = timeout_s
        self._trust = trust(ca_file)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Whoever calls bounds how much is under way; heartbeats must not queue behind claims.
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(headers=self._headers, connector=connector)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session
        await self._session.close()

    async def raft_status(self) -> Mapping[str, object]:
        """Return the groups of the node, as it sees them."""
        return await self._call("GET", f"{BASE}/raft/status")

    async def _call(
        self, method: str, path: str, *, body: str | bytes | None = None, wait_s: int = 0
    ) -> Mapping[str, object]:
        """Send one request whose answer is an object, an empty one for an empty answer.

        A body of bytes is sent as such, any other as JSON.

        Raises:
            Unreachable: No node took the connection.
            Refused: The answer is an error, or the connection broke after the request was sent.
        """
        answer = await self._ask(method, path, body=body, wait_s=wait_s)
        if not isinstance(answer, dict):
            raise Refused(f"{path}: the answer is no JSON object", status=200)
        return answer

    async def _list(self, path: str) -> Sequence[object]:
        """Read a list; raises as `_call` does."""
        answer = await self._ask("GET", path)
        if not isinstance(answer, list):
            raise Refused(f"{path}: the answer is no JSON list", status=200)
        return answer

    async def _ask(
        self, method: str, path: str, *, body: str | bytes | None = None, wait_s: int = 0
    ) -> object:
        content, _ = await self._exchange(method, path, body=body, wait_s=wait_s)
        return content

    async def _exchange(
        self, method: str, path: str, *, body: str | bytes | None = None, wait_s: int = 0
    ) -> tuple[object, Mapping[str, str]]:
        """Send one request and return its answer and the headers that came with it.

        A read goes on to the next node also when one takes the connection and does not answer.
        """
        assert self._session
        timeout = aiohttp.ClientTimeout(
            total=self._timeout_s + wait_s, sock_connect=min(_CONNECT_S_MAX, self._timeout_s)
        )
        media = {"Content-Type": "application/octet-stream"} if isinstance(body, bytes) else None
        last: Exception | None = None
        silent: Refused | None = None
        for url in self._urls:
            try:
                async with self._session.request(
                    method,
                    url + path,
                    data=body,
                    headers=media,
                    timeout=timeout,
                    allow_redirects=False,
                    ssl=self._trust,
                ) as response:
                    return await _answer(response), response.headers
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                last = error
            except (aiohttp.ClientError, TimeoutError) as error:
                self._turn(url)
                text = f"{url}: the answer did not come ({str(error) or type(error).__name__})"
                if method != "GET":
                    raise Refused(
                        f"{text}; outcome unknown", status=0, code="outcome-unknown", retryable=True
                    ) from error
                last, silent = error, Refused(text, status=0, code="no-answer", retryable=True)
        if silent is not None:
            raise silent from last
        reached = ", ".join(self._urls)
        if isinstance(last, aiohttp.ClientSSLError):
            raise Untrusted(f"no TLS with {reached}: {last.os_error or last}") from last
        raise Unreachable(f"no node takes a connection: {reached}") from last

    def _turn(self, url: str) -> None:
        """Let the next request begin with the node after this one."""
        after = self._urls.index(url) + 1
        self._urls = self._urls[after:] + self._urls[:after]


def trust(ca_file: Path | None) -> ssl.SSLContext:
    """Return the context of https that believes these authorities alone, or the system's.

    Raises:
        ConfigInvalid: The file holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigInvalid(f"ca={ca_file}: {error}; allowed is a PEM file") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def part(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


def query(**values: str | int) -> str:
    """Return a query of those values that say something, with its question mark; or nothing."""
    given = {name: value for name, value in values.items() if value != ""}
    return f"?{urlencode(given)}" if given else ""


async def _answer(response: aiohttp.ClientResponse) -> object:
    content = await _content(response)
    try:
        document = json.loads(content) if content else {}
    except ValueError:
        document = None
    if not isinstance(document, dict | list):
        raise Refused(
            f"{response.url}: HTTP {response.status}, not JSON; is this a codeq-cluster?",
            status=response.status,
        )
    if response.status < 300:
        return document
    told = document if isinstance(document, dict) else {}
    text = str(told.get("error") or f"{response.url}: no reason given")
    missing = told.get("missing")
    if isinstance(missing, list) and missing:
        text = f"{text}: {', '.join(map(str, missing))}"
    retry_after = response.headers.get("Retry-After", "")
    raise Refused(
        text,
        status=response.status,
        code=str(told.get("code", "")),
        retryable=told.get("retryable") is True,
        retry_after_s=int(retry_after) if retry_after.isdecimal() and len(retry_after) < 6 else 0,
    )


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """Read an answer whole; a longer one than this client keeps is none of ours."""
    pieces = bytearray()
    async for piece in response.content.iter_any():
        pieces += piece
        if len(pieces) > _ANSWER_BYTES_MAX:
            raise Refused(
                f"{response.url}: the answer has more than {_ANSWER_BYTES_MAX} bytes",
                status=response.status,
            )
    return bytes(pieces)
