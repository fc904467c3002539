"""Firer: lets the schedules of a shard fire that this node leads.

At the instant of a schedule the leader asks its calendar what is due and has the answer decided
like any other operation. If the leader dies in between, the schedule is unchanged and the next
leader asks again; the decision refuses what is decided already. Only committed schedules are read.

Tenants take turns, some schedules each, so that one with many of them at one instant delays no
other by more than a turn. Of a tenant's schedules, some that are in time go before those that are
late or fill back. With its budget used up, a tenant is left alone for a while. After a step
of a backfill or of late runs it rests longer than that took: so the requests of others have their
part of the leader's time.

A schedule that the broker itself fails at is set aside, so that the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextvars import Context
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, NamedTuple

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.earliest_timer import EarliestTimer
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.engine.faults import is_fault, setting_aside
from codeq_cluster.broker.ports import StateStore
from codeq_cluster.codec import keyspace, line_keys, records
from codeq_cluster.core.bulk import PAUSE_MS_MAX, RESTS
from codeq_cluster.core.outcomes import Changed, Outcome, Rejected
from codeq_cluster.core.schedules import FIRED_MAX, FillBack, Fire, Schedule, jitter_ms
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.errors import CodeqError
from codeq_cluster.portions import in_parts
from codeq_cluster.schedules.due import IN_TIME_MS, filling, firing, next_after
from codeq_cluster.schedules.zones import zone_rules

log = logging.getLogger(__name__)

FIRED_AT_ONCE = 64  # Schedules in one pass, and so many of one tenant in its turn:
FIRED_OF_TENANT = 16
RUNS_AT_ONCE = 64  # Runs of one step, or all of one schedule: about 7 ms of the loop.
OVER_BUDGET_MS = 5_000  # Until a tenant whose budget is used up is tried again.
PAUSE_S = 1.0  # Before the next pass after a failure of our own.
LOOK_AGAIN_S = 5.0  # A wall clock may jump, which no timer notices.
_PAGE = 256


class _Found(NamedTuple):
    """A schedule whose time has come, with the row that says so; or why it cannot be read."""

    key: bytes
    tenant: str
    schedule: Schedule | Exception


class _Due(NamedTuple):
    """What is to be decided about such a schedule; or why that cannot be known.

    Attributes:
        due_ms: When its last run was due, its jitter included; 0 without one.
        missed: How many instants it had missed before.
    """

    key: bytes
    tenant: str
    operations: Sequence[Fire | FillBack]
    error: Exception | None = None
    due_ms: int = 0
    missed: int = 0

    @property
    def cost(self) -> int:
        """How many runs it is about."""
        return sum(len(each.runs) for each in self.operations)


class ScheduleFirer:
    """One shard's schedules on one node; idle unless the node leads the shard.

    Args:
        wall_ms: Returns Unix milliseconds.
        wait_s: Takes so many creates of the tenant's rate and returns 0, or the seconds to wait.
        background: Owns the passes.
        fired: Called for each schedule that fires, with the operation that did it and the instant
            at which the last of its runs was due, Unix milliseconds; 0 if it has none; and how many
            instants it has missed by it.
        failed: Called for each schedule that is set aside.
    """

    def __init__(
        self,
        engine: Engine,
        store: StateStore,
        *,
        wall_ms: Callable[[], int],
        wait_s: Callable[[str, int], Awaitable[float]],
        background: Background,
        fired: Callable[[Fire, int, int], None],
        failed: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._store = store
        self._wall_ms = wall_ms
        self._wait_s = wait_s
        self._background = background
        self._fired = fired
        self._failed = failed
        # No schedule of a tenant fires before; what the heap says of it may be too early.
        self._from_ms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._line: deque[str] = deque()  # Tenants whose schedules may be due.
        self._timer = EarliestTimer(self._look)
        # From when until when a tenant is left alone; before, the clock has gone back.
        self._held_ms: dict[str, tuple[int, int]] = {}
        self._resting: set[str] = set()  # Tenants after a step.
        self._passing = False
        self._stopped = False

    def rows(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Follow an applied entry's rows."""
        for key, value in rows.items():
            if value is not None and key.startswith(line_keys.FIRE_PREFIX):
                self._add(*line_keys.fire_parts(key))
        self._look()

    def look(self) -> None:
        """Begin with what is stored, once this node leads."""
        self._from_ms.clear()
        self._heap.clear()
        self._line.clear()
        self._held_ms.clear()
        if self._engine.leads and not self._stopped:
            self._spawn(self._begin())

    async def _begin(self) -> None:
        """Learn which tenants have schedules, and let those fire that are due."""
        for number, (tenant, due_ms) in enumerate(self._tenants(), start=1):
            self._add(tenant, due_ms)
            if number % _PAGE == 0:
                await asyncio.sleep(0)  # There may be tens of thousands.
        self._look()
        await self._by_new_rules()

    def stop(self) -> None:
        """Begin no more passes."""
        self._stopped = True
        self._timer.stop()

    def _add(self, tenant: str, due_ms: int) -> None:
        if due_ms < self._from_ms.get(tenant, due_ms + 1):
            self._from_ms[tenant] = due_ms
            heappush(self._heap, (due_ms, tenant))

    def _tenants(self) -> Iterator[tuple[str, int]]:
        """Yield each tenant that has schedules to fire, with the first instant of them all."""
        start, end = keyspace.prefix_range(line_keys.FIRE_PREFIX)
        while page := self._store.scan(start, end, 1):
            tenant, due_ms = line_keys.fire_parts(page[0][0])
            yield tenant, due_ms
            _, start = keyspace.prefix_range(line_keys.fire_prefix(tenant))

    def _look(self) -> None:
        if self._passing or self._stopped or not self._engine.leads:
            return
        now_ms = self._wall_ms()
        while self._heap and self._heap[0][0] <= now_ms:
            _, tenant = heappop(self._heap)
            since_ms, until_ms = self._held_ms.pop(tenant, (0, 0))
            if since_ms <= now_ms < until_ms:
                self._held_ms[tenant] = since_ms, until_ms
                heappush(self._heap, (until_ms, tenant))
            elif tenant in self._from_ms and not (tenant in self._resting or tenant in self._line):
                self._line.append(tenant)
        if self._line:
            self._passing = True
            self._spawn(self._pass())
        elif self._heap:
            wait_s = min((self._heap[0][0] - now_ms) / 1000, LOOK_AGAIN_S)
            # Add a millisecond: a timer that fires early would find nothing due.
            self._timer.at(asyncio.get_running_loop().time() + wait_s + 0.001)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # In a fresh context: the caller may be in the tracing context of some request.
        Context().run(self._background.spawn, work)

    async def _pass(self) -> None:
        """Let schedules fire until none is due."""
        try:
            while self._line and self._engine.leads and not self._stopped:
                found = [self._found(key) for key in self._due_keys()]
                if found:
                    # A calendar may take a millisecond, which the loop must not wait for.
                    due = await asyncio.to_thread(_decided, found, self._wall_ms())
                    if not await self._carry_out(due):
                        await asyncio.sleep(PAUSE_S)
        except (asyncio.CancelledError, GeneratorExit):
            # The node ends: what began now would never run.
            self._stopped = True
            raise
        finally:
            self._passing = False
            self._look()

    def _due_keys(self) -> list[bytes]:
        """Return the rows of some schedules that are due; tenants take turns."""
        now_ms = self._wall_ms()
        found: dict[bytes, None] = {}  # In order.
        reached: dict[str, bytes] = {}  # The last row of each tenant in this pass.
        while self._line and len(found) < FIRED_AT_ONCE:
            tenant = self._line.popleft()
            start = line_keys.fire_from(tenant, self._from_ms.get(tenant, 0))
            _, end = keyspace.prefix_range(line_keys.fire_prefix(tenant))
            if tenant in reached:
                start = reached[tenant] + b"\0"
            else:
                found |= dict.fromkeys(self._in_time(tenant, now_ms))
            keys = [key for key, _ in self._store.scan(start, end, FIRED_OF_TENANT + 1)]
            dues_ms = [line_keys.fire_parts(key)[1] for key in keys]
            if tenant not in reached:
                self._from_ms.pop(tenant, 0)
                if not keys:
                    continue
                self._from_ms[tenant] = dues_ms[0]
            ripe = keys[: sum(due_ms <= now_ms for due_ms in dues_ms)]
            if len(ripe) > FIRED_OF_TENANT:
                self._line.append(tenant)
                reached[tenant] = ripe[FIRED_OF_TENANT - 1]
            else:
                # Those that are due will have moved by the next look.
                heappush(self._heap, (self._from_ms[tenant], tenant))
            found |= dict.fromkeys(ripe[:FIRED_OF_TENANT])
        return list(found)

    def _in_time(self, tenant: str, now_ms: int) -> list[bytes]:
        """Return the rows of some schedules that are due and in time, if others come before."""
        since_ms = now_ms - IN_TIME_MS
        if self._from_ms.get(tenant, since_ms) >= since_ms:
            return []
        start, end = (line_keys.fire_from(tenant, ms) for ms in (since_ms, now_ms + 1))
        return [key for key, _ in self._store.scan(start, end, FIRED_OF_TENANT)]

    def _found(self, key: bytes) -> _Found:
        """Return the schedule that a row names, as it is stored, or why it cannot be read."""
        _, tenant, schedule_id = keyspace.item_parts(key)
        try:
            record = self._store.get(keyspace.item(ItemKind.SCHEDULE, tenant, schedule_id))
            assert record is not None, "the schedule of a firing is missing"
            schedule = records.decode_item(record)
            assert isinstance(schedule, Schedule), "the row of a firing names something else"
            assert key in keyspace.item_index_keys(schedule), "a firing is not its schedule's"
        except Exception as error:
            log.exception("schedule cannot be read", extra={"item": schedule_id})
            return _Found(key, tenant, error)
        return _Found(key, tenant, schedule)

    async def _carry_out(self, all_: Sequence[_Due]) -> bool:
        """Have it decided; return whether anything has moved, so that the next pass finds less."""
        moved = False
        for due in all_:
            if due.error is not None:
                moved |= await self._set_aside(due.key, due.error)
        # Parts that hold the loop for a short time each.
        decided = [due for due in all_ if due.operations]
        for step in in_parts(decided, attrgetter("cost"), size_max=RUNS_AT_ONCE):
            moved |= await self._step([due for due in step if due.tenant not in self._resting])
        return moved

    async def _step(self, step: Sequence[_Due]) -> bool:
        """Have some of it decided, after which tenants may rest; return as above."""
        due_now = await self._within_rates(step)
        if not due_now:
            return True
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        error = await self._tried(due_now)
        self._rest(due_now, loop.time() - begun_s)
        if error is None:
            return True
        if not is_fault(error):
            return False
        moved = False
        for due in due_now:
            # By itself, the one at fault leaves the others as they are.
            alone = error if len(due_now) == 1 else await self._tried([due])
            if alone is None or (is_fault(alone) and await self._set_aside(due.key, alone)):
                moved = True
        return moved

    def _rest(self, step: Collection[_Due], took_s: float) -> None:
        """Let the tenants of late runs and backfills rest, by how long the step took."""
        rest_s = min(took_s * RESTS, PAUSE_MS_MAX / 1000)
        loop = asyncio.get_running_loop()
        for tenant in {due.tenant for due in step if any(len(o.runs) > 1 for o in due.operations)}:
            self._resting.add(tenant)
            self._leave(tenant)
            loop.call_later(rest_s, self._rested, tenant)

    def _rested(self, tenant: str) -> None:
        self._resting.discard(tenant)
        if tenant in self._from_ms:
            heappush(self._heap, (self._from_ms[tenant], tenant))
        self._look()

    async def _within_rates(self, all_: Sequence[_Due]) -> list[_Due]:
        """Return those that their tenants' rates of creates allow now; the others wait."""
        granted: list[_Due] = []
        held: set[str] = set()
        for due in all_:
            if due.tenant in held:
                continue
            # One by one: beside busy producers there are never the tokens for many at once.
            wait_s = await self._wait_s(due.tenant, due.cost) if due.cost else 0.0
            if wait_s:
                held.add(due.tenant)
                self._hold(due.tenant, int(1000 * wait_s) + 1)
            else:
                granted.append(due)
        return granted

    def _hold(self, tenant: str, span_ms: int) -> None:
        """Leave a tenant alone for a while."""
        now_ms = self._wall_ms()
        self._held_ms[tenant] = now_ms, now_ms + span_ms
        heappush(self._heap, (now_ms + span_ms, tenant))
        self._leave(tenant)

    def _leave(self, tenant: str) -> None:
        if tenant in self._line:
            self._line.remove(tenant)

    async def _tried(self, all_: Sequence[_Due]) -> Exception | None:
        operations = [each for due in all_ for each in due.operations]
        try:
            outcomes = iter(await self._engine.operate(operations))
        except CodeqError as error:
            log.info("schedules not fired", extra={"error": str(error)})
            return error
        except Exception as error:
            log.exception("schedules cannot fire")
            return error
        for due in all_:
            for operation in due.operations:
                self._note(due, operation, next(outcomes))
        return None

    def _note(self, due: _Due, operation: Fire | FillBack, outcome: Outcome) -> None:
        if isinstance(outcome, Rejected):
            extra = {"tenant": due.tenant, "limit": outcome.limit}
            log.info("schedules wait for the budget", extra=extra)
            self._hold(due.tenant, OVER_BUDGET_MS)
        elif isinstance(operation, Fire) and outcome == Changed(1):
            self._fired(operation, due.due_ms, self._missed(due.key) - due.missed)

    def _missed(self, key: bytes) -> int:
        """Return how many instants a schedule has missed, refused ones included."""
        _, tenant, schedule_id = keyspace.item_parts(key)
        record = self._store.get(keyspace.item(ItemKind.SCHEDULE, tenant, schedule_id))
        at = None if record is None else records.decode_item(record)
        return at.missed if isinstance(at, Schedule) else 0

    async def _set_aside(self, key: bytes, error: Exception) -> bool:
        """Take a schedule out of the line; return whether that was possible."""
        _, tenant, schedule_id = keyspace.item_parts(key)
        extra = {"tenant": tenant, "item": schedule_id, "error": str(error)}
        log.error("set aside", extra=extra)
        self._failed()
        try:
            await self._engine.operate([setting_aside(key, error, tenant=tenant)])
        except CodeqError as why:
            log.info("not set aside yet", extra={**extra, "error": str(why)})
            return False
        return True

    async def _by_new_rules(self) -> None:
        """Find the next instants again of schedules timed by older rules of time zones."""
        start, end = keyspace.prefix_range(keyspace.item_prefix(ItemKind.SCHEDULE))
        while self._engine.leads and (page := self._store.scan(start, end, _PAGE)):
            start = page[-1][0] + b"\0"
            schedules = list(_of_older_rules(page))
            if schedules:
                operations = await asyncio.to_thread(_found_anew, schedules)
                try:
                    await self._engine.operate(operations)
                except CodeqError as error:
                    log.info("schedules keep older rules", extra={"error": str(error)})
                    return
            await asyncio.sleep(0)  # There may be hundreds of thousands.


def _decided(all_: Sequence[_Found], now_ms: int) -> list[_Due]:
    """Return what is to be decided: of one tenant a step's runs, but one of each schedule."""
    left = dict.fromkeys((found.tenant for found in all_), FIRED_MAX)
    decided: list[_Due] = []
    for found in all_:
        decided.append(_of_one(found, now_ms, most=max(1, left[found.tenant])))
        left[found.tenant] -= decided[-1].cost
    return decided


def _of_one(found: _Found, now_ms: int, *, most: int) -> _Due:
    """Return what is to be decided about a schedule, or why that cannot be known."""
    key, tenant, schedule = found
    if isinstance(schedule, Exception):
        return _Due(key, tenant, (), schedule)
    try:
        fill, fire = filling(schedule, most=most), firing(schedule, now_ms, most=most)
    except Exception as error:
        log.exception("calendar cannot be asked", extra={"item": schedule.id})
        return _Due(key, tenant, (), error)
    at_ms = fire.runs[-1].at_ms if fire is not None and fire.runs else 0
    due_ms = at_ms + jitter_ms(schedule, at_ms) if at_ms else 0
    operations = tuple(each for each in (fill, fire) if each is not None)
    return _Due(key, tenant, operations, due_ms=due_ms, missed=schedule.missed)


def _of_older_rules(rows: Sequence[tuple[bytes, bytes]]) -> Iterator[Schedule]:
    """Yield the schedules that an older release of the rules has timed; an unreadable one stays."""
    for _, value in rows:
        try:
            schedule = records.decode_item(value)
        except records.RecordInvalid:
            continue
        if isinstance(schedule, Schedule) and schedule.zone_rules < zone_rules():
            yield schedule


def _found_anew(schedules: Sequence[Schedule]) -> list[Fire]:
    """Return the operations that give schedules their next instants by the rules in force."""
    found: list[Fire] = []
    for schedule in schedules:
        try:
            coming = next_after(schedule.plan.timing, schedule.done_ms)
        except CodeqError as error:
            log.warning("no instant", extra={"item": schedule.id, "error": str(error)})
            continue
        found.append(
            Fire(
                tenant=schedule.tenant,
                id=schedule.id,
                generation=schedule.generation,
                version=schedule.version,
                from_ms=schedule.done_ms,
                runs=(),
                missed=0,
                done_ms=schedule.done_ms,
                next_ms=0 if coming is None else coming.ms,
                zone_rules=zone_rules(),
            )
        )
    return found
