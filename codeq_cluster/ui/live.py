"""Live: one stream of events a page, with what its view shows whenever that changes.

Every event holds a whole part, so one that is lost does no harm; charts alone get only the slots
that are new, and their number is the event's id, from which a page that comes again goes on. A page
that gets no stream asks for the same parts now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from codeq_cluster.api.http.call import Call, reply
from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure
from codeq_cluster.api.http.security_headers import HEADERS
from codeq_cluster.api.http.waits import WaitEnded
from codeq_cluster.auth import Role
from codeq_cluster.errors import CodeqError
from codeq_cluster.ui.sessions import Sessions
from codeq_cluster.ui.sources import Sources
from codeq_cluster.ui.views.series import SeriesView
from codeq_cluster.ui.views.standing import standing, totals

STREAMS_MAX: Final = 200  # Of one node; each looks at its view every two seconds.
LOOK_S: Final = 2.0
STREAM_S_MAX: Final = 900.0  # A browser comes again at once, perhaps to a node with fewer streams.
_QUIET_S: Final = 15.0  # A comment is sent then, so that a client that has gone is noticed.

_FULL = ApiError(
    503,
    "too many streams: ask now and then",
    "overloaded",
    retryable=True,
    headers={"Retry-After": "30", "X-Outcome": "not-applied"},
)
_encode = msgspec.json.encode

Looking = Callable[[Call, Sources], Awaitable[object]]
Drawing = Callable[[Call, Sources, int], Awaitable[SeriesView]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """One view.

    Attributes:
        roles: One of them is needed.
        look: Returns what it shows now; None where only the node and the totals are shown.
        draw: Returns the slots of its charts after one; None where there are none.
    """

    roles: tuple[Role, ...]
    look: Looking | None = None
    draw: Drawing | None = None


class LiveViews:
    """Serves the views.

    Args:
        views: By the name that a query asks for.
        sources: Of the node.
        sessions: Looks after every session on the way.
    """

    def __init__(self, views: Mapping[str, LiveView], sources: Sources, sessions: Sessions) -> None:
        self._views = views
        self._sources = sources
        self._sessions = sessions
        self._open = 0

    async def now(self, call: Call) -> web.Response:
        """Return every part of a view."""
        parts, _ = await self._parts(call, self._view(call), call.query_integer("since"))
        return reply(b"{%b}" % b",".join(b'"%b":%b' % (n.encode(), part) for n, part in parts))

    async def stream(self, call: Call) -> web.StreamResponse:
        """Send the parts of a view whenever they change, until the client goes or time is over."""
        view = self._view(call)
        since = _resumed(call)
        with self._counted():
            response = web.StreamResponse(
                headers={
                    **HEADERS,
                    "Content-Type": "text/event-stream; charset=utf-8",
                    "X-Accel-Buffering": "no",
                    "X-Request-Id": call.request_id,
                }
            )
            with suppress(ConnectionError):  # The client has gone away.
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
                await call.services.waits.wait(asyncio.sleep(LOOK_S))
            except WaitEnded:
                return

    async def _parts(
        self, call: Call, view: LiveView, since: int
    ) -> tuple[list[tuple[str, bytes]], int]:
        """Return the parts of a view by name, and the last slot that is among them.

        What cannot be told now is told as `trouble`, beside what can.
        """
        parts = [("standing", _encode(standing(call)))]
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

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._open >= STREAMS_MAX:
            raise _FULL
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


def _resumed(call: Call) -> int:
    """Return the last slot the page has: by the browser's word, else by the page's own."""
    last = call.request.headers.get("Last-Event-ID", "")
    return int(last) if last.isdecimal() and len(last) < 16 else call.query_integer("since")
