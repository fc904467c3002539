"""Live: one event stream per page, which sends the parts of its view whenever they change.

Every event holds a whole part, so losing one does no harm. Charts are the exception: they get only
new slots. The last slot's number is the event's id, from which a page continues after a reconnect.
A page that gets no stream polls the same parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiohttp import web

from codeq_cluster.api.http.answer import HEADERS, HttpAnswer
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure
from codeq_cluster.api.http.waits import WaitEnded
from codeq_cluster.auth import Role
from codeq_cluster.errors import CodeqError
from codeq_cluster.fair_shares import NestedShares
from codeq_cluster.ui.sessions import Sessions
from codeq_cluster.ui.sources import Sources
from codeq_cluster.ui.views.series import SeriesView
from codeq_cluster.ui.views.serving_node import serving, totals

STREAMS_MAX: Final = 200  # Per node; each stream reads its view every two seconds.
LOOK_S: Final = 2.0
STREAM_S_MAX: Final = 900.0  # The browser reconnects at once, perhaps to a node with fewer streams.
_QUIET_S: Final = 15.0  # Then a comment is sent, which fails if the client is gone.

_encode = msgspec.json.encode

Looking = Callable[[Call, Sources], Awaitable[object]]
Drawing = Callable[[Call, Sources, int], Awaitable[SeriesView]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """A view of the page.

    Attributes:
        roles: The caller needs one of them.
        look: Returns the view's part; None for a view of only the node and the totals.
        draw: Returns the slots of its charts after a given one; None without charts.
    """

    roles: tuple[Role, ...]
    look: Looking | None = None
    draw: Drawing | None = None


class LiveViews:
    """Serves the views.

    Args:
        views: By the name in the query.
        sessions: Checks every session before its request is served.
    """

    def __init__(self, views: Mapping[str, LiveView], sources: Sources, sessions: Sessions) -> None:
        self._views = views
        self._sources = sources
        self._sessions = sessions
        self._places = NestedShares(STREAMS_MAX, name="the room for streams of the page")

    async def now(self, call: Call) -> HttpAnswer[dict[str, Any]]:
        """Return every part of a view."""
        parts, _ = await self._parts(call, self._view(call), call.query_integer("since"))
        return HttpAnswer(b"{%b}" % b",".join(b'"%b":%b' % (n.encode(), part) for n, part in parts))

    async def stream(self, call: Call) -> web.StreamResponse:
        """Send the parts of a view when they change, until the client leaves or time is over."""
        view = self._view(call)
        since = _resumed(call)
        with self._places.one(call.identity.tenant, call.identity.subject):
            response = web.StreamResponse(
                headers={
                    **HEADERS,
                    "Content-Type": "text/event-stream; charset=utf-8",
                    "X-Accel-Buffering": "no",
                    "X-Request-Id": call.request_id,
                }
            )
            # Or its connection would stay open, idle, when the stream is over.
            response.force_close()
            with suppress(ConnectionError):  # The client is gone.
                await response.prepare(call.request)
                await self._feed(call, view, since, response)
            return response

    async def _feed(
        self, call: Call, view: LiveView, since: int, response: web.StreamResponse
    ) -> None:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + STREAM_S_MAX
        spoke_s = loop.time()
        sent: dict[str, bytes] = {}
        await response.write(b"retry: 2000\n\n")
        while loop.time() < ends_s:
            parts, since = await self._parts(call, view, since)
            changed = [(name, part) for name, part in parts if sent.get(name) != part]
            sent.update(changed)
            for name, part in changed:
                number = b"id: %d\n" % since if name == "series" else b""
                await response.write(b"%bevent: %b\ndata: %b\n\n" % (number, name.encode(), part))
            if changed:
                spoke_s = loop.time()
            elif loop.time() - spoke_s > _QUIET_S:
                await response.write(b": nothing new\n\n")
                spoke_s = loop.time()
            try:
                with call.services.shares.waits.waiting():
                    await asyncio.sleep(LOOK_S)
            except WaitEnded:
                return

    async def _parts(
        self, call: Call, view: LiveView, since: int
    ) -> tuple[list[tuple[str, bytes]], int]:
        """Return the parts of a view by name, and the last slot among them.

        If a part cannot be read now, `trouble` says why, and the other parts are returned.
        """
        parts = [("serving", _encode(serving(call)))]
        trouble = b"null"
        try:
            await self._sessions.of(call.request)
            parts.append(("totals", _encode(await totals(call, self._sources))))
            if view.look is not None:
                parts.append(("view", _encode(await view.look(call, self._sources))))
            if view.draw is not None:
                drawn = await view.draw(call, self._sources, since)
                if drawn.created:
                    parts.append(("series", _encode(drawn)))
                    since = drawn.last
        except (ApiError, CodeqError) as refused:
            error = refused if isinstance(refused, ApiError) else from_failure(refused)
            trouble = _encode({"error": error.text, "code": error.code, "status": error.status})
            refused.with_traceback(None)
        return [*parts, ("trouble", trouble)], since

    def _view(self, call: Call) -> LiveView:
        name = call.query_text("view")
        view = self._views.get(name)
        if view is None:
            raise bad_request(f"invalid 'view' (use {', '.join(self._views)})", "invalid-query")
        if call.identity.roles.isdisjoint(view.roles):
            needed = " or ".join(view.roles)
            raise ApiError(403, f"forbidden. This needs scope {needed}", "forbidden")
        return view


def _resumed(call: Call) -> int:
    """Return the last slot the page has: from the browser's header, or else the page's query."""
    last = call.request.headers.get("Last-Event-ID", "")
    return int(last) if last.isdecimal() and len(last) < 16 else call.query_integer("since")
