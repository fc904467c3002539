"""View: one shard's state with the changes its leader has decided and not yet committed.

The store holds the committed rows. The overlay above it holds the rows of every batch in flight.
Decisions read through both, so a second decision sees the first before it is durable. A batch's
rows leave the overlay when its entry is applied.

On a node that does not lead, the overlay stays empty and the view follows the applied entries. It
then says which queues have work, slightly behind the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import repeat

from codeq_cluster.broker.engine.busy_queues import BusyQueues
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.engine.noted import Noted
from codeq_cluster.broker.engine.ranges import Ranges
from codeq_cluster.broker.engine.recounting import Recounted
from codeq_cluster.broker.engine.time_index import TimeIndex
from codeq_cluster.broker.engine.window import KeyBudget, Window
from codeq_cluster.broker.ports import Head, StateStore
from codeq_cluster.broker.scanning import every_row, next_keys
from codeq_cluster.codec import followed, keyspace, records
from codeq_cluster.core.budget import Usage
from codeq_cluster.core.fairness import Turns
from codeq_cluster.core.gating import room
from codeq_cluster.core.items import Item
from codeq_cluster.core.lane import Flow
from codeq_cluster.core.limit import scope_of_limit
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Counters, Result, Task
from codeq_cluster.core.turn_order import TurnOrder
from codeq_cluster.core.view import KeyRow
from codeq_cluster.key_order import UNORDERED_MAX, KeyOrder

log = logging.getLogger(__name__)

Rows = Mapping[bytes, bytes | None]

# A ready position grows with time and is comparable between shards: milliseconds, then a count.
_SEQ_BITS = 20
# Keys of ready tasks in all windows together: 128 Ki x ~110 bytes = 14 MiB. Beyond it, each queue
# with ready tasks keeps at most `window.KEYS_MIN` keys; its window adds ~400 bytes.
_READY_KEYS_MAX = 2**17
_TURNS_MAX = 4096  # Tenants whose turns are remembered; beyond it every tenant starts over.
_NO_QUEUES: frozenset[str] = frozenset()
_NONE = Counters()
_NO_USAGE = Usage()


def seq_ms(seq: int) -> int:
    """Return the instant at which a ready position was given, Unix milliseconds."""
    return seq >> _SEQ_BITS


class ShardView(Ranges):
    """Implements `core.view.View` over a store and an overlay.

    Attributes:
        counters: Of every queue that has tasks, by queue and tenant; decided changes included.
        policy: Returns the policy of a tenant's queue as applied on this node.
        bulk: The tenant and the id of every bulk job that goes on here.
        unread: Tenants whose queues a look for any command has considered only in part.
    """

    def __init__(
        self,
        store: StateStore,
        *,
        shard: int,
        fraction: Callable[[], float],
        catalogue: Catalogue,
        recounted: Recounted,
        unreadable: Callable[[], None],
    ) -> None:
        self.now_ms = 0
        self.seq = 0
        self.counters: dict[tuple[str, str], Counters] = {}
        self._shard = shard
        self._store = store
        self._fraction = fraction
        self._catalogue = catalogue
        self._unreadable = unreadable
        self.policy = catalogue.policy
        self._usages: dict[str, Usage] = {}
        self._turns: dict[str, Turns] = {}
        # key -> (batch, value): the newest decided value. An older batch must not remove it.
        self._overlay: dict[bytes, tuple[int, bytes | None]] = {}
        self._order = KeyOrder(self._overlay, patience=16)  # Most are applied after a few reads.
        self._tasks: dict[str, tuple[int, Task | None]] = {}
        self._together: dict[tuple[str, str], int] = {}  # See `leased_together`.
        self._together_as_of = 0
        self._counted: dict[str, set[str]] = {}  # By tenant, the queues that have counters.
        self._busy: dict[str, set[str]] = {}
        self._lines: dict[str, BusyQueues] = {}  # Of tenants that had a claim of any command.
        self.unread: dict[str, None] = {}
        self._ready: dict[tuple[str, str], Window] = {}  # Only of queues that have ready tasks.
        self._ready_keys = KeyBudget(_READY_KEYS_MAX)
        self.time = TimeIndex(self._live)
        self._load(recounted)
        self._noted = Noted(store, opened=self.opened)
        self.asides, self.bulk = self._noted.asides, self._noted.bulk
        self.pins, self.gates = self._noted.pins, self._noted.gates
        self.ruled, self.sharers = self._noted.ruled, self._noted.sharers

    # -- for the core ----------------------------------------------------------------------------

    def task(self, task_id: str) -> Task | None:
        """Return the task, or None."""
        decided = self._tasks.get(task_id)
        if decided is not None:
            return decided[1]
        record = self._store.get(keyspace.task(task_id))
        return None if record is None else records.decode_task(record)

    def readable(self, task_id: str) -> Task | None:
        """Return a task that exists, or None if its record cannot be read; the log says so."""
        try:
            task = self.task(task_id)
            assert task is not None, "a row leads to no task"
        except (AssertionError, records.RecordInvalid):
            log.exception("left out", extra={"shard": self._shard, "task": task_id})
            self._unreadable()
            return None
        return task

    def payload(self, task_id: str) -> str:
        """Return the JSON text of a task that exists."""
        text = self._get(keyspace.payload(task_id))
        assert text is not None, "the payload of a task is missing"
        return text.decode()

    def result(self, task_id: str) -> Result | None:
        """Return the task's result, or None."""
        record = self._get(keyspace.result(task_id))
        return None if record is None else records.decode_result(record)

    def keyed(self, tenant: str, key: str) -> KeyRow | None:
        """Return the row of the idempotency key, or None."""
        record = self._get(keyspace.idempotency(tenant, key))
        return None if record is None else records.decode_key_row(record)

    def item(self, kind: ItemKind, tenant: str, item_id: str) -> Item | None:
        """Return the item of this shard, or None."""
        record = self._get(keyspace.item(kind, tenant, item_id))
        return None if record is None else records.decode_item(record)

    def flow(self, tenant: str, queue: str) -> Flow | None:
        """Return the rules of a queue and its keys in force on this shard, or None."""
        # Decisions ask for it that often. Who needs one that cannot be read must hear of it.
        known = self._noted.flows.get((tenant, queue)) or self.item(ItemKind.FLOW, tenant, queue)
        assert known is None or isinstance(known, Flow)
        return known

    def leased(self, tenant: str, queue: str) -> int:
        """Return the number of leased tasks of the queue; other shards' as applied here."""
        there = self._catalogue.leased_elsewhere(self._shard, tenant, queue)
        return self.counters.get((queue, tenant), _NONE).leased + there

    def leased_together(self, tenant: str, scope: str) -> int:
        """Return the number of leased tasks of all queues that share a limit, as `leased`."""
        # Each of these queues asks for it, so it is counted once for all of them.
        if self._together_as_of != self._catalogue.applied:
            self._together_as_of = self._catalogue.applied
            self._together.clear()
        place = tenant, scope
        known = self._together.get(place)
        if known is None:
            known = sum(self.leased(tenant, queue) for queue in self.sharers.get(place, ()))
            self._together[place] = known
        return known

    def usage(self, tenant: str) -> Usage:
        """Return the tenant's usage; other shards' as applied on this node."""
        here = self.usage_here(tenant)
        there = self._catalogue.usage_elsewhere(self._shard, tenant)
        return Usage(
            here.waiting + there.waiting,
            here.leased + there.leased,
            here.stored_bytes + there.stored_bytes,
        )

    def has_queue(self, tenant: str, queue: str) -> bool:
        """Return whether the queue has any tasks; on other shards, as applied on this node."""
        return (queue, tenant) in self.counters or self._catalogue.has_queue(tenant, queue)

    def most_queues(self, tenant: str) -> int:
        """Return the tenant's queues on its fullest shard; of others, as applied on this node."""
        return max(len(self.counted_queues(tenant)), self._catalogue.most_queues(tenant))

    def turns(self, tenant: str) -> Turns:
        """Return the turns of the tenant's queues."""
        turns = self._turns.get(tenant)
        if turns is None:
            if len(self._turns) >= _TURNS_MAX:
                self._turns.clear()
                self._lines.clear()
            turns = self._turns[tenant] = Turns()
        return turns

    def lapsed(self, count: int) -> tuple[Item, ...]:
        """Return at most `count` expired items, oldest first."""
        found: list[Item] = []
        for key in self.time.items(count, now_ms=self.now_ms):
            item = self.item(*keyspace.item_parts(key))
            assert item is not None, "the item of a timer is missing"
            found.append(item)
        return tuple(found)

    def queues(self, tenant: str) -> AbstractSet[str]:
        """Return the tenant's queues that have ready tasks."""
        return self._busy.get(tenant, _NO_QUEUES)

    def order(self, tenant: str) -> TurnOrder:
        """Return the order in which the tenant's queues are served."""
        busy = self._busy.get(tenant)
        if busy is None:
            return TurnOrder(self.turns(tenant), _NO_QUEUES, lambda _queue: None)
        line = self._line(tenant, busy)
        line.read()
        self._note_unread(tenant, line)
        return line.order

    def ready(self, tenant: str, queue: str) -> Iterator[tuple[int, int, str]]:
        """Yield (priority, seq, task id) of one queue in claim order."""
        if queue not in self._busy.get(tenant, ()):
            return
        for key in self._ready_window(queue, tenant):
            yield keyspace.pending_parts(key)

    def due(self, count: int, *, leases_too: bool) -> tuple[str, ...]:
        """Return at most `count` ids of tasks whose timer is at or before now."""
        found = self.time.tasks(count, now_ms=self.now_ms, leases_too=leases_too)
        return tuple(task_id for _, task_id, _ in found)

    def next_seq(self) -> int:
        """Return the next ready position and count it as given."""
        self.seq = max(self.seq + 1, self.now_ms << _SEQ_BITS)
        return self.seq

    def fraction(self) -> float:
        """Return a random number in [0, 1)."""
        return self._fraction()

    # -- for the engine --------------------------------------------------------------------------

    def head(self, tenant: str, queues: Iterable[str]) -> Head | None:
        """Return the first ready task of the named queues, or of all the tenant's if none is named.

        Queues that may not be claimed from now are passed over.
        """
        best: Head | None = None
        busy = self._busy.get(tenant)
        if not busy:
            return None
        if not queues:
            line = self._line(tenant, busy)
            oldest = line.oldest()
            self._note_unread(tenant, line)
            return None if oldest is None else Head(self._shard, *oldest)
        for queue in queues:
            if queue not in busy or not self._open(tenant, queue):
                continue
            key = self._ready_window(queue, tenant).first()
            if key is None:
                continue
            priority, seq, _ = keyspace.pending_parts(key)
            if best is None or (-priority, seq) < (-best.priority, best.seq):
                best = Head(self._shard, priority, seq)
        return best

    def usage_here(self, tenant: str) -> Usage:
        """Return the tenant's usage on this shard."""
        return self._usages.get(tenant, _NO_USAGE)

    def counted_queues(self, tenant: str) -> AbstractSet[str]:
        """Return the tenant's queues that have any tasks, ended ones included."""
        return self._counted.get(tenant, _NO_QUEUES)

    def advance(self, batch: int, rows: Rows, tasks: Mapping[str, Task | None]) -> None:
        """Add decided rows, which batch number `batch` will commit."""
        overlay = self._overlay
        overlay.update(zip(rows, zip(repeat(batch), rows.values(), strict=False), strict=True))
        self._order.added += len(rows)
        for task_id, task in tasks.items():
            self._tasks[task_id] = (batch, task)
        self.follow(rows)

    def applied(self, batch: int, keys: Iterable[bytes], tasks: Iterable[str]) -> None:
        """Drop the rows and tasks of an applied batch: the store holds them now."""
        overlay = self._overlay
        for key in keys:
            newest = overlay.get(key)
            if newest is not None and newest[0] == batch:
                del overlay[key]
        for task_id in tasks:
            newest_task = self._tasks.get(task_id)
            if newest_task is not None and newest_task[0] == batch:
                del self._tasks[task_id]

    def follow(self, rows: Rows) -> None:
        """Update the windows and counters from rows that were written or deleted."""
        timed = self.time.windows
        counted: list[bytes] = []
        items: list[bytes] = []
        moved: list[tuple[str, str, bytes]] = []
        for place, key in followed.scheduled(rows):
            value = rows[key]
            if place is keyspace.Family.STATS:
                counted.append(key)
            elif place is keyspace.Family.ITEM:
                items.append(key)
            elif isinstance(place, tuple):
                self._follow_ready(*place, key, live=value is not None)
                moved.append((*place, key))
            elif value is None:
                timed[place].remove(key)
            elif timed[place].add(key) or place is keyspace.Family.EXPIRY:
                # Items of a newer version are passed over, so a later one may be the first.
                self.time.has_new_first = True
        # Counters come after the windows, which rely on the old counts. They come before the lines,
        # which must know the queues that have work.
        for key in counted:
            self._count(keyspace.stats_parts(key), rows[key])
        for key in items:
            self._noted.row(key, rows[key])
        self._together.clear()
        if self._lines:
            self._tell_lines(moved, rows)

    def opened(self, tenant: str, scope: str) -> None:
        """Look again at the queue, or at those that share the limit: they may be claimable now."""
        line = self._lines.get(tenant)
        if line is not None:
            # In order, so that a simulated run can be repeated.
            for queue in sorted(self.sharers.get((tenant, scope), (scope,))):
                line.opened(queue)

    def read_on(self) -> bool:
        """Read more of the queues that looks have left unread; return whether any are left."""
        for tenant in self.unread:
            line = self._lines.get(tenant)
            if line is not None:
                line.read()
            if line is None or not line.unread:
                del self.unread[tenant]
            break
        return bool(self.unread)

    def count(self, rows: Rows) -> None:
        """Update only the counters; the rest of the view is out of date afterwards."""
        self._together.clear()
        for key in filter(keyspace.is_stats, rows):
            self._count(keyspace.stats_parts(key), rows[key])

    # -- inside ----------------------------------------------------------------------------------

    def _load(self, recounted: Recounted) -> None:
        damaged: list[tuple[bytes, bytes]] = []
        for key, value in every_row(self._store, *keyspace.prefix_range(keyspace.STATS_PREFIX)):
            try:
                self._count(keyspace.stats_parts(key), value)
            except records.RecordInvalid:
                damaged.append((key, value))
        for key, mended in recounted.rows(damaged).items():
            self._count(keyspace.stats_parts(key), mended)

    def _count(self, place: tuple[str, str], value: bytes | None) -> None:
        queue, tenant = place
        counters = _NONE if value is None else records.decode_counters(value)
        before = self.counters.get(place, _NONE)
        self._use(tenant, before, counters)
        if self._lines and counters.leased < before.leased:
            flow = self._noted.flows.get((tenant, queue))
            if flow is not None and flow.limit:
                self.opened(tenant, scope_of_limit(flow.limit))
        if counters == _NONE:
            self._uncount(place)
        else:
            if place not in self.counters:
                self._counted.setdefault(tenant, set()).add(queue)
            self.counters[place] = counters
        busy = self._busy.get(tenant)
        if counters.ready:
            if busy is None:
                self._busy[tenant] = {queue}
            else:
                busy.add(queue)
            line = self._lines.get(tenant)
            if line is not None:
                line.opened(queue)  # A lease may have ended, which makes room under a limit.
        else:
            self._drain(queue, tenant)

    def _uncount(self, place: tuple[str, str]) -> None:
        if self.counters.pop(place, None) is not None:
            queue, tenant = place
            queues = self._counted[tenant]
            queues.discard(queue)
            if not queues:
                del self._counted[tenant]

    def _drain(self, queue: str, tenant: str) -> None:
        """Drop the cached ready tasks of a queue that has none left."""
        window = self._ready.pop((queue, tenant), None)
        if window is not None:
            window.close()
        busy = self._busy.get(tenant)
        if busy is None:
            return
        busy.discard(queue)
        if not busy:
            del self._busy[tenant]
            self._lines.pop(tenant, None)
        elif tenant in self._lines:
            self._lines[tenant].left(queue)

    def _use(self, tenant: str, before: Counters, after: Counters) -> None:
        usage = self._usages.get(tenant, _NO_USAGE)
        waiting = after.ready + after.delayed + after.held
        now = Usage(
            usage.waiting + waiting - before.ready - before.delayed - before.held,
            usage.leased + after.leased - before.leased,
            usage.stored_bytes + after.stored_bytes - before.stored_bytes,
        )
        if now == _NO_USAGE:
            self._usages.pop(tenant, None)
        else:
            self._usages[tenant] = now

    def _open(self, tenant: str, queue: str) -> bool:
        """Return whether the queue may be claimed from now."""
        leased = partial(self.leased, tenant, queue)
        left = self.policy(tenant, queue).claimable(1, leased)
        return (room(self, tenant, queue, left) if self.pins else left) > 0

    def _ready_window(self, queue: str, tenant: str) -> Window:
        window = self._ready.get((queue, tenant))
        return self._new_ready_window(queue, tenant, empty=False) if window is None else window

    def _follow_ready(self, queue: str, tenant: str, key: bytes, *, live: bool) -> None:
        """Update the window of a ready task's queue, unless a later look will read it."""
        window = self._ready.get((queue, tenant))
        if window is None and live and queue not in self._busy.get(tenant, _NO_QUEUES):
            window = self._new_ready_window(queue, tenant, empty=True)
        if window is not None:
            (window.add if live else window.remove)(key)

    def _tell_lines(self, moved: Iterable[tuple[str, str, bytes]], rows: Rows) -> None:
        """Tell of the tasks that became ready."""
        for queue, tenant, key in moved:
            if tenant in self._lines and rows[key] is not None:
                self._lines[tenant].added(queue, key)

    def _new_ready_window(self, queue: str, tenant: str, *, empty: bool) -> Window:
        start, end = keyspace.pending_range(queue, tenant)
        window = Window(start, end, self._live, budget=self._ready_keys, empty=empty)
        self._ready[queue, tenant] = window
        return window

    def _line(self, tenant: str, busy: AbstractSet[str]) -> BusyQueues:
        line = self._lines.get(tenant)
        if line is None:
            turns = self.turns(tenant)  # First: this call may drop all lines.
            line = self._lines[tenant] = BusyQueues(
                busy,
                turns,
                window=partial(self._ready_window, tenant=tenant),
                is_open=partial(self._open, tenant),
            )
        return line

    def _note_unread(self, tenant: str, line: BusyQueues) -> None:
        if line.unread:
            self.unread[tenant] = None

    def _get(self, key: bytes) -> bytes | None:
        decided = self._overlay.get(key)
        return self._store.get(key) if decided is None else decided[1]

    def _live(self, start: bytes, end: bytes, limit: int) -> tuple[list[bytes], bytes]:
        """Return the store's keys from `start`, corrected by the overlay; see `window.Read`."""
        stored, edge = next_keys(self._store, start, end, limit)
        overlay = self._overlay
        if not overlay:
            return stored, edge
        keys: set[bytes] | None = None
        few = len(overlay) <= UNORDERED_MAX
        for key in overlay if few else self._order.between(start, edge):
            if start <= key < edge:
                keys = set(stored) if keys is None else keys
                (keys.discard if overlay[key][1] is None else keys.add)(key)
        return stored if keys is None else sorted(keys), edge
