"""Documents: answers as the API has them, and pages of lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codeq_cluster.client.connection import BASE, Connection, as_json
from codeq_cluster.client.transport import Request

PAGE_MAX = 500  # The broker's bound.

ADMIN = f"{BASE}/admin"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list; `cursor` continues after it and is empty at the end."""

    rows: Sequence[Mapping[str, Any]]
    cursor: str


class Documents(Connection):
    """Requests for documents; each raises as `Connection._call` does."""

    async def _get(self, path: str) -> Mapping[str, Any]:
        return await self._read(path, dict[str, Any])

    async def _write(
        self, method: str, path: str, body: object = None, *, repeatable: bool = False
    ) -> Mapping[str, Any]:
        request = Request(
            method=method,
            path=path,
            body=None if body is None else as_json(body),
            repeatable=repeatable,
        )
        return await self._call(request, dict[str, Any])

    async def _page(self, path: str, name: str) -> Page:
        answer = await self._get(path)
        return Page(answer.get(name, []), str(answer.get("cursor", "")))
