"""Probe: a single node's answers about itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from codeq_cluster.client.connection import Connection
from codeq_cluster.client.refusals import Refused
from codeq_cluster.client.transport import Request


class Probe(Connection):
    """Asks one node, without retries; each call raises as `Connection._call` does."""

    def __init__(
        self, url: str, *, token: str, timeout_s: float, ca_file: Path | None = None
    ) -> None:
        """Prepare a probe of the node with this base URL; see `Connection` for the rest."""
        super().__init__(
            [url],
            token=token,
            deadline_s=0,
            timeout_s=timeout_s,
            discover=False,
            ca_file=ca_file,
        )

    async def healthy(self) -> Mapping[str, Any]:
        """Return the answer of /healthz."""
        return await self._get("/healthz")

    async def ready(self) -> Mapping[str, Any]:
        """Return the answer of /readyz; a node that is not ready raises `Refused` with 503."""
        return await self._get("/readyz")

    async def described(self) -> Mapping[str, Any]:
        """Return the node's own description of its API, an OpenAPI document."""
        return await self._get("/openapi.json")

    async def clock_ahead_s(self) -> float:
        """Return by how much the node's clock is ahead of ours at least; negative if it is behind.

        A node sends its time in whole seconds: a difference within that and the round trip counts
        as 0.
        """
        asked = time.time()
        answer = await self._exchange(Request(method="GET", path="/healthz"))
        answered = time.time()
        try:
            node_s = parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
        except ValueError as error:
            raise Refused("the node does not tell its time", status=200) from error
        return max(0.0, node_s - answered) or min(0.0, node_s + 1 - asked)

    async def _get(self, path: str) -> Mapping[str, Any]:
        return await self._read(path, dict[str, Any])
