"""Client: HTTP calls of tests and loads; each returns an answer that says what is known."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from codeq_cluster.testing.accounting import RecordedOutcome

# Above the broker's own request deadline, so a late answer is not cut off.
CALL_TIMEOUT_S = 15.0

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAnswer:
    """An HTTP answer, or the error in its place.

    Attributes:
        status: HTTP status, 0 if the connection broke.
        body: The decoded JSON, None without one.
        detail: The error's stable code, or the connection's error.
        replayed: The answer belongs to an earlier request with the same idempotency key.
    """

    outcome: RecordedOutcome
    status: int
    body: Any
    detail: str
    replayed: bool = False


class RecordingClient:
    """HTTP calls that always return a `ClientAnswer`; an async context manager."""

    def __init__(
        self,
        urls: Mapping[str, str],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.urls = dict(urls)
        self._trust = trust or ssl.create_default_context()
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the session."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._trust),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session and its connections."""
        assert self._session is not None
        await self._session.close()

    async def call(
        self, method: str, node: str, path: str, token: str, body: object = None
    ) -> ClientAnswer:
        """Send one request and classify its outcome; never raises for a network error.

        Args:
            method: HTTP method.
            node: The node asked.
            path: Below `/v1/codeq`.
            token: Bearer token.
            body: Encoded as JSON; None sends no body.
        """
        assert self._session is not None
        try:
            async with self._session.request(
                method,
                f"{self.urls[node]}/v1/codeq{path}",
                data=None if body is None else _encode(body),
                headers={"Authorization": f"Bearer {token}"},
            ) as response:
                raw = await response.read()
                return _answer(response.status, raw, response.headers)
        except aiohttp.ClientConnectorError as error:
            # No connection: certainly nothing was sent.
            return ClientAnswer(
                outcome=RecordedOutcome.FAILED, status=0, body=None, detail=repr(error)
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return ClientAnswer(
                outcome=RecordedOutcome.UNKNOWN, status=0, body=None, detail=repr(error)
            )

    # The routes that most stories need; every keyword is a field of the contract.

    async def create(self, node: str, token: str, command: str, **fields: object) -> ClientAnswer:
        """Create one task; the payload defaults to `{}`."""
        body = {"command": command, "payload": {}, **fields}
        return await self.call("POST", node, "/tasks", token, body)

    async def claim(
        self, node: str, token: str, commands: Sequence[str], **fields: object
    ) -> ClientAnswer:
        """Claim one task; the answer's body is None if there was no task."""
        body = {"commands": list(commands), **fields}
        return await self.call("POST", node, "/tasks/claim", token, body)

    async def finish(
        self, node: str, token: str, task: Mapping[str, Any], result: object
    ) -> ClientAnswer:
        """Complete a claimed task with the lease token of the claim."""
        body = {"status": "COMPLETED", "result": result, "leaseToken": task["leaseToken"]}
        return await self.call("POST", node, f"/tasks/{task['id']}/result", token, body)

    async def task(
        self, node: str, token: str, task_id: str, *, stale: bool = False
    ) -> ClientAnswer:
        """Read a task; with `stale` from the node's own replica, which may be behind."""
        suffix = "?consistency=stale" if stale else ""
        return await self.call("GET", node, f"/tasks/{task_id}{suffix}", token)

    async def depth(self, node: str, admin_token: str, command: str) -> dict[str, int]:
        """Return the queue's counters.

        Raises:
            AssertionError: The node did not answer with counters.
        """
        answer = await self.call("GET", node, f"/admin/queues/{command}", admin_token)
        assert answer.outcome is RecordedOutcome.OK, answer
        return {name: answer.body[name] for name in ("ready", "delayed", "inProgress", "dlq")}


def _answer(status: int, raw: bytes, headers: Mapping[str, str]) -> ClientAnswer:
    try:
        body = msgspec.json.decode(raw) if raw else None
    except msgspec.DecodeError:
        return ClientAnswer(
            outcome=RecordedOutcome.UNKNOWN,
            status=status,
            body=None,
            detail=f"no JSON: {raw[:80]!r}",
        )
    if 200 <= status < 300:
        replayed = headers.get("X-CodeQ-Idempotent-Replay") == "true"
        return ClientAnswer(
            outcome=RecordedOutcome.OK, status=status, body=body, detail="", replayed=replayed
        )
    code = str(body.get("code", "")) if isinstance(body, dict) else ""
    # Only a 4xx, or a 503 other than outcome-unknown, proves that nothing was done.
    known = status < 500 or (status == 503 and code != "outcome-unknown")
    return ClientAnswer(
        outcome=RecordedOutcome.FAILED if known else RecordedOutcome.UNKNOWN,
        status=status,
        body=body,
        detail=code,
    )


def content_of(value: object) -> str:
    """Return a JSON value as canonical text: equal values give equal texts."""
    return msgspec.json.encode(value, order="sorted").decode()
