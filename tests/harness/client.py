"""Client: HTTP calls of tests and loads; each returns an answer that says what is known."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import msgspec

from tests.harness.accounting import RecordedOutcome
from tests.harness.http import Broken, HttpAnswer, HttpClient, Refused
from tests.harness.waiting import WITHIN_S, ClusterError, soon, until

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAnswer:
    """An HTTP answer, or the error in its place.

    Attributes:
        status: HTTP status, 0 if the connection broke.
        body: The decoded JSON, None without one.
        detail: The error's stable code, or the connection's error.
        replayed: The answer belongs to an earlier request with the same idempotency key.
        headers: By their names in lower case.
    """

    outcome: RecordedOutcome
    status: int
    body: Any
    detail: str
    replayed: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_unavailable(self) -> bool:
        """Whether nothing was done, and the same request may succeed in a moment."""
        return self.outcome is RecordedOutcome.FAILED and self.status in {0, 503}


class RecordingClient:
    """HTTP calls that always return a `ClientAnswer`; an async context manager."""

    def __init__(
        self,
        urls: Mapping[str, str],
        *,
        # Above the broker's own request deadline and every wait that a test asks for: an answer
        # that is merely late is not cut off.
        timeout_s: float = WITHIN_S / 2,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.urls = dict(urls)
        self._http = HttpClient(timeout_s=timeout_s, trust=trust)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self._http.close()

    async def call(
        self,
        method: str,
        node: str,
        path: str,
        token: str,
        body: object = None,
        **headers: str,
    ) -> ClientAnswer:
        """Send one request and classify its outcome; never raises for a network error.

        Args:
            method: HTTP method.
            node: The node asked.
            path: Below `/v1/codeq`.
            token: Bearer token.
            body: Encoded as JSON; None sends no body.
            headers: Added; an underscore in a name is a dash.
        """
        raw = None if body is None else _encode(body)
        try:
            answer = await self._http.send(
                method,
                self.urls[node],
                f"/v1/codeq{path}",
                token=token,
                body=raw,
                headers={name.replace("_", "-"): value for name, value in headers.items()},
            )
        except Refused as error:
            outcome, detail = RecordedOutcome.FAILED, repr(error)
        except Broken as error:
            outcome, detail = RecordedOutcome.UNKNOWN, repr(error)
        else:
            return _answer(answer)
        return ClientAnswer(outcome=outcome, status=0, body=None, detail=detail)

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

    # The same for a step that has to succeed, such as a story's set-up. A shard may be without a
    # leader for a while, most of all on a busy machine; so what is refused for now is sent again
    # for a minute. A test of whether a request is refused at all sends it once, with the above.
    # Each raises ClusterError if it does not succeed.

    async def done(
        self,
        method: str,
        node: str,
        path: str,
        token: str,
        body: object = None,
        *,
        repeatable: bool = False,
    ) -> Any:
        """Send a request until it is done, and return its answer's body.

        With `repeatable`, as for every GET, it is also sent again after an unknown outcome.
        """
        return _done(
            await answered(
                lambda: self.call(method, node, path, token, body),
                repeatable=repeatable or method == "GET",
            )
        )

    async def created(
        self, node: str, token: str, command: str, **fields: object
    ) -> dict[str, Any]:
        """Create one task, exactly once, and return it.

        After an unknown outcome it is sent again only with an idempotency key.
        """
        made = await answered(
            lambda: self.create(node, token, command, **fields),
            repeatable="idempotencyKey" in fields,
        )
        return dict(_done(made))

    async def claimed(
        self, node: str, token: str, commands: Sequence[str], **fields: object
    ) -> dict[str, Any]:
        """Claim one task, for which each attempt waits 5 seconds, and return it.

        After an attempt with an unknown outcome a second task may be leased to the worker.
        """
        waiting = {"waitSeconds": 5, **fields}

        async def task() -> dict[str, Any] | None:
            got = await answered(
                lambda: self.claim(node, token, commands, **waiting), repeatable=True
            )
            body: dict[str, Any] | None = _done(got)
            return body

        return await until(task, what=f"a task of {', '.join(commands)} to claim")

    async def finished(
        self, node: str, token: str, task: Mapping[str, Any], result: object
    ) -> None:
        """Complete a claimed task."""
        # A repeated result is answered like the first.
        _done(await answered(lambda: self.finish(node, token, task, result), repeatable=True))

    async def depth(self, node: str, admin_token: str, command: str) -> dict[str, int]:
        """Return the queue's counters."""
        counters = await self.done("GET", node, f"/admin/queues/{command}", admin_token)
        return {name: counters[name] for name in ("ready", "delayed", "inProgress", "dlq")}


async def answered(
    send: Callable[[], Awaitable[ClientAnswer]], *, repeatable: bool = False
) -> ClientAnswer:
    """Send a request until it is not refused merely for now, and return that answer.

    Args:
        send: Sends it once.
        repeatable: It may be done twice, so an unknown outcome is no reason to stop.

    Raises:
        ClusterError: There was no such answer within a minute.
    """
    latest: ClientAnswer | None = None

    async def attempt() -> ClientAnswer | None:
        nonlocal latest
        latest = await send()
        unknown = latest.outcome is RecordedOutcome.UNKNOWN
        return None if latest.is_unavailable or (repeatable and unknown) else latest

    answer = await soon(attempt, within_s=WITHIN_S)
    if answer is None:
        raise ClusterError(f"no answer within {WITHIN_S:g} s but {latest}")
    return answer


def _done(answer: ClientAnswer) -> Any:
    if answer.outcome is not RecordedOutcome.OK:
        raise ClusterError(f"not done: {answer}")
    return answer.body


def _answer(answer: HttpAnswer) -> ClientAnswer:
    status, raw, headers = answer.status, answer.body, answer.headers
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
        return ClientAnswer(
            outcome=RecordedOutcome.OK,
            status=status,
            body=body,
            detail="",
            replayed=headers.get("x-codeq-idempotent-replay") == "true",
            headers=headers,
        )
    code = str(body.get("code", "")) if isinstance(body, dict) else ""
    # Only a 4xx, or a 503 other than outcome-unknown, proves that nothing was done.
    known = status < 500 or (status == 503 and code != "outcome-unknown")
    return ClientAnswer(
        outcome=RecordedOutcome.FAILED if known else RecordedOutcome.UNKNOWN,
        status=status,
        body=body,
        detail=code,
        headers=headers,
    )


def content_of(value: object) -> str:
    """Return a JSON value as canonical text: equal values give equal texts."""
    return msgspec.json.encode(value, order="sorted").decode()
