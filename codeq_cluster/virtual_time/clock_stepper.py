"""Clock stepper: advances a broker's clock, and stops at each instant at which work is due."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

from codeq_cluster.api.http.virtual_time import (
    STOPS_MAX,
    AlreadyMoving,
    Fired,
    NoSuchSchedule,
    NotEnded,
    StillPaused,
    TooManyStops,
    Upcoming,
)
from codeq_cluster.client import Client, NotFinished, Operator, Refused, Worker
from codeq_cluster.errors import CodeqError
from codeq_cluster.forwarded import forwarded
from codeq_cluster.node.compose import Node
from codeq_cluster.virtual_time.movable_time import MovableTime
from codeq_cluster.virtual_time.upcoming import Outlook, outlook, rows

SETTLE_WITHIN_S: Final = 30.0  # Per stop; a worker that never rests is a mistake of the test.
ADVANCE_WITHIN_S: Final = 600.0  # For all stops: ten thousand take some minutes.

_POLL_S = 0.002
# After a jump, everything due is decided within a few turns of the broker's loop.
_IDLE_S = 0.01
# Enough for a worker elsewhere, such as in another process, to claim and finish its tasks.
_QUIET_S = 0.05


class ClockStepper:
    """Advances the clock of one node, as `VirtualTime`; runs in the node's own event loop.

    Args:
        operator: Asks the node, as the admin of the tenant whose tasks are waited for.
        client: Asks it as the producer of that tenant.
        workers: The known workers; the list may be filled later.
        patience_s: How long to wait without any change while a known worker has work to do: its
            handler may be waiting, or the broker may withhold a task, as for a consumer limit.
    """

    now: datetime = forwarded("_time.now")
    offset_ms: int = forwarded("_time.offset_ms")

    def __init__(
        self,
        time: MovableTime,
        operator: Operator,
        client: Client,
        workers: Sequence[Worker],
        *,
        patience_s: float,
    ) -> None:
        self._known_patience_s = patience_s
        self._time = time
        self._node: Node | None = None
        self._moving = False
        self._operator = operator
        self._client = client
        self._workers = workers

    def follow(self, node: Node) -> None:
        """Move this node's clock from now on; it has started."""
        self._node = node

    def begin(self, *, offset_ms: int) -> None:
        """Set that offset, before anything depends on the clock."""
        self._time.begin(offset_ms=offset_ms)

    async def coming(self) -> list[Upcoming]:
        """Return what `advance` would stop at."""
        return list((await self._outlook()).due)

    async def advance(
        self,
        by: timedelta,
        *,
        until: str = "",
        only: Collection[str] | None = None,
        patience_s: float | None = None,
    ) -> list[Fired]:
        """Advance the clock from each instant at which something is due to the next."""
        with self._alone():
            async with self._firing(only):
                return await self._advanced(by, until=until, patience_s=patience_s or _QUIET_S)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._moving:
            raise AlreadyMoving("another request moves the clock now: wait for its answer")
        if self._node is None:
            raise AlreadyMoving("the node starts: wait until it is ready")
        self._moving = True
        try:
            yield
        finally:
            self._moving = False

    @asynccontextmanager
    async def _firing(self, only: Collection[str] | None) -> AsyncIterator[None]:
        """Pause all schedules but these within the block; then they go on from that time."""
        if only is None:
            yield
            return
        found = {row["id"]: row["state"] async for row in rows(self._operator.schedules)}
        if unknown := sorted(set(only) - found.keys()):
            raise NoSuchSchedule(f"there is no schedule {unknown[0]!r}")
        paused: list[str] = []
        try:
            for each, state in found.items():
                if state == "active" and each not in only:
                    paused.append(each)
                    await self._operator.pause_schedule(each)
            yield
        finally:
            await resume_all(paused, self._resume)

    async def _resume(self, schedule_id: str) -> None:
        try:
            await self._operator.resume_schedule(schedule_id)
        except Refused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:  # It was deleted meanwhile.
                raise

    async def _advanced(self, by: timedelta, *, until: str, patience_s: float) -> list[Fired]:
        fired: list[Fired] = []
        stops: Counter[str] = Counter()
        give_up_at = time.monotonic() + ADVANCE_WITHIN_S
        seen = await self.settle(quiet_s=patience_s)
        while not (until and await self._has_ended(until)):
            coming = self._coming(seen)
            if coming is None or coming - self._time.now > by:
                break
            stops.update(each.id for each in seen.due if each.at == coming)
            _bound(stops)
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"{stops.total():,} stops took {ADVANCE_WITHIN_S:g} s")
            step = max(coming - self._time.now, timedelta())
            self._move(step)
            by -= step
            before, seen = seen, await self.settle(quiet_s=patience_s)
            fired += _fired(before, seen, by=self._time.now)
        else:
            return fired
        self._move(by)
        before, seen = seen, await self.settle(quiet_s=patience_s)
        if until and not await self._has_ended(until):
            raise NotEnded(f"task {until} has not ended by {self._time.now}: advance further")
        return fired + _fired(before, seen, by=self._time.now)

    def _move(self, by: timedelta) -> None:
        """Move the clock, and note it: after a restart it must not show less."""
        self._time.move(by)
        assert self._node is not None, "the node has started"
        self._node.parts.storage.directory.note_offset(self._time.offset_ms)

    async def settle(self, *, quiet_s: float = _QUIET_S) -> Outlook:
        """Wait until nothing is left to do now, or nobody does it; return what is due then.

        Args:
            quiet_s: How long nothing has to change while unknown workers may have work to do.

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
            found = await self._outlook()
            patience_s = self._patience_s(queues, found, now=now, quiet_s=quiet_s)
            if time.monotonic() - changed_at > patience_s and self._applied() == seen:
                return found
        raise TimeoutError(f"workers did not come to rest within {SETTLE_WITHIN_S:g} s")

    async def _outlook(self) -> Outlook:
        engines = () if self._node is None else self._node.parts.replicas.engines
        return await outlook(self._operator, [engine.view for engine in engines])

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
        assert self._node is not None, "the node has started"
        return [shard.applied_index for shard in self._node.status()]

    def _patience_s(
        self, queues: Sequence[Mapping[str, Any]], found: Outlook, *, now: datetime, quiet_s: float
    ) -> float:
        """Return how long to wait after the last change before the cluster counts as idle."""
        shut = {each.id for each in found.due if each.kind == "queue" and each.at > now}
        shut |= {row["command"] for row in queues if row.get("paused")}
        ready = [row["command"] for row in queues if row["ready"] and row["command"] not in shut]
        for worker in self._workers:
            if worker.running or any(worker.wants(command) for command in ready):
                return self._known_patience_s
        if any(each.at <= now for each in found.due):
            return max(self._known_patience_s, quiet_s)
        busy = ready or any(row["inProgress"] for row in queues)
        return quiet_s if busy else _IDLE_S


async def resume_all(paused: Iterable[str], resume: Callable[[str], Awaitable[None]]) -> None:
    """Resume schedules; one that cannot be resumed keeps no other one paused.

    Raises:
        StillPaused: It names those that could not be resumed; the first failure is its cause.
    """
    failures: dict[str, CodeqError] = {}
    for each in paused:
        try:
            await resume(each)
        except CodeqError as error:
            failures[each] = error
    if failures:
        first = next(iter(failures.values()))
        raise StillPaused(f"resume {', '.join(failures)}: {first}") from first


def _bound(stops: Counter[str]) -> None:
    if stops.total() <= STOPS_MAX:
        return
    [(busiest, count)] = stops.most_common(1)
    raise TooManyStops(
        f"more than {STOPS_MAX:,} stops, {count:,} of them for {busiest}: "
        "pause it, leave it out of `only`, or advance less"
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
