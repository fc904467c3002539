"""Live: the admin page's current view, for a program that reads it every few seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from codeq_cluster.client.connection import as_json, query, read_as
from codeq_cluster.client.events import Events
from codeq_cluster.client.operator import Operator
from codeq_cluster.client.refusals import Refused
from codeq_cluster.client.transport import Request

_API: Final = "/ui/api"


class Live(Operator, Events):
    """An operator that also reads the page's views, by a session that any node accepts.

    The token must be a viewer's, an admin's or an operator's; each sees what its role may see.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str,
        deadline_s: float = 0,
        discover: bool = True,
        ca_file: Path | None = None,
    ) -> None:
        """Prepare it; see `Connection`. Each node is asked once, since the next read comes soon."""
        super().__init__(
            urls,
            token=token,
            deadline_s=deadline_s,
            discover=discover,
            ca_file=ca_file,
        )
        self._token = token
        self._cookie = ""
        self._session: Mapping[str, Any] = {}

    async def session(self) -> Mapping[str, Any]:
        """Return the caller's `roles` and `tenant`, and the node's `cluster` and `version`.

        Raises:
            Refused: 403: the token may see nothing of the page.
        """
        if not self._cookie:
            body = as_json({"token": str(self._token)})  # Plain text, whatever says its origin.
            request = Request(method="POST", path=f"{_API}/session", body=body)
            answer = await self._exchange(request)
            self._session = read_as(answer.content, dict[str, Any], request)
            self._cookie = answer.headers.get("Set-Cookie", "").partition(";")[0]
        return self._session

    async def look(self, view: str, *, since: int = 0, limit: int = 0) -> Mapping[str, Any]:
        """Return the parts of a view: `serving`, `totals`, `view`, `series` and `trouble`.

        Args:
            view: `overview`, or another view of the page.
            since: The last slot of its charts that the caller already has; 0 for none.
            limit: At most so many rows of a list; 0 for the view's own limit.
        """
        given = {name: value for name, value in (("since", since), ("limit", limit)) if value}
        path = f"{_API}/now{query(view=view, **given)}"
        await self.session()
        try:
            return await self._parts(path)
        except Refused as refused:
            if refused.status != 401:
                raise
        # The session has ended, or the nodes were restarted with another secret.
        self._cookie = ""
        await self.session()
        return await self._parts(path)

    async def _parts(self, path: str) -> Mapping[str, Any]:
        request = Request(method="GET", path=path, cookie=self._cookie)
        return await self._call(request, dict[str, Any])
