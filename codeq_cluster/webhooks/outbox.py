"""Outbox: a shard leader's work outside the log, done at least once: callbacks and sweeps.

An outbox job is an item with an instant. At that instant the shard's leader runs the job and has
the outcome decided like any other operation. If the leader dies in between, the item is unchanged
and the next leader runs it again. Only committed items are read, so no job that could still be
undone leaves the broker.

A server that is slow or silent has no room for more of a tenant's jobs after a while, and a tenant
has a share of the jobs that run on a node. Jobs beyond either are passed over, so they delay no
others. When all jobs in sight are due, a tenant's jobs beyond its share of the sight are deferred:
in their order, and far enough apart that they do not return all at once. A delivery that has been
pending for too long is given up even if there is no room for it.

A job that the broker itself fails at is set aside, so that the others go on: at once if its record
is at fault, and after a few attempts if running it fails. A target's failure is none of these.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import NamedTuple

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.earliest_timer import EarliestTimer
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.engine.faults import is_fault, setting_aside
from codeq_cluster.broker.engine.window import Window
from codeq_cluster.broker.ports import StateStore
from codeq_cluster.broker.scanning import next_keys
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.delivering import given_up_ms
from codeq_cluster.core.items import Delivery, Item, Sweep
from codeq_cluster.core.operations import Operation, Swept, Undelivered
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.errors import OutcomeUnknown
from codeq_cluster.fair_shares import FairShares

log = logging.getLogger(__name__)

IN_SIGHT = 512  # Jobs read ahead; each is decoded once and kept, about 1 KiB.
PASSED_OVER_S = 0.5  # Until jobs that found no room are tried again.
# Deferred jobs return one by one, and each look judges all in sight: it waits for some of them.
TOGETHER_S = 0.05
PAUSE_S = 1.0  # Before the next look after a failure of our own.
PUT_OFF_MS = 5_000  # The shortest deferral.
PUT_OFF_MS_MAX = 600_000
# Between two deferred jobs of a tenant. A tenant with a million jobs for silent servers, however
# many, then costs the log 500 rows a second, instead of all its capacity.
APART_MS = 2

FAILURES_MAX = 3  # Attempts at a job that fail in the broker itself.

_Name = tuple[ItemKind, str, str]  # Identifies an item independently of when it is due.
# Returns None if the job could not be tried now; the item stays as it is.
Run = Callable[[Item], Awaitable[Operation | None]]
Place = tuple[str, str]  # The tenant and the server: its jobs share the room there.


class _Job(NamedTuple):
    """An item with the row that says when it is due, and all that a look needs of it.

    Attributes:
        end_ms: Given up from then on.
    """

    name: _Name
    key: bytes
    item: Item
    place: Place
    end_ms: float


class JobOutbox:
    """One shard's outbox jobs on one node; idle unless the node leads the shard.

    Args:
        run: Runs one job and returns the operation that records its outcome, or None.
        place: Returns where an item's job goes; asked once for each job.
        room: Returns how many more jobs can run at a place now; asked once for it in each look.
        shares: Returns the node's room for the item's kind of job; a running job holds a unit.
        age_max_ms: A delivery pending for longer is given up, by the engine's clock.
        failed: Called for each job that is set aside.
    """

    def __init__(
        self,
        engine: Engine,
        store: StateStore,
        *,
        run: Run,
        place: Callable[[Item], Place],
        room: Callable[[Place], int],
        shares: Callable[[Item], FairShares],
        age_max_ms: int,
        background: Background,
        failed: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._store = store
        self._run = run
        self._place = place
        self._room = room
        self._shares = shares
        self._age_max_ms = age_max_ms
        self._background = background
        self._failed = failed
        self._failures: Counter[_Name] = Counter()  # Of jobs that failed and were not set aside.
        self._window = self._stored()
        self._known: dict[bytes, _Job] = {}
        self._running: set[_Name] = set()
        self._aside: set[_Name] = set()  # Being set aside.
        self._slots_ms: dict[str, int] = {}  # By tenant: when its last deferred job returns.
        self._settling = False
        self._timer = EarliestTimer(self._look)
        self._look_planned = False
        self._stopped = False

    @property
    def running(self) -> int:
        """Return how many jobs are running."""
        return len(self._running)

    def rows(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Follow an applied entry's rows."""
        changed = False
        for key, value in rows.items():
            if not key.startswith(keyspace.OUTBOX_PREFIX):
                continue
            changed = True
            self._window.remove(key)
            self._known.pop(key, None)
            if value is not None:
                self._window.add(key)
        if changed:
            self.look_soon()

    def reload(self) -> None:
        """Read the store again, after its state was replaced."""
        self._window = self._stored()
        self._known.clear()
        self.look_soon()

    def look_soon(self) -> None:
        """Look for due jobs once in the loop's next turn, however often this is called."""
        if not self._look_planned:
            self._look_planned = True
            # Run in a fresh context: the caller may be in the tracing context of some request.
            asyncio.get_running_loop().call_soon(self._look, context=Context())

    def stop(self) -> None:
        """Start no more jobs."""
        self._stopped = True
        self._timer.stop()

    def _look(self) -> None:
        self._look_planned = False
        self._timer.stop()
        if self._stopped:
            return
        if not self._engine.leads:
            self._known.clear()
            self._slots_ms.clear()
            self._failures.clear()
            return
        self._begin(self._window.head(IN_SIGHT), self._engine.now_ms)

    def _begin(self, in_sight: Sequence[bytes], now_ms: int) -> None:
        left: dict[Place, int] = {}
        too_old: list[_Job] = []
        passed_over: list[_Job] = []
        for name, key, known in self._waiting(in_sight, now_ms):
            try:
                job = known or self._read(name, key)
                is_too_old = job.end_ms <= now_ms
                shares = None if is_too_old else self._room_for(job, left)
            except Exception as error:
                log.exception("outbox job cannot be judged", extra={"item": name[2]})
                self._give_up(name, key, error)
                continue
            if is_too_old:
                too_old.append(job)
            elif shares is None:
                passed_over.append(job)
            else:
                self._running.add(name)
                self._background.spawn(self._do(job, shares))
        if passed_over:
            self._look_in(PASSED_OVER_S)
        more = len(in_sight) == IN_SIGHT and keyspace.item_timer_ms(in_sight[-1]) <= now_ms
        if not self._settling:
            settled = [(each, _not_tried(each.item, PUT_OFF_MS)) for each in too_old]
            if more and not settled:
                settled = self._deferred(passed_over, now_ms)
            if settled:
                self._settling = True
                self._background.spawn(self._settle(settled))

    def _room_for(self, job: _Job, left: dict[Place, int]) -> FairShares | None:
        """Take a unit of the node's room for a job and return the room; None if there is none.

        Args:
            job: Due.
            left: The room of each place that this look has asked about, less what it has taken.
        """
        if job.place not in left:
            left[job.place] = self._room(job.place)
        if left[job.place] <= 0:
            return None  # Nearly all of a backlog ends here at each look, after few steps.
        shares, tenant = self._shares(job.item), job.item.tenant
        if not shares.may_take(tenant):
            left[job.place] = 0  # No unit comes back during a look.
            return None
        left[job.place] -= 1
        shares.take(tenant)
        return shares

    def _waiting(
        self, keys: Sequence[bytes], now_ms: int
    ) -> Iterator[tuple[_Name, bytes, _Job | None]]:
        """Yield due jobs that are not running; set the timer for the first that is not due.

        A job is None until it has been read.
        """
        for key in keys:
            job = self._known.get(key)
            if job is None:
                due_ms = keyspace.item_timer_ms(key)
                if due_ms > now_ms:
                    self._look_in(max(TOGETHER_S, (due_ms - now_ms) / 1000))
                    return
                if not keyspace.knows_kind(key):
                    continue  # A newer version wrote it and runs it when it leads.
            name = keyspace.item_parts(key) if job is None else job.name
            if name not in self._running and name not in self._aside:
                yield name, key, job

    def _read(self, name: _Name, key: bytes) -> _Job:
        record = self._store.get(keyspace.item(*name))
        assert record is not None, "the item of an outbox job is missing"
        item = records.decode_item(record)
        assert key in keyspace.item_index_keys(item), "an outbox job is not its item's"
        job = self._known[key] = _Job(name, key, item, self._place(item), self._end_ms(item))
        return job

    def _end_ms(self, item: Item) -> float:
        if isinstance(item, Delivery):
            return given_up_ms(item, age_max_ms=self._age_max_ms)
        return math.inf

    async def _do(self, job: _Job, shares: FairShares) -> None:
        name, item = job.name, job.item
        try:
            operation = await self._run(item)
            if operation is None:
                await asyncio.sleep(PASSED_OVER_S)
            else:
                await self._engine.operate([operation])
            del self._failures[name]
        except Exception as error:
            if is_fault(error):
                log.exception("outbox job failed", extra={"item": item.id})
                self._failures[name] += 1
            else:
                # The outcome was not decided here, or is unknown: the item stays and the next
                # leader runs it again.
                log.info("outbox job not settled", extra={"item": item.id, "error": str(error)})
            if self._failures[name] >= FAILURES_MAX:
                self._give_up(name, job.key, error)
            else:
                await asyncio.sleep(PAUSE_S)
        finally:
            self._running.discard(name)
            shares.give_back(item.tenant)
            self.look_soon()

    async def _settle(self, settled: Sequence[tuple[_Job, Operation]]) -> None:
        """Defer or give up jobs without running them, one batch at a time."""
        try:
            if await self._settled([operation for _, operation in settled]) is not None:
                # At least one is at fault; by itself it leaves the others as they are.
                for job, operation in settled:
                    error = await self._settled([operation])
                    if error is not None:
                        self._give_up(job.name, job.key, error)
        finally:
            self._settling = False
            self.look_soon()

    async def _settled(self, operations: Sequence[Operation]) -> BaseException | None:
        """Do operations; return the error if one of them is at fault."""
        try:
            await self._engine.operate(operations)
        except Exception as error:
            half_way = isinstance(error, OutcomeUnknown) and error.__cause__ is not None
            cause = error.__cause__ if half_way else error
            if cause is not None and is_fault(cause):
                log.exception("an outbox job cannot be deferred")
                return cause
            log.info("outbox jobs not deferred", extra={"error": str(error)})
            await asyncio.sleep(PAUSE_S)
        return None

    def _give_up(self, name: _Name, key: bytes, error: BaseException) -> None:
        """Set a job aside, unless it is not the job that is at fault."""
        if not is_fault(error):
            self._look_in(PAUSE_S)
        elif name not in self._aside:
            self._aside.add(name)
            self._failed()
            self._background.spawn(self._set_aside(name, key, error))

    async def _set_aside(self, name: _Name, key: bytes, error: BaseException) -> None:
        extra = {"kind": name[0].value, "item": name[2], "error": str(error)}
        log.error("set aside", extra=extra)
        try:
            await self._engine.operate([setting_aside(key, error, tenant=name[1])])
        except Exception as why:
            if is_fault(why):
                # The others must go on even if this one can be neither run nor set aside.
                log.exception("passed over", extra=extra)
                self._window.remove(key)
            else:
                log.info("not set aside yet", extra=extra)
                await asyncio.sleep(PAUSE_S)
        finally:
            self._aside.discard(name)
            self._failures.pop(name, None)
            self.look_soon()

    def _deferred(self, passed_over: Sequence[_Job], now_ms: int) -> list[tuple[_Job, Operation]]:
        """Clear the sight of jobs that found no room: each tenant keeps its share of it."""
        sight = FairShares(IN_SIGHT, name="the sight")
        later: list[_Job] = []
        for job in passed_over:
            if sight.may_take(job.item.tenant):
                sight.take(job.item.tenant)
            else:
                later.append(job)
        self._slots_ms = {
            tenant: last_ms for tenant, last_ms in self._slots_ms.items() if last_ms > now_ms
        }
        # More tenants than the sight has room for: each of them goes to the end of its line.
        return [(each, self._later(each.item, now_ms)) for each in later or passed_over]

    def _later(self, item: Item, now_ms: int) -> Operation:
        if isinstance(item, Sweep):
            return Swept(tenant=item.tenant, id=item.id, attempt=item.attempts + 1, failed=True)
        return _not_tried(item, self._slot_ms(item, now_ms) - now_ms)

    def _slot_ms(self, item: Item, now_ms: int) -> int:
        """Return when to retry a deferred job: one instant for each job of a tenant, in order.

        Due times beyond `PUT_OFF_MS_MAX` are capped, so those jobs run early and out of order.
        """
        slot_ms = max(now_ms + PUT_OFF_MS, self._slots_ms.get(item.tenant, 0) + APART_MS)
        if slot_ms > now_ms + PUT_OFF_MS_MAX:
            slot_ms = now_ms + PUT_OFF_MS
        self._slots_ms[item.tenant] = slot_ms
        return slot_ms

    def _stored(self) -> Window:
        """Return a window on the stored jobs; all of them are committed."""
        start, end = keyspace.prefix_range(keyspace.OUTBOX_PREFIX)
        return Window(start, end, partial(next_keys, self._store))

    def _look_in(self, delay_s: float) -> None:
        # Add a millisecond: a timer that fires early would find nothing due.
        self._timer.at(asyncio.get_running_loop().time() + delay_s + 0.001)


def _not_tried(item: Item, deferred_ms: int) -> Operation:
    """Defer an item without an attempt; the decision gives up one that is too old."""
    assert isinstance(item, Delivery), f"no outbox job: {item}"
    return Undelivered(
        tenant=item.tenant, id=item.id, attempt=item.attempts + 1, deferred_ms=deferred_ms
    )
