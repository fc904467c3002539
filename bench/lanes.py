"""Lanes: closed loops over bare connections; each sends when its last request is answered."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from tests.harness.http import UNANSWERED, Connection, HttpAnswer

# The work of a lane is a generator: it yields an operation's name with its request for each node,
# and is sent the answer's body, or None for a failure. This costs a tenth of a task that awaits
# futures.
Work = Generator[tuple[str, Sequence[bytes]], bytes | None, None]

_ANSWER_WITHIN_S = 30.0
_SWEEP_EVERY_S = 1.0
# The pause before a reconnect, so that a dead node does not turn a lane into a busy loop.
_PAUSE_S = 0.05
_TURNS = 4096


@dataclass(slots=True)
class Tally:
    """The counts and latencies of one process's lanes.

    Attributes:
        measuring: Whether latencies and tasks count; failures always do.
        over: Whether the lanes should end.
        tasks: Tasks created or finished while measuring.
        operations: Tasks created or finished at any time.
        requests: Requests answered while measuring.
        latencies_s: Latencies of those requests, by operation.
        failed: Failed requests, by operation and status.
        empty: Claims that found nothing.
    """

    measuring: bool = False
    over: bool = False
    tasks: int = 0
    operations: int = 0
    requests: int = 0
    latencies_s: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    empty: int = 0

    def done(self, tasks: int) -> None:
        """Count tasks created or finished."""
        self.operations += tasks
        if self.measuring:
            self.tasks += tasks

    def answered(self, operation: str, took_s: float) -> None:
        """Count a request."""
        if self.measuring:
            self.requests += 1
            self.latencies_s.setdefault(operation, []).append(took_s)

    def fail(self, what: str, count: int = 1) -> None:
        """Count a failure."""
        self.failed[what] = self.failed.get(what, 0) + count


class Lane:
    """One request after the other, each to a random node.

    Args:
        work: Returns a generator for one piece of work; called again until the tally is over.
        group: Owns the tasks that reconnect.
    """

    def __init__(
        self, urls: Sequence[str], work: Callable[[], Work], tally: Tally, group: asyncio.TaskGroup
    ) -> None:
        self.ended = asyncio.Event()
        self._urls = urls
        self._tally = tally
        self._group = group
        self._connections: list[Connection] = []
        # Drawn in advance, because drawing a node per request costs as much as sending.
        self._turns = itertools.cycle(random.choices(range(len(urls)), k=_TURNS))
        self._at = 0
        self._operation, self._request = "", b""
        self._sent_s = 0.0
        self._work = _repeated(work, tally)

    async def connect(self) -> None:
        """Open a connection to each node.

        Raises:
            OSError: A node does not listen.
        """
        for url in self._urls:
            self._connections.append(await Connection.open(url, self._answered))

    def start(self) -> None:
        """Send the first request."""
        self._next(None)

    def give_up(self, asked_before_s: float) -> None:
        """End the connection if its request has waited since before an instant."""
        for connection in self._connections:
            connection.give_up(asked_before_s)

    def _next(self, body: bytes | None) -> None:
        """Continue the work after an answer."""
        try:
            self._operation, requests = self._work.send(body)
        except StopIteration:
            self.ended.set()
            for connection in self._connections:
                connection.close()
            return
        self._at = next(self._turns)
        self._request = requests[self._at]
        self._send()

    def _send(self) -> None:
        connection = self._connections[self._at]
        if connection.closed:
            self._group.create_task(self._reconnect())
            return
        self._sent_s = time.perf_counter()
        connection.ask(self._request, self._sent_s)

    async def _reconnect(self) -> None:
        await asyncio.sleep(_PAUSE_S)
        try:
            opened = await Connection.open(self._urls[self._at], self._answered)
        except OSError as error:
            self._answered(HttpAnswer(UNANSWERED, b"", type(error).__name__.encode()))
            return
        self._connections[self._at] = opened
        self._send()

    def _answered(self, answer: HttpAnswer) -> None:
        operation, status = self._operation, answer.status
        self._tally.answered(operation, time.perf_counter() - self._sent_s)
        if 200 <= status < 300 or (status == 400 and operation == "refused"):
            self._next(answer.body)
        else:
            self._tally.fail(f"{operation} {status} {answer.body[:120].decode(errors='replace')}")
            self._next(None)


def _repeated(work: Callable[[], Work], tally: Tally) -> Work:
    while not tally.over:
        yield from work()


async def sweep(lanes: Sequence[Lane]) -> None:
    """Bound every wait for an answer without a timer per request; runs until cancelled."""
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        for lane in lanes:
            lane.give_up(time.perf_counter() - _ANSWER_WITHIN_S)
