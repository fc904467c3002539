"""Broker: what producers and readers ask of a cluster, as coroutines."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from codeq_cluster.client.refusals import Refused
from codeq_cluster.client.session import BASE, Session, part


class Broker(Session):
    """The routes of producers, of readers and of probes; each raises as `Session._call` does."""

    async def healthy(self) -> Mapping[str, object]:
        """Return the answer of /healthz."""
        return await self._call("GET", "/healthz")

    async def ready(self) -> Mapping[str, object]:
        """Return the answer of /readyz; a node that is not ready raises `Refused` with 503."""
        return await self._call("GET", "/readyz")

    async def described(self) -> Mapping[str, object]:
        """Return the node's own description of its API, an OpenAPI document."""
        return await self._call("GET", "/openapi.json")

    async def clock_ahead_s(self) -> float:
        """Return how far the node's clock is ahead of ours at least, negative when it is behind.

        A node says its time in whole seconds: what is less than that and the way there is 0.
        """
        asked = time.time()
        _, headers = await self._exchange("GET", "/healthz")
        answered = time.time()
        try:
            told = parsedate_to_datetime(headers.get("Date", "")).timestamp()
        except ValueError as error:
            raise Refused("the node does not tell its time", status=200) from error
        return max(0.0, told - answered) or min(0.0, told + 1 - asked)

    async def create(self, task: Mapping[str, object], *, payload: str) -> Mapping[str, object]:
        """Create a task and return it.

        Args:
            task: Fields of `POST /tasks` but the payload; `command` at least.
            payload: Valid JSON text, sent as it is: numbers keep every digit.
        """
        assert task
        body = f'{json.dumps(task)[:-1]}, "payload": {payload}}}'
        return await self._call("POST", f"{BASE}/tasks", body=body)

    async def task(self, task_id: str) -> Mapping[str, object]:
        """Return a task."""
        return await self._call("GET", f"{BASE}/tasks/{part(task_id)}")

    async def result(self, task_id: str, *, wait_s: int = 0) -> Mapping[str, object]:
        """Return a task and its result, waiting up to `wait_s` seconds for it."""
        path = f"{BASE}/tasks/{part(task_id)}/result?waitSeconds={wait_s}"
        return await self._call("GET", path, wait_s=wait_s)

    async def explain(self, task_id: str) -> Mapping[str, object]:
        """Return the one reason a task is where it is."""
        return await self._call("GET", f"{BASE}/tasks/{part(task_id)}/explain")

    async def cancel(self, task_id: str) -> Mapping[str, object]:
        """Cancel a task that has not finished and return the answer."""
        return await self._call("POST", f"{BASE}/tasks/{part(task_id)}/cancel", body="{}")
