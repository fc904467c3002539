"""Notification queue: sends each notification at most once, in a line for each tenant's server."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import NamedTuple

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine.faults import alone
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.webhooks.host_limits import Route
from codeq_cluster.webhooks.http_client import Sender

LETTERS_MAX = 10_000  # Waiting for all servers, a share a tenant; about 500 bytes each.
LETTERS_OF_A_SERVER_MAX = 1_000
STALE_S = 10.0  # Older notifications are out of date and dropped.
LOOK_S = 0.25  # Between two looks at lines without room.

_Name = tuple[str, str]  # The tenant and the server: none waits for another tenant's slow calls.


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One notification to send.

    Attributes:
        id: Sent to the receiver.
        key: Only one notification of a key waits; a second one is not queued.
        write: Returns the current body, or None if the notification no longer applies.
        unsent: Called if the notification is not sent.
    """

    id: str
    key: tuple[str, ...]
    tenant: str
    queue: str
    url: str
    write: Callable[[], bytes | None]
    unsent: Callable[[], None]


class _Line(NamedTuple):
    """The notifications that wait for one server, each with the instant at which it is stale."""

    route: Route
    letters: deque[tuple[float, Notification]]


class NotificationQueue:
    """Sends notifications as soon as their tenant and server have room, one attempt each.

    Args:
        wait_s: Takes one call from a tenant's rate limit; any answer but 0 means none is left.
        on_outcome: Called with (queue, outcome) of every attempt and every dropped notification.
        stale_s: A notification that has waited this long for room is dropped.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        background: Background,
        wait_s: Callable[[str], Awaitable[float]],
        on_outcome: Callable[[str, str], None],
        stale_s: float = STALE_S,
    ) -> None:
        self._sender = sender
        self._background = background
        self._wait_s = wait_s
        self._on_outcome = on_outcome
        self._stale_s = stale_s
        self._lines: dict[_Name, _Line] = {}
        self._waiting: set[tuple[str, ...]] = set()
        self._room = FairShares(LETTERS_MAX, name="the node's availability notices")
        self._asking: Counter[_Name] = Counter()  # Begun, and not yet with the sender.
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def put(self, notification: Notification) -> None:
        """Queue a notification and send it as soon as there is room; never wait."""
        if notification.key in self._waiting:
            notification.unsent()
            return
        name = (notification.tenant, _server_of(notification.url))
        line = self._lines.get(name)
        is_full = line is not None and len(line.letters) >= LETTERS_OF_A_SERVER_MAX
        if is_full or not self._room.may_take(notification.tenant):
            self._throw_away(notification)
            return
        if line is None:
            route = self._sender.route(notification.tenant, notification.url)
            line = self._lines[name] = _Line(route, deque())
        self._room.take(notification.tenant)
        self._waiting.add(notification.key)
        stale_s = asyncio.get_running_loop().time() + self._stale_s
        line.letters.append((stale_s, notification))
        self._send(name)

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for name, line in list(self._lines.items()):
            while line.letters and line.letters[0][0] <= now_s:
                self._throw_away(self._next(name))
            with alone(self._look_later, tenant=name[0], server=name[1]):
                self._send(name)

    def _send(self, name: _Name) -> None:
        """Send as many of a line's notifications as its tenant and server have room for."""
        tenant, calls = name[0], self._sender.calls
        while not self._stopped and (line := self._lines.get(name)):
            if not calls.may_take(tenant) or self._sender.room(line.route) <= self._asking[name]:
                self._look_later()
                break
            calls.take(tenant)
            self._asking[name] += 1
            self._background.spawn(self._carry(name, self._next(name)))

    def _next(self, name: _Name) -> Notification:
        letters = self._lines[name].letters
        _, notification = letters.popleft()
        if not letters:
            del self._lines[name]
        self._waiting.discard(notification.key)
        self._room.give_back(notification.tenant)
        return notification

    async def _carry(self, name: _Name, notification: Notification) -> None:
        try:
            await self._call(name, notification)
        finally:
            self._sender.calls.give_back(notification.tenant)
            self._send(name)

    async def _call(self, name: _Name, notification: Notification) -> None:
        try:
            limited = await self._wait_s(notification.tenant)
        finally:
            self._asking[name] -= 1
            if not self._asking[name]:
                del self._asking[name]
        if limited:
            self._throw_away(notification)
            return
        body = notification.write()
        if body is None:
            notification.unsent()
            return
        sent = await self._sender.post(
            notification.url, body, tenant=notification.tenant, delivery=notification.id
        )
        if sent.deferred:
            self._throw_away(notification)
        else:
            self._on_outcome(notification.queue, "success" if sent.ok else "failure")

    def _throw_away(self, notification: Notification) -> None:
        self._on_outcome(notification.queue, "dropped")
        notification.unsent()

    def _look_later(self) -> None:
        if self._timer is None:
            # Run in a fresh context: the caller may be in the tracing context of some request.
            self._timer = asyncio.get_running_loop().call_later(
                LOOK_S, self._look, context=Context()
            )


def _server_of(url: str) -> str:
    """Return the part of a URL that names the server, in less time than reading it takes."""
    return url.partition("//")[2].partition("/")[0].lower()
