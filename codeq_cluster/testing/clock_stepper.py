"""Clock stepper: advances a broker's clock, and stops at each instant at which work is due."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from codeq_cluster.client import Client, NotFinished, Operator, Worker
from codeq_cluster.node.compose import Node
from codeq_cluster.testing.movable_time import MovableTime
from codeq_cluster.testing.upcoming import Outlook, outlook

STOPS_MAX: Final = 10_000  # Of one advance: a year of a schedule of each minute has 525,600.
SETTLE_WITHIN_S: Final = 30.0  # Per stop; a worker that never rests is a mistake of the test.

_POLL_S = 0.002
# After a jump, everything due is decided within a few turns of the broker's loop.
_IDLE_S = 0.01
# Enough for a worker elsewhere, such as in another process, to claim and finish its tasks.
_QUIET_S = 0.05


@dataclass(frozen=True, slots=True)
class Fired:
    """An instant of a schedule that has made a task."""

    schedule: str
    at: datetime


class ClockStepper:
    """Advances the clock of one node; runs in the node's own event loop.

    Args:
        time: The node's clock.
        node: The running node.
        operator: Asks the node, as the admin of the tenant whose tasks are waited for.
        client: Asks it as the producer of that tenant.
        workers: The known workers; the list may be filled later.
        patience_s: How long to wait without any change while a known worker has work to do: its
            handler may be waiting, or the broker may withhold a task, as for a consumer limit.
    """

    def __init__(
        self,
        time: MovableTime,
        node: Node,
        operator: Operator,
        client: Client,
        workers: Sequence[Worker],
        *,
        patience_s: float,
    ) -> None:
        self._known_patience_s = patience_s
        self._time = time
        self._node = node
        self._operator = operator
        self._client = client
        self._workers = workers

    async def advance(self, by: timedelta, *, until: str = "") -> list[Fired]:
        """Advance the clock from each instant at which something is due to the next.

        Time that passes during the stops is not counted: seven pauses of a day fit into seven days.

        Args:
            by: The most to advance.
            until: The task at whose end to stop; empty for none.

        Returns:
            The instants of schedules that have fired.

        Raises:
            RuntimeError: There were `STOPS_MAX` stops, or the task has not ended by then.
            TimeoutError: As `settle` does.
        """
        fired: list[Fired] = []
        stops: Counter[str] = Counter()
        seen = await self.settle()
        while not (until and await self._has_ended(until)):
            coming = self._coming(seen)
            if coming is None or coming - self._time.now > by:
                break
            stops.update(each.id for each in seen.due if each.at == coming)
            _bound(stops)
            step = max(coming - self._time.now, timedelta())
            self._time.move(step)
            by -= step
            before, seen = seen, await self.settle()
            fired += _fired(before, seen, by=self._time.now)
        else:
            return fired
        self._time.move(by)
        before, seen = seen, await self.settle()
        if until and not await self._has_ended(until):
            raise RuntimeError(f"task {until} has not ended by {self._time.now}: advance further")
        return fired + _fired(before, seen, by=self._time.now)

    async def settle(self) -> Outlook:
        """Wait until nothing is left to do now, or nobody does it; return what is due then.

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
            found = await outlook(self._operator, queues)
            patience_s = self._patience_s(queues, overdue=any(each.at <= now for each in found.due))
            if time.monotonic() - changed_at > patience_s and self._applied() == seen:
                return found
        raise TimeoutError(f"workers did not come to rest within {SETTLE_WITHIN_S:g} s")

    def _coming(self, seen: Outlook) -> datetime | None:
        """Return the next instant at which something is due; past ones could not be done."""
        now = self._time.now
        return next((each.at for each in seen.due if each.at > now), None)

    async def _has_ended(self, task_id: str) -> bool:
        try:
            await self._client.wait(task_id, timeout_s=0)
        except NotFinished:
            return False
        return True

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


def _bound(stops: Counter[str]) -> None:
    if stops.total() <= STOPS_MAX:
        return
    [(busiest, count)] = stops.most_common(1)
    raise RuntimeError(
        f"more than {STOPS_MAX:,} stops, {count:,} of them for {busiest}: pause it, or advance less"
    )


def _fired(before: Outlook, after: Outlook, *, by: datetime) -> list[Fired]:
    """Return the instants that were due, of schedules that have made a task since."""
    return [
        Fired(each.id, each.at)
        for each in before.due
        if each.kind == "schedule"
        and each.at <= by
        and after.made.get(each.id, 0) > before.made[each.id]
    ]
