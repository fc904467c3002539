"""HTTP client: codeQ's API, for measurements in which the client's own cost is irrelevant."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bench.peers.clients import ANSWER_WITHIN_S
from tests.harness.http import HttpClient

_TOKEN = "dev-token"
_TASKS = "/v1/codeq/tasks"
_LEASE_S = 60
# One redirect more than usually needed, because the leader may have changed meanwhile.
_REDIRECTS_MAX = 3


class CodeqClient:
    """One queue; each create goes to the next node, and on to the node it redirects to.

    Claims go only to nodes that took a create themselves, because the original's followers deliver
    tasks that their leader does not know of.
    """

    async def connect(self, urls: Sequence[str], *, queue: str, lanes: int, batch: int) -> None:
        """Remember the nodes; the first task creates the queue."""
        del batch, lanes
        self._turn = itertools.cycle(urls)
        self._taking: dict[str, None] = {}
        self._queue = queue
        self._http = HttpClient(timeout_s=2 * ANSWER_WITHIN_S)

    async def create(self, lane: int, payload: bytes, *, key: str | None = None) -> None:
        """Create a task."""
        del lane
        task: dict[str, object] = {"command": self._queue, "payload": msgspec.Raw(payload)}
        if key:
            task["idempotencyKey"] = f"{self._queue}-{key}"
        took, _ = await self._post(next(self._turn), "", task)
        self._taking[took] = None

    async def claim(self, lane: int, *, within_s: float = ANSWER_WITHIN_S) -> dict[str, Any]:
        """Claim a task, asking one node after the other.

        Raises:
            TimeoutError: No node has one.
        """
        asked = {
            "commands": [self._queue],
            "leaseSeconds": _LEASE_S,
            "waitSeconds": max(1, round(within_s / len(self._taking))),
        }
        nodes = list(self._taking)
        for step in range(len(nodes)):
            _, found = await self._post(nodes[(lane + step) % len(nodes)], "/claim", asked)
            if found:
                task: dict[str, Any] = msgspec.json.decode(found)
                return task
        raise TimeoutError("no task")

    async def finish(self, lane: int, handle: dict[str, Any]) -> None:
        """Finish a task."""
        nodes = list(self._taking)
        result = {"status": "COMPLETED", "result": {"ok": True}}
        await self._post(nodes[lane % len(nodes)], f"/{handle['id']}/result", result)

    def payload(self, handle: dict[str, Any]) -> bytes:
        """Return the payload: a document, or its text if the server answers with text."""
        found = handle["payload"]
        return found.encode() if isinstance(found, str) else msgspec.json.encode(found)

    async def create_batch(self, lane: int, payloads: Sequence[bytes]) -> None:
        """Create each one separately."""
        await asyncio.gather(*(self.create(lane, payload) for payload in payloads))

    async def claim_batch(self, lane: int, count: int) -> list[dict[str, Any]]:
        """Claim each one separately."""
        return list(await asyncio.gather(*(self.claim(lane) for _ in range(count))))

    async def finish_batch(self, lane: int, handles: Sequence[dict[str, Any]]) -> None:
        """Finish each one separately."""
        await asyncio.gather(*(self.finish(lane, handle) for handle in handles))

    async def close(self) -> None:
        """Disconnect."""
        await self._http.close()

    async def _post(self, url: str, path: str, body: object) -> tuple[str, bytes]:
        """Return the node that answered, and its answer.

        Raises:
            OSError: The node refused, or did not answer.
        """
        raw = msgspec.json.encode(body)
        for _ in range(_REDIRECTS_MAX):
            try:
                answer = await self._http.send("POST", url, _TASKS + path, token=_TOKEN, body=raw)
            except ConnectionError:
                self._taking.pop(url, None)
                raise
            if answer.status == 307:
                there = urlsplit(answer.headers["location"])
                url = f"{there.scheme}://{there.netloc}"
                continue
            if answer.status >= 300:
                raise OSError(f"{path} {answer.status} {answer.body[:120]!r}")
            return url, answer.body
        raise OSError(f"{path}: redirected more than {_REDIRECTS_MAX} times")
