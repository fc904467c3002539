"""Broker: the HTTP API of one or more nodes as coroutines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp

from codeq_cluster.errors import CodeqError

# A task of the default limits is at most 2 MiB; a status of many shards is smaller.
_ANSWER_BYTES_MAX = 16 * 2**20


class Unreachable(CodeqError):
    """No node took the request, so nothing was done."""


class Refused(CodeqError):
    """The broker answered with an error, or not in its protocol.

    Attributes:
        status: The HTTP status, or 0 when the connection broke after the request was sent.
        code: The stable code of the error, or empty.
        retryable: Whether the same request may succeed later.
    """

    def __init__(self, text: str, *, status: int, code: str = "", retryable: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.retryable = retryable


class Broker:
    """A session with the nodes of one cluster; an async context manager.

    A request goes to the first node that takes the connection. Once it is sent it is not sent
    again, since only the caller knows whether a second time would do harm.
    """

    def __init__(self, urls: Sequence[str], *, token: str, timeout_s: float = 15.0) -> None:
        """Prepare a session.

        Args:
            urls: Base URLs, at least one, tried in order.
            token: Sent as a bearer token.
            timeout_s: Of one request; a wait the request asks for comes on top.
        """
        assert urls
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
        }
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session
        await self._session.close()

    async def healthy(self) -> Mapping[str, object]:
        """Return the answer of /healthz."""
        return await self._call("GET", "/healthz")

    async def ready(self) -> Mapping[str, object]:
        """Return the answer of /readyz; a node that is not ready raises `Refused` with 503."""
        return await self._call("GET", "/readyz")

    async def raft_status(self) -> Mapping[str, object]:
        """Return the groups of the node, as it sees them."""
        return await self._call("GET", "/v1/codeq/raft/status")

    async def create(self, task: Mapping[str, object], *, payload: str) -> Mapping[str, object]:
        """Create a task and return it.

        Args:
            task: Fields of `POST /tasks` but the payload; `command` at least.
            payload: Valid JSON text, sent as it is: numbers keep every digit.
        """
        assert task
        body = f'{json.dumps(task)[:-1]}, "payload": {payload}}}'
        return await self._call("POST", "/v1/codeq/tasks", body=body)

    async def task(self, task_id: str) -> Mapping[str, object]:
        """Return a task."""
        return await self._call("GET", f"/v1/codeq/tasks/{quote(task_id, safe='')}")

    async def result(self, task_id: str, *, wait_s: int = 0) -> Mapping[str, object]:
        """Return a task and its result, waiting up to `wait_s` seconds for it."""
        path = f"/v1/codeq/tasks/{quote(task_id, safe='')}/result?waitSeconds={wait_s}"
        return await self._call("GET", path, wait_s=wait_s)

    async def cancel(self, task_id: str) -> Mapping[str, object]:
        """Cancel a task that has not finished and return the answer."""
        return await self._call(
            "POST", f"/v1/codeq/tasks/{quote(task_id, safe='')}/cancel", body="{}"
        )

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: str | None = None,
        wait_s: int = 0,
    ) -> Mapping[str, object]:
        """Send one request.

        Raises:
            Unreachable: No node took the connection.
            Refused: The answer is an error, or the connection broke after the request was sent.
        """
        assert self._session
        timeout = aiohttp.ClientTimeout(total=self._timeout_s + wait_s, sock_connect=3.0)
        last: Exception | None = None
        for url in self._urls:
            try:
                async with self._session.request(
                    method, url + path, data=body, timeout=timeout, allow_redirects=False
                ) as response:
                    return await _answer(response)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                last = error
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                raise Refused(
                    f"{url}: the answer did not come ({reason}); outcome unknown",
                    status=0,
                    code="outcome-unknown",
                    retryable=True,
                ) from error
        reached = ", ".join(self._urls)
        raise Unreachable(f"no node takes a connection: {reached}") from last


async def _answer(response: aiohttp.ClientResponse) -> Mapping[str, object]:
    content = await response.content.read(_ANSWER_BYTES_MAX)
    try:
        document = json.loads(content) if content else {}
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Refused(
            f"{response.url}: HTTP {response.status}, not JSON; is this a codeq-cluster?",
            status=response.status,
        )
    if response.status >= 400:
        text = str(document.get("error") or "no reason given")
        missing = document.get("missing")
        if isinstance(missing, list) and missing:
            text = f"{text}: {', '.join(map(str, missing))}"
        raise Refused(
            text,
            status=response.status,
            code=str(document.get("code", "")),
            retryable=document.get("retryable") is True,
        )
    return document
