"""Outbox: a shard leader's work outside the log, done at least once: callbacks and sweeps.

An outbox job is an item with an instant. At that instant the shard's leader runs the job and has
the outcome decided like any other operation. If the leader dies in between, the item is unchanged
and the next leader runs it again. Only committed items are read, so no job that could still be
undone leaves the broker.

A server that is slow or silent has no room for more jobs after a while. Its jobs are passed over,
so it delays no other server's. When all jobs in sight are passed over, they are deferred: in their
order, and far enough apart that they do not return all at once. A delivery that has been pending
for too long is given up even if there is no room for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import Context
from functools import partial
from itertools import islice

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.engine.window import Window
from codeq_cluster.broker.ports import StateStore
from codeq_cluster.broker.scanning import next_keys
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.delivering import overdue
from codeq_cluster.core.items import Delivery, Item, ItemKind, Sweep
from codeq_cluster.core.operations import Operation, Swept, Undelivered
from codeq_cluster.errors import CodeqError

log = logging.getLogger(__name__)

IN_SIGHT = 512  # Jobs read ahead; each is decoded once and kept, about 1 KiB.
RUNNING_MAX = 64  # Jobs of one shard.
PASSED_OVER_S = 0.5  # Until jobs that found no room are tried again.
PAUSE_S = 1.0  # Before the next look after a failure of our own.
PUT_OFF_MS = 5_000  # The shortest deferral.
PUT_OFF_MS_MAX = 600_000
# Between two deferred jobs. A silent server with a million jobs then costs the log 200 rows a
# second, instead of all its capacity.
APART_MS = 5

_Name = tuple[ItemKind, str, str]  # Identifies an item independently of when it is due.
# Returns None if the job could not be tried now; the item stays as it is.
Run = Callable[[Item], Awaitable[Operation | None]]


class JobOutbox:
    """One shard's outbox jobs on one node; idle unless the node leads the shard.

    Args:
        engine: Of the shard.
        store: The shard's state.
        run: Runs one job and returns the operation that records its outcome, or None.
        room: Returns how many more jobs for the item's server can run now.
        age_max_ms: A delivery pending for longer is given up, by the engine's clock.
        background: Owns the running jobs.
    """

    def __init__(
        self,
        engine: Engine,
        store: StateStore,
        *,
        run: Run,
        room: Callable[[Item], int],
        age_max_ms: int,
        background: Background,
    ) -> None:
        self._engine = engine
        self._store = store
        self._run = run
        self._room = room
        self._age_max_ms = age_max_ms
        self._background = background
        self._window = self._stored()
        self._known: dict[bytes, Item] = {}
        self._running: set[_Name] = set()
        self._slots_ms: dict[tuple[str, str], int] = {}
        self._settling = False
        self._timer: asyncio.TimerHandle | None = None
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
            if not key.startswith(keyspace.ERRAND_PREFIX):
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
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._look_planned = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stopped:
            return
        if not self._engine.leads:
            self._known.clear()
            self._slots_ms.clear()
            return
        self._begin(list(islice(self._window, IN_SIGHT)), self._engine.now_ms)

    def _begin(self, in_sight: Sequence[bytes], now_ms: int) -> None:
        begun: Counter[str] = Counter()
        too_old: list[Item] = []
        passed_over: list[Item] = []
        for name, item in self._waiting(in_sight, now_ms):
            if self._is_too_old(item, now_ms):
                too_old.append(item)
                continue
            if len(self._running) >= RUNNING_MAX:
                passed_over = []
                break  # Each running job looks again when it ends.
            server = _server(item)
            if begun[server] >= self._room(item):
                passed_over.append(item)
                continue
            begun[server] += 1
            self._running.add(name)
            self._background.spawn(self._do(name, item))
        if passed_over:
            self._look_in(PASSED_OVER_S)
        more = len(in_sight) == IN_SIGHT and keyspace.item_timer_ms(in_sight[-1]) <= now_ms
        if not self._settling:
            operations = [_not_tried(each, PUT_OFF_MS) for each in too_old]
            if more and not operations:
                operations = [self._later(each, now_ms) for each in passed_over]
            if operations:
                self._settling = True
                self._background.spawn(self._settle(operations))

    def _is_too_old(self, item: Item, now_ms: int) -> bool:
        return isinstance(item, Delivery) and overdue(
            item, age_max_ms=self._age_max_ms, now_ms=now_ms
        )

    def _waiting(self, keys: Sequence[bytes], now_ms: int) -> Iterator[tuple[_Name, Item]]:
        """Yield due items that are not running; set the timer for the first that is not due."""
        for key in keys:
            due_ms = keyspace.item_timer_ms(key)
            if due_ms > now_ms:
                self._look_in((due_ms - now_ms) / 1000)
                return
            if not keyspace.knows_kind(key):
                continue  # A newer version wrote it and runs it when it leads.
            name = keyspace.item_parts(key)
            if name not in self._running:
                yield name, self._item(key)

    def _item(self, key: bytes) -> Item:
        item = self._known.get(key)
        if item is None:
            record = self._store.get(keyspace.item(*keyspace.item_parts(key)))
            assert record is not None, "an errand stands without its item"
            item = self._known[key] = records.decode_item(record)
        return item

    async def _do(self, name: _Name, item: Item) -> None:
        try:
            operation = await self._run(item)
            if operation is None:
                await asyncio.sleep(PASSED_OVER_S)
            else:
                await self._engine.operate([operation])
        except CodeqError as error:
            # The outcome was not decided here, or is unknown: the item stays and the next leader
            # runs it again.
            log.info("outbox job not settled", extra={"item": item.id, "error": str(error)})
            await asyncio.sleep(PAUSE_S)
        except Exception:
            log.exception("outbox job failed", extra={"item": item.id})
            await asyncio.sleep(PAUSE_S)
        finally:
            self._running.discard(name)
            self.look_soon()

    async def _settle(self, operations: Sequence[Operation]) -> None:
        """Defer or give up jobs without running them, one batch at a time."""
        try:
            await self._engine.operate(operations)
        except CodeqError as error:
            log.info("outbox jobs not deferred", extra={"error": str(error)})
            await asyncio.sleep(PAUSE_S)
        except Exception:
            log.exception("outbox jobs not deferred")
            await asyncio.sleep(PAUSE_S)
        finally:
            self._settling = False
            self.look_soon()

    def _later(self, item: Item, now_ms: int) -> Operation:
        if isinstance(item, Sweep):
            return Swept(tenant=item.tenant, id=item.id, attempt=item.attempts + 1, failed=True)
        return _not_tried(item, self._slot_ms(item, now_ms) - now_ms)

    def _slot_ms(self, item: Item, now_ms: int) -> int:
        """Return when to retry a deferred job: one instant for each tenant and server, in order.

        Due times beyond `PUT_OFF_MS_MAX` are capped, so those jobs run early and out of order.
        """
        if len(self._slots_ms) >= IN_SIGHT:
            self._slots_ms = {
                who: last_ms for who, last_ms in self._slots_ms.items() if last_ms > now_ms
            }
        who = (item.tenant, _server(item))
        slot_ms = max(now_ms + PUT_OFF_MS, self._slots_ms.get(who, 0) + APART_MS)
        if slot_ms > now_ms + PUT_OFF_MS_MAX:
            slot_ms = now_ms + PUT_OFF_MS
        self._slots_ms[who] = slot_ms
        return slot_ms

    def _stored(self) -> Window:
        """Return a window on the stored jobs; all of them are committed."""
        start, end = keyspace.prefix_range(keyspace.ERRAND_PREFIX)
        return Window(start, end, partial(next_keys, self._store))

    def _look_in(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + delay_s + 0.001  # A timer that fires early would find nothing due.
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._look, context=Context())


def server_of(url: str) -> str:
    """Return the part of a URL that names the server."""
    return url.partition("//")[2].partition("/")[0].lower()


def _not_tried(item: Item, deferred_ms: int) -> Operation:
    """Defer an item without an attempt; the decision gives up one that is too old."""
    assert isinstance(item, Delivery), f"no errand: {item}"
    return Undelivered(
        tenant=item.tenant, id=item.id, attempt=item.attempts + 1, deferred_ms=deferred_ms
    )


def _server(item: Item) -> str:
    """Return the server of the job; empty for the artifact store."""
    match item:
        case Delivery():
            return server_of(item.url)
        case Sweep():
            return ""
        case _:
            raise AssertionError(f"no errand: {item}")
