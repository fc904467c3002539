"""Waiters: claims and result reads that wait on this node.

Waiting needs no polling and no messages, because every node applies every entry and so sees ready
tasks and results itself. A caller takes a ticket before it looks for work, so that it misses no
work that arrives between the look and the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Self

from codeq_cluster.codec import keyspace, records
from codeq_cluster.errors import Overloaded

_CLAIMING_S = 0.1  # After one claim, others are likely to follow.
# Makes a block in which a caller waits; it may refuse, and may end the wait.
Place = Callable[[], AbstractContextManager[None]]
ANY = ""  # The queue name under which a claim of any command waits.


class _Room:
    """Waiting tickets by place, in order of arrival; a dict keeps the order and deletes cheaply."""

    def __init__(self) -> None:
        self.tickets: dict[object, dict[Ticket, None]] = {}
        self.count = 0


class Ticket:
    """One waiting caller; `event` is set when there may be something for it.

    Attributes:
        queue: For a claim, the queue it was last woken for; empty for any.
        owes: Whether a claim was woken for a task and has not claimed it. If it ends now, another
            waiting claim must be woken for that task.
    """

    __slots__ = ("_places", "_room", "event", "owes", "queue")

    def __init__(self, room: _Room, places: tuple[object, ...]) -> None:
        self._room = room
        self._places = places
        self.event = asyncio.Event()
        self.queue = ""
        self.owes = False

    def __enter__(self) -> Self:
        self._room.count += 1
        for place in self._places:
            self._room.tickets.setdefault(place, {})[self] = None
        return self

    def __exit__(self, *_: object) -> None:
        self._room.count -= 1
        for place in self._places:
            tickets = self._room.tickets[place]
            del tickets[self]
            if not tickets:
                del self._room.tickets[place]

    def begin_look(self) -> None:
        """Begin to look for work; from now on the event shows whether more may have come."""
        self.owes = self.event.is_set()
        self.event.clear()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the event, at most `timeout_s`; return False on timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.event.wait()
        except TimeoutError:
            return False
        return True


def _every_one(_tenant: str, _queue: str, ready: int) -> int:
    return ready


class Waiters:
    """Callers on this node that wait for work or for a result.

    Args:
        waiters_max: Of each kind; beyond it callers are refused.
        claimable: Takes (tenant, queue, ready tasks) and returns how many of them may be claimed
            now, and nobody has been woken for. No caller is woken for the rest: thousands may wait
            on a paused queue.
    """

    def __init__(
        self, *, waiters_max: int, claimable: Callable[[str, str, int], int] = _every_one
    ) -> None:
        self._max = waiters_max
        self._claimable = claimable
        self._claims = _Room()
        self._results = _Room()
        self._claiming_until = 0.0

    def for_work(self, tenant: str, queues: tuple[str, ...]) -> Ticket:
        """Return a ticket for work in the tenant's queues; if none is named, in every one.

        Raises:
            Overloaded: Too many callers wait on this node already.
        """
        self._admit(self._claims)
        return Ticket(self._claims, tuple((tenant, queue) for queue in queues or (ANY,)))

    def for_result(self, task_id: str) -> Ticket:
        """Return a ticket for a task's result appearing in this replica; raises Overloaded."""
        self._admit(self._results)
        return Ticket(self._results, (task_id,))

    def awaited(self) -> bool:
        """Return whether a caller waits or claims on this node, so entries must be applied soon."""
        if self._claims.count or self._results.count:
            return True
        return asyncio.get_running_loop().time() < self._claiming_until

    def claiming(self) -> None:
        """Record that a claim on this node relies on its replica's state."""
        self._claiming_until = asyncio.get_running_loop().time() + _CLAIMING_S

    def rows(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Wake the callers that an applied entry's rows concern."""
        if not self._claims.count and not self._results.count:
            return
        for key, value in rows.items():
            if value is None:
                continue
            family = keyspace.family(key)
            if family is keyspace.Family.STATS:
                ready = records.decode_counters(value).ready
                if ready:
                    queue, tenant = keyspace.stats_parts(key)
                    self.work(tenant, queue, self._claimable(tenant, queue, ready))
            elif family is keyspace.Family.RESULT:
                for ticket in self._results.tickets.get(keyspace.last_id(key), ()):
                    ticket.event.set()

    def all(self) -> None:
        """Wake every caller: the replica's new state may have a task or a result for it."""
        for room in (self._claims, self._results):
            for tickets in room.tickets.values():
                for ticket in tickets:
                    ticket.queue = ""
                    ticket.event.set()

    def work(self, tenant: str, queue: str, ready: int) -> None:
        """Wake as many waiting claims as there are ready tasks, the longest waiting first."""
        for place in ((tenant, queue), (tenant, ANY)):
            for ticket in self._claims.tickets.get(place, ()):
                if not ready:
                    return
                if not ticket.event.is_set():
                    ticket.queue = queue
                    ticket.event.set()
                    ready -= 1

    def _admit(self, room: _Room) -> None:
        if room.count >= self._max:
            raise Overloaded("the list of waiting requests")
