"""Clock stepper: advances a broker's clock, and stops at each instant at which work is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from codeq_cluster.client import Operator, Page, Worker
from codeq_cluster.node.compose import Node
from codeq_cluster.testing.movable_time import MovableTime

SETTLE_WITHIN_S: Final = 30.0  # Per stop; a worker that never rests is a mistake of the test.

_POLL_S = 0.002
# After a jump, everything due is decided within a few turns of the broker's loop.
_IDLE_S = 0.01
# Enough for a worker elsewhere, such as in another process, to claim and finish its tasks.
_QUIET_S = 0.05

_Fetch = Callable[..., Awaitable[Page]]


class ClockStepper:
    """Advances the clock of one node; runs in the node's own event loop.

    Args:
        time: The node's clock.
        node: The running node.
        operator: Asks the node, as the admin of the tenant whose tasks are waited for.
        workers: The known workers; the list may be filled later.
        patience_s: How long to wait without any change while a known worker has work to do: its
            handler may be waiting, or the broker may withhold a task, as for a consumer limit.
    """

    def __init__(
        self,
        time: MovableTime,
        node: Node,
        operator: Operator,
        workers: Sequence[Worker],
        *,
        patience_s: float,
    ) -> None:
        self._known_patience_s = patience_s
        self._time = time
        self._node = node
        self._operator = operator
        self._workers = workers

    async def advance(self, by: timedelta) -> None:
        """Advance the clock from each instant at which something is due to the next.

        Time that passes during the stops is not counted: seven pauses of a day fit into seven days.

        Raises:
            TimeoutError: As `settle` does.
        """
        while (due := await self.settle()) is not None and due - self._time.now <= by:
            step = max(due - self._time.now, timedelta())
            self._time.move(step)
            by -= step
        self._time.move(by)
        await self.settle()

    async def settle(self) -> datetime | None:
        """Wait until nothing is left to do now, or nobody does it; return the next timer.

        Raises:
            TimeoutError: New work appeared for `SETTLE_WITHIN_S`.
        """
        give_up_at = time.monotonic() + SETTLE_WITHIN_S
        changed_at, seen = time.monotonic(), self._applied()
        while time.monotonic() < give_up_at:
            await asyncio.sleep(_POLL_S)
            now = self._time.now
            if (applied := self._applied()) != seen:
                changed_at, seen = time.monotonic(), applied
            if time.monotonic() - changed_at < _IDLE_S:
                continue
            queues = await self._operator.queues()
            dues = await self._dues()
            patience_s = self._patience_s(queues, overdue=any(due <= now for due in dues))
            if time.monotonic() - changed_at > patience_s and self._applied() == seen:
                return min((due for due in dues if due > now), default=None)
        raise TimeoutError(f"workers did not come to rest within {SETTLE_WITHIN_S:g} s")

    def _applied(self) -> list[int]:
        return [shard.applied_index for shard in self._node.status()]

    def _patience_s(self, queues: Sequence[Mapping[str, Any]], *, overdue: bool) -> float:
        """Return how long to wait after the last change before the cluster counts as idle."""
        ready = [row["command"] for row in queues if row["ready"] and not row.get("paused")]
        for worker in self._workers:
            if worker.running or any(worker.wants(command) for command in ready):
                return self._known_patience_s
        if overdue:
            return self._known_patience_s
        busy = ready or any(row["inProgress"] for row in queues)
        return _QUIET_S if busy else _IDLE_S

    async def _dues(self) -> list[datetime]:
        """Return the instants at which timers are due; past ones are being handled."""
        asked = (
            (partial(self._operator.tasks, status="PENDING"), ("readyAt", "expiresAt")),
            (partial(self._operator.tasks, status="IN_PROGRESS"), ("leaseUntil",)),
            (partial(self._operator.deliveries, status="pending"), ("nextAttemptAt",)),
        )
        return [
            datetime.fromisoformat(row[field])
            for fetch, fields in asked
            async for row in _rows(fetch)
            for field in fields
            if field in row
        ]


async def _rows(fetch: _Fetch) -> AsyncIterator[Mapping[str, Any]]:
    cursor = ""
    while True:
        page = await fetch(cursor=cursor)
        for row in page.rows:
            yield row
        if not (cursor := page.cursor):
            return
