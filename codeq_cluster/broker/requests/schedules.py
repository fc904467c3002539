"""Schedules: requests for schedules, each of which goes to the schedule's shard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.browsing import Browser
from codeq_cluster.broker.queries.search import item_of
from codeq_cluster.broker.questions import END, ListItems
from codeq_cluster.broker.requests.producer import on_its_shard
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.outcomes import Changed, How, Rejected, ScheduleStands, Triggered
from codeq_cluster.core.schedules import (
    Backfill,
    BackfillSchedule,
    DeleteSchedule,
    Overlap,
    PauseSchedule,
    Plan,
    PutSchedule,
    ResumeSchedule,
    Schedule,
    ScheduleOperation,
    TriggerSchedule,
    schedule_shard,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.errors import TooMany

_PAGE = 500
SET_MAX = 1000  # Schedules of one owner that are put together.
_ONE_BY_ONE = "put and delete them one by one, or give some another owner"

_A = TypeVar("_A")


class Timed(Struct, frozen=True, kw_only=True):
    """Where a calendar begins: its first instant after one, by the rules of a release.

    Attributes:
        at_ms: Unix milliseconds.
        next_ms: The first instant after that; 0 for none.
    """

    at_ms: int
    next_ms: int
    zone_rules: str


class Schedules:
    """Changes and reads schedules."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._browser = Browser(shards)

    async def get(self, caller: Caller, schedule_id: str) -> Schedule | None:
        """Return a schedule, or None."""
        shard = self._shard(caller, schedule_id)
        return await item_of(self._shards, shard, Schedule, caller, schedule_id)

    async def named(self, caller: Caller, ids: Iterable[str]) -> list[Schedule]:
        """Return those of these schedules that exist."""
        by_shard: dict[int, list[bytes]] = {}
        for each in ids:
            key = keyspace.item(ItemKind.SCHEDULE, caller.tenant, each)
            by_shard.setdefault(self._shard(caller, each), []).append(key)
        found: list[Schedule] = []
        for shard, keys in by_shard.items():
            rows = await self._shards.read(shard, keys, deadline=caller.deadline)
            items = (records.item_in(each, Schedule) for each in rows.values)
            found += [each for each in items if each is not None]
        return found

    async def all_of(self, caller: Caller, owner: str) -> list[Schedule]:
        """Return every schedule of an owner; the shards read all of the tenant's.

        Raises:
            TooMany: There are more than a set may have.
        """
        found: list[Schedule] = []
        after = b""
        while after != END:
            asked = ListItems(
                tenant=caller.tenant,
                kind=ItemKind.SCHEDULE,
                after=after,
                count=_PAGE,
                owner=owner,
            )
            rows, after = await self._browser.items(asked, deadline=caller.deadline)
            found += [item for _, item in rows if isinstance(item, Schedule)]
            if len(found) > SET_MAX:
                raise TooMany("schedules of one owner", SET_MAX, advice=_ONE_BY_ONE)
        return found

    async def put(
        self,
        caller: Caller,
        schedule_id: str,
        plan: Plan,
        timed: Timed,
        *,
        revision: int = 0,
        own: bool = False,
    ) -> ScheduleStands | Rejected:
        """Create or change a schedule; see `PutSchedule`."""
        operation = PutSchedule(
            **caller.signed(),
            id=schedule_id,
            plan=plan,
            at_ms=timed.at_ms,
            next_ms=timed.next_ms,
            zone_rules=timed.zone_rules,
            revision=revision,
            own=own,
        )
        return await self._operate(caller, operation, ScheduleStands)

    async def delete(
        self, caller: Caller, schedule_id: str, *, revision: int = 0
    ) -> Changed | Rejected:
        """Delete a schedule; one that does not exist counts as deleted."""
        operation = DeleteSchedule(**caller.signed(), id=schedule_id, revision=revision)
        return await self._operate(caller, operation, Changed)

    async def pause(self, caller: Caller, schedule_id: str) -> ScheduleStands | Rejected:
        """Let it fire no more."""
        operation = PauseSchedule(**caller.signed(), id=schedule_id)
        return await self._operate(caller, operation, ScheduleStands)

    async def resume(
        self, caller: Caller, schedule_id: str, timed: Timed, *, catch_up: bool, version: int
    ) -> ScheduleStands | Rejected:
        """Let it fire again; see `ResumeSchedule`."""
        operation = ResumeSchedule(
            **caller.signed(),
            id=schedule_id,
            catch_up=catch_up,
            at_ms=timed.at_ms,
            next_ms=timed.next_ms,
            zone_rules=timed.zone_rules,
            version=version,
        )
        return await self._operate(caller, operation, ScheduleStands)

    async def trigger(
        self, caller: Caller, schedule_id: str, *, name: str, at_ms: int, overlap: Overlap | None
    ) -> Triggered | Rejected:
        """Make a run now; see `TriggerSchedule`."""
        operation = TriggerSchedule(
            **caller.signed(), id=schedule_id, name=name, at_ms=at_ms, overlap=overlap
        )
        while True:
            outcome = await self._operate(caller, operation, Triggered)
            # Each time it has cancelled some of the open runs, of which there is a bound.
            if not (isinstance(outcome, Triggered) and outcome.how is How.LATER):
                return outcome

    async def backfill(
        self, caller: Caller, schedule_id: str, backfill: Backfill
    ) -> ScheduleStands | Rejected:
        """Begin a walk over past instants."""
        operation = BackfillSchedule(**caller.signed(), id=schedule_id, backfill=backfill)
        return await self._operate(caller, operation, ScheduleStands)

    async def _operate(
        self, caller: Caller, operation: ScheduleOperation, answered: type[_A]
    ) -> _A | Rejected:
        shard, deadline = self._shard(caller, operation.id), caller.deadline
        return await on_its_shard(self._shards, shard, operation, answered, deadline=deadline)

    def _shard(self, caller: Caller, schedule_id: str) -> int:
        return schedule_shard(caller.tenant, schedule_id, self._shards.count)
