"""Notification queue: sends each notification at most once, in a line for each tenant's server."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine.faults import alone
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.webhooks.http_client import Sender
from codeq_cluster.webhooks.outbox import server_of

LETTERS_MAX = 10_000  # Waiting for all servers, a share a tenant; about 500 bytes each.
LETTERS_OF_A_SERVER_MAX = 1_000
STALE_S = 10.0  # Older notifications are out of date and dropped.
LOOK_S = 0.25  # Between two looks at lines without room.

_Line = tuple[str, str]  # The tenant and the server: none waits for another tenant's slow calls.


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


class NotificationQueue:
    """Sends notifications as soon as their tenant and server have room, one attempt each.

    Args:
        sender: Sends them.
        background: Owns the requests in progress.
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
        self._lines: dict[_Line, deque[tuple[float, Notification]]] = {}
        self._waiting: set[tuple[str, ...]] = set()
        self._room = FairShares(LETTERS_MAX, name="the node's availability notices")
        self._asking: Counter[_Line] = Counter()  # Begun, and not yet with the sender.
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def put(self, notification: Notification) -> None:
        """Queue a notification and send it as soon as there is room; never wait."""
        if notification.key in self._waiting:
            notification.unsent()
            return
        line = (notification.tenant, server_of(notification.url))
        is_full = len(self._lines.get(line, ())) >= LETTERS_OF_A_SERVER_MAX
        if is_full or not self._room.may_take(notification.tenant):
            self._throw_away(notification)
            return
        self._room.take(notification.tenant)
        self._waiting.add(notification.key)
        stale_s = asyncio.get_running_loop().time() + self._stale_s
        self._lines.setdefault(line, deque()).append((stale_s, notification))
        self._send(line)

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for line, waiting in list(self._lines.items()):
            while waiting and waiting[0][0] <= now_s:
                self._throw_away(self._next(line))
            with alone(self._look_later, tenant=line[0], server=line[1]):
                self._send(line)

    def _send(self, line: _Line) -> None:
        """Send as many of a line's notifications as its tenant and server have room for."""
        tenant, calls = line[0], self._sender.calls
        while not self._stopped and (waiting := self._lines.get(line)):
            room = self._sender.room(tenant, waiting[0][1].url) - self._asking[line]
            if room <= 0 or not calls.may_take(tenant):
                self._look_later()
                break
            calls.take(tenant)
            self._asking[line] += 1
            self._background.spawn(self._carry(line, self._next(line)))

    def _next(self, line: _Line) -> Notification:
        waiting = self._lines[line]
        _, notification = waiting.popleft()
        if not waiting:
            del self._lines[line]
        self._waiting.discard(notification.key)
        self._room.give_back(notification.tenant)
        return notification

    async def _carry(self, line: _Line, notification: Notification) -> None:
        try:
            await self._call(line, notification)
        finally:
            self._sender.calls.give_back(notification.tenant)
            self._send(line)

    async def _call(self, line: _Line, notification: Notification) -> None:
        try:
            limited = await self._wait_s(notification.tenant)
        finally:
            self._asking[line] -= 1
            if not self._asking[line]:
                del self._asking[line]
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
