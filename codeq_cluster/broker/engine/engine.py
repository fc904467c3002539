"""Engine: one shard on one node. Decide on the view, commit in groups, release when applied.

While the node leads the shard, it decides each operation on the view as soon as it arrives, one
after another. The operation's rows join the open batch and its caller waits. When the Raft group
takes its turn, it takes the open batch as one entry. When that entry is applied, the batch's
callers are answered.

The rules that keep this correct:

- Nothing is answered before its batch is applied here, and batches are applied in order. An answer
  without changes may rest on decisions that are not applied yet, so it waits for all of them. If
  its own batch has no rows, it also waits for a read index.
- An entry names the term it was decided in. Applied under another term it is a no-op on every
  replica, so a batch of a deposed leader can never take effect (the epoch fence).
- When leadership ends, the whole view is dropped. Batches already handed to the group are *outcome
  unknown*; batches not handed over were certainly not done.
- A new leader decides only after its own first entry is applied (`lead`), on a new view.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import assert_never

from msgspec.structs import replace

from codeq_cluster.broker.engine.answers import (
    browse,
    browse_delayed,
    explain_task,
    list_items,
    oldest_ready_ms,
)
from codeq_cluster.broker.engine.batch import Batch, OutcomeSlot, Waiting, weigh
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.engine.group_commit import GATHER_S_MAX, GroupCommit
from codeq_cluster.broker.engine.view import ShardView
from codeq_cluster.broker.ports import (
    Clock,
    Depth,
    EntryTracing,
    Head,
    Log,
    Observer,
    Snapshot,
    StateStore,
)
from codeq_cluster.broker.questions import (
    Answer,
    AnyQuestion,
    Browse,
    BrowseDelayed,
    Explain,
    Explained,
    ListItems,
    Settle,
    Settled,
)
from codeq_cluster.codec import entries, keyspace
from codeq_cluster.codec.mutations import mutations, number_audit_rows
from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.operations import Advance, Claim, Create, Import, Operation
from codeq_cluster.core.outcomes import Claimed, Outcome
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.runs import runs
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Task
from codeq_cluster.errors import (
    CodeqError,
    NotLeader,
    OperationTooLarge,
    OutcomeUnknown,
    Overloaded,
)

log = logging.getLogger(__name__)

# Close a batch before a decision would make it larger than this: an entry of a megabyte amortises
# its fixed costs fully. A larger decision becomes an entry of its own.
BATCH_BYTES_MAX = 2**20
_CLOCK_KEY = keyspace.meta("clock")
_SEQ_KEY = keyspace.meta("seq")

ENTRY_OVERHEAD_BYTES = 1024  # For an entry's frame, clock and sequence rows.
RETRY_S = 1.0  # After an advance of time failed for a reason of our own.
ADVANCE_COUNT = 256  # Tasks that one advance of time may change: ~5 ms on the loop.
# Pause between two reads of queues that a look left out, which take up to 2 ms each. When all
# shards of a node read at once, other work still gets half of the loop.
READ_ON_S = 0.01
DEPTHS_AT_ONCE = 100  # Queues whose oldest task is looked up without a pause: 100 x up to 100 us.


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Bounds of one engine.

    Attributes:
        operations_max: Operations decided and not released; beyond it callers are refused.
        bytes_max: The same in bytes of rows.
        lease_grace_ms: No lease ends within this time after the node began to lead.
        entry_bytes_max: Bytes of one entry of the log.
        gather_s: The longest time an entry waits for the next requests of callers just answered.
    """

    operations_max: int
    bytes_max: int
    lease_grace_ms: int
    entry_bytes_max: int
    gather_s: float = GATHER_S_MAX


class Leadership:
    """The state that exists only while this node leads: the view and the batches in flight.

    Attributes:
        open: Batches the group has not taken yet, in order.
        sent: Batches it has taken and not applied, in order.
        taken: Ordinal of the last batch it has taken.
        waiting: Operations in the open batches.
    """

    __slots__ = (
        "clock_base_ms",
        "gathering",
        "leases_from_ms",
        "open",
        "ordinal",
        "sent",
        "taken",
        "term",
        "view",
        "waiting",
    )

    def __init__(
        self,
        term: int,
        view: ShardView,
        gathering: GroupCommit,
        *,
        clock_base_ms: int,
        leases_from_ms: int,
    ) -> None:
        self.term = term
        self.view = view
        self.gathering = gathering
        self.clock_base_ms = clock_base_ms
        self.leases_from_ms = leases_from_ms
        self.ordinal = 0
        self.taken = 0
        self.waiting = 0
        self.open: deque[Batch] = deque()
        self.sent: deque[Batch] = deque()


class Engine:
    """One shard's broker; implements the group's StateMachine and EntrySource."""

    def __init__(
        self,
        *,
        node_id: str,
        shard: int,
        shards: int,
        store: StateStore,
        rules: LifetimeRules,
        limits: EngineLimits,
        clock: Clock,
        fraction: Callable[[], float],
        observer: Observer,
        tracing: EntryTracing | None = None,
        catalogue: Catalogue,
        open_log: Callable[[Engine], Log],
        awaited: Callable[[], bool] = lambda: False,
    ) -> None:
        self._node_id = node_id
        self.shard = shard
        self.leader: str | None = None
        self.fenced = 0
        self._shards = shards
        self._store = store
        self._rules = rules
        self._limits = limits
        self._clock = clock
        self._fraction = fraction
        self._observer = observer
        self._tracing = tracing
        self._catalogue = catalogue
        self._awaited = awaited
        self._leadership: Leadership | None = None
        self._replica = self._new_view()
        self._operations = 0
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._advancing: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Handle | None = None
        self._on_leader: list[Callable[[], None]] = []
        self._on_reload: list[Callable[[], None]] = []
        self._on_rows: list[Callable[[dict[bytes, bytes | None]], None]] = []
        self._stopped = False
        catalogue.on_open(self._opened)
        catalogue.follow(lambda: self._replica)
        # Last: a log may ask its engine for its state at once.
        self._group = open_log(self)

    def on_leader(self, call: Callable[[], None]) -> None:
        """Call `call` whenever this node learns of a leader or loses one."""
        self._on_leader.append(call)

    def on_rows(self, call: Callable[[dict[bytes, bytes | None]], None]) -> None:
        """Call `call` with the followed rows of every applied entry, on every replica.

        `keyspace.followed` selects the rows.
        """
        self._on_rows.append(call)

    def on_reload(self, call: Callable[[], None]) -> None:
        """Call `call` when the replica's state has been replaced by a later one."""
        self._on_reload.append(call)

    def reload(self) -> None:
        """Read the store again: its state was replaced while this node did not lead."""
        assert self._leadership is None, "a leader's state is exchanged"
        self._replica = self._new_view()
        for call in self._on_reload:
            call()

    def stop(self) -> None:
        """Refuse everything from now on; callers still waiting get OutcomeUnknown or NotLeader."""
        self._stopped = True
        if self._reading is not None:
            self._reading.cancel()
        self._end_leadership()

    @property
    def leads(self) -> bool:
        """Return whether this node decides for the shard."""
        return self._leadership is not None

    @property
    def now_ms(self) -> int:
        """Return the clock of decisions, Unix milliseconds; it runs only while this node leads."""
        assert self._leadership is not None, (
            "nobody tells the time of a shard that is led elsewhere"
        )
        return self._leadership.clock_base_ms + self._clock.monotonic_ms()

    # -- for callers -----------------------------------------------------------------------------

    async def operate(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Decide operations in order and return their outcomes once all are durable.

        Raises:
            NotLeader: Nothing was done.
            Overloaded: Nothing was done.
            OperationTooLarge: The operation's rows do not fit an entry; nothing was done.
            OutcomeUnknown: Leadership ended while the entry was in flight.
        """
        return await self._answered(self._admitting(len(operations)), operations)

    def begin(self, operations: Sequence[Operation], place: OutcomeSlot) -> None:
        """Decide operations in order; `place` later gets what `operate` would return or raise.

        Raises:
            NotLeader: Nothing was done; after this and the errors below, `place` gets nothing.
            Overloaded: Nothing was done.
            OperationTooLarge: The operation's rows do not fit an entry; nothing was done.
            OutcomeUnknown: A batch of operations failed half way.
        """
        self._submit(self._admitting(len(operations)), operations, place)

    async def read(self, keys: Sequence[bytes]) -> Snapshot:
        """Return rows as of now: after a quorum has confirmed that this node still leads.

        Raises:
            NotLeader: This node does not lead, or stopped leading meanwhile.
        """
        await self._barrier()
        return self.stale(keys)

    async def depths(self, tenant: str, queue: str = "") -> list[Depth]:
        """Return the tenant's queues as of now, or one of them; never scan tasks.

        The counters are of one instant. For many queues, the oldest tasks are looked up in
        portions, so that other work on the loop gets its turn.
        """
        await self._barrier()
        counted = self._replica.counters
        if queue:
            found = {queue: counted[queue, tenant]} if (queue, tenant) in counted else {}
        else:
            names = self._replica.counted_queues(tenant)
            found = {name: counted[name, tenant] for name in names}
        depths: list[Depth] = []
        for name, counters in found.items():
            oldest_ms = oldest_ready_ms(self._store, name, tenant) if counters.ready else 0
            depths.append(
                Depth(
                    name,
                    counters.ready,
                    counters.delayed,
                    counters.leased,
                    counters.dead,
                    oldest_ms,
                )
            )
            if len(depths) % DEPTHS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return depths

    async def answer(self, question: AnyQuestion) -> Answer:
        """Answer a question as of now.

        Raises:
            NotLeader: This node does not lead, or stopped leading meanwhile.
            Overloaded: Too many callers wait for another shard's entries.
        """
        await self._barrier()
        match question:
            case Browse():
                queues = self._replica.counted_queues(question.tenant)
                return browse(self._store, queues, question)
            case BrowseDelayed():
                tenant, counted = question.tenant, self._replica.counted
                names = self._replica.counted_queues(tenant)
                delayed = [queue for queue in names if counted(queue, tenant).delayed]
                return browse_delayed(self._store, delayed, question)
            case ListItems():
                return list_items(self._store, question)
            case Explain():
                now_ms = max(self._number(_CLOCK_KEY), self._clock.wall_ms())
                return Explained(
                    explain_task(self._store, self._replica, self._rules, question, now_ms=now_ms)
                )
            case Settle():
                await self._catalogue.settled(question.shard, question.index)
                return Settled()
            case _:
                assert_never(question)

    def stale(self, keys: Sequence[bytes]) -> Snapshot:
        """Return rows from this replica without asking the leader."""
        return Snapshot(self._store.applied_index, self._store.get_many(keys))

    def head(self, tenant: str, queues: tuple[str, ...]) -> Head | None:
        """Return the first ready task known here, counting a leader's undurable decisions."""
        view = self.view
        head = view.head(tenant, queues)
        if view.is_unread:
            self._read_soon()
        return head

    def ready(self, tenant: str, queue: str) -> int:
        """Return how many tasks of a queue are ready, counting a leader's undurable decisions."""
        return self.view.counted(queue, tenant).ready

    @property
    def view(self) -> ShardView:
        """Return the state known here, including a leader's decisions not yet durable."""
        return self._leadership.view if self._leadership else self._replica

    @property
    def replica(self) -> ShardView:
        """Return the view of the applied state, for gauges."""
        return self._replica

    # -- for the group: StateMachine -------------------------------------------------------------

    @property
    def applied_index(self) -> int:
        """Index of the last entry in the state."""
        return self._store.applied_index

    @property
    def stored_index(self) -> int:
        """Index of the last entry that a restart would find in the state."""
        return self._store.stored_index

    @property
    def seen_index(self) -> int:
        """Index of the last entry known to have been applied, possibly before a crash."""
        return self._store.seen_index

    @property
    def digest(self) -> bytes:
        """Running hash over every applied entry."""
        return self._store.digest

    @property
    def awaited(self) -> bool:
        """Return whether a caller on this node waits for an entry to be applied."""
        return self._awaited()

    def apply(self, index: int, term: int, payload: bytes | None) -> None:
        """Apply the next committed entry; answer its callers if this node decided it."""
        digest = _extend(self._store.digest, index, term, payload)
        entry = None if payload is None else self._entry(term, payload)
        if entry is not None and entry.epoch != term:
            # The entry was decided under another term than the log gave it: every replica drops it.
            self.fenced += 1
            entry = None
        if entry is None:
            self._store.commit({}, index=index, digest=digest)
            self._tell_rows({})
            return
        assert payload is not None
        net = entries.is_net(payload)
        rows = entry.mutations
        rows[_CLOCK_KEY] = entry.clock_ms.to_bytes(8, "big")
        rows[_SEQ_KEY] = entry.seq.to_bytes(8, "big")
        number_audit_rows(rows, index)
        self._store.commit(rows, index=index, digest=digest, net=net)
        leadership = self._leadership
        if leadership is None:
            self._replica.follow(rows)
        else:
            assert leadership.term == term, "an entry of another leadership is applied in this one"
            # The leader's own view has the rows already; `_end_leadership` replaces the replica.
            self._replica.count(rows)
            self._release(leadership, entry.ordinal)
        self._tell_rows(rows)

    def _entry(self, term: int, payload: bytes) -> entries.Entry:
        """Return an entry's content; skip decoding if this leadership handed the entry over."""
        leadership = self._leadership
        if leadership is not None and leadership.sent and leadership.term == term:
            batch = leadership.sent[0]
            if batch.payload == payload:
                rows = dict(batch.rows)
                return entries.Entry(term, batch.ordinal, batch.clock_ms, batch.seq, rows)
        return entries.decode(payload)

    # -- for the group: EntrySource --------------------------------------------------------------

    def take(self) -> bytes | None:
        """Return the next batch as one entry, or None while more is likely to join it."""
        leadership = self._leadership
        if leadership is not None and not leadership.gathering.is_due(leadership.waiting):
            return None
        while leadership is not None and leadership.open:
            batch = leadership.open.popleft()
            leadership.waiting -= batch.operations
            if not batch.rows:
                self._release_after_barrier(leadership, batch)
                continue
            leadership.sent.append(batch)
            leadership.taken = batch.ordinal
            batch.taken_at = asyncio.get_running_loop().time()
            self._arm_timer(leadership)
            batch.clock_ms, batch.seq = leadership.view.now_ms, leadership.view.seq
            entry = entries.Entry(
                leadership.term, batch.ordinal, batch.clock_ms, batch.seq, batch.rows
            )
            batch.payload = entries.encode(entry, level=self._group.level)
            return batch.payload
        return None

    def lead(self, term: int) -> None:
        """Start to decide; every entry committed before this term is in the store."""
        assert self._leadership is None, "a leadership begins before the last one has ended"
        view = self._new_view()
        clock_ms = self._number(_CLOCK_KEY)
        view.seq = self._number(_SEQ_KEY)
        # The clock never runs backwards over a change of leader and never jumps within a
        # leadership. So the wall clock is read once here, and the monotonic clock counts from
        # there.
        now_ms = max(clock_ms, self._clock.wall_ms())
        leadership = Leadership(
            term,
            view,
            GroupCommit(self._group.wake, wait_s_max=self._limits.gather_s),
            clock_base_ms=now_ms - self._clock.monotonic_ms(),
            leases_from_ms=now_ms + self._limits.lease_grace_ms,
        )
        view.now_ms = now_ms
        self._leadership = leadership
        self.leader = self._node_id
        log.info("leading", extra={"shard": self.shard, "term": term})
        self._arm_timer(leadership)
        self._tell_leader()

    def follow(self, leader: str | None) -> None:
        """Stop deciding; as far as this node knows, `leader` leads now."""
        self.leader = leader
        self._end_leadership()
        self._tell_leader()

    # -- deciding --------------------------------------------------------------------------------

    def _leading(self) -> Leadership:
        if self._leadership is None or self._stopped:
            raise NotLeader(self.leader)
        return self._leadership

    def _admitting(self, count: int) -> Leadership:
        """Return the leadership if it has room for `count` more operations."""
        leadership = self._leading()
        if (
            self._operations + count > self._limits.operations_max
            or self._bytes > self._limits.bytes_max
        ):
            raise Overloaded(f"the write queue of shard {self.shard}")
        return leadership

    async def _answered(
        self, leadership: Leadership, operations: Sequence[Operation]
    ) -> list[Outcome]:
        """Decide, and wait until everything that the outcomes rest on is applied."""
        future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        batch = self._submit(leadership, operations, future)
        if batch is None or self._tracing is None:
            return await future
        with self._tracing.commit(
            shard=self.shard,
            term=leadership.term,
            ordinal=batch.ordinal,
            operations=len(operations),
        ):
            return await future

    def _submit(
        self, leadership: Leadership, operations: Sequence[Operation], place: OutcomeSlot
    ) -> Batch | None:
        """Decide; return the batch that the outcomes wait for, or None if already answered."""
        outcomes: list[Outcome] = []
        since: int | None = None
        try:
            left = deque(runs(operations, self._rules))
            while left:
                run = left.popleft()
                decided = self._decide(leadership, run)
                if decided is None:
                    half = len(run) // 2
                    left.extendleft((run[half:], run[:half]))
                    continue
                some, ordinal = decided
                outcomes += some
                since = ordinal if since is None else since
        except Exception as error:
            if since is None:
                raise
            # The decisions made before the failure are in the batch and will be committed.
            self._group.wake()
            raise OutcomeUnknown("a batch of operations failed half way") from error
        if all(isinstance(outcome, Claimed) and not outcome.tasks for outcome in outcomes):
            # An empty claim promises nothing, so it need not wait for a commit.
            place.set_result(outcomes)
            return None
        batch = leadership.open[-1] if leadership.open else self._new_batch(leadership)
        batch.operations += len(operations)
        leadership.waiting += len(operations)
        self._operations += len(operations)
        batch.waiting.append(Waiting(place, outcomes, since))
        if leadership.gathering.is_due(leadership.waiting):
            self._group.wake()
        return batch

    def _decide(
        self, leadership: Leadership, run: Sequence[Operation]
    ) -> tuple[list[Outcome], int | None] | None:
        """Decide a run.

        Returns:
            The outcomes and the ordinal of their rows' batch, if they have any; None if the run has
            to be decided in parts.
        """
        for operation in run:
            self._check_shard(operation)
        view = leadership.view
        view.now_ms = max(view.now_ms, leadership.clock_base_ms + self._clock.monotonic_ms())
        while True:
            decisions = [decide(view, operation, self._rules) for operation in run]
            if view.is_unread:
                self._read_soon()
            outcomes = [decision.outcome for decision in decisions]
            decided = [change for decision in decisions for change in decision.changes]
            if not decided:
                return outcomes, None
            rows = mutations(decided, view.counted)
            rows_bytes = weigh(rows)
            if rows_bytes <= self._limits.entry_bytes_max - ENTRY_OVERHEAD_BYTES:
                break
            # Only numbers have been drawn so far, so deciding again for fewer tasks is safe.
            if len(run) > 1:
                return None
            run = [_smaller(run[0])]
        batch = self._batch_for(leadership, rows_bytes)
        changes = [change for change in decided if isinstance(change, TaskChange)]
        tasks = {_changed(change).id: change.after for change in changes}
        view.advance(batch.ordinal, rows, tasks)
        batch.add_rows(rows, changes, rows_bytes=rows_bytes)
        batch.tasks.update(tasks)
        self._bytes += rows_bytes
        return outcomes, batch.ordinal

    def _check_shard(self, operation: Operation) -> None:
        """Assert that new tasks belong here."""
        if isinstance(operation, Create):
            key = operation.idempotency_key
            place = f"{operation.tenant}/{key}" if key else operation.id
            assert shard_of(place, self._shards) == self.shard, "a task sent to a foreign shard"
        elif isinstance(operation, Import):
            homes = {shard_of(arrival.task.id, self._shards) for arrival in operation.tasks}
            assert homes <= {self.shard}, "a task sent to a foreign shard"

    def _batch_for(self, leadership: Leadership, rows_bytes: int) -> Batch:
        """Return the open batch, or a new one if the rows would make it too large."""
        batch = leadership.open[-1] if leadership.open else None
        if batch is None or (batch.rows and batch.rows_bytes + rows_bytes > BATCH_BYTES_MAX):
            return self._new_batch(leadership)
        return batch

    def _new_batch(self, leadership: Leadership) -> Batch:
        leadership.ordinal += 1
        leadership.open.append(Batch(leadership.ordinal))
        return leadership.open[-1]

    def _with_payloads(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Add the payloads, which only the store has, now that the claimed tasks are in it."""
        for position, outcome in enumerate(outcomes):
            if isinstance(outcome, Claimed) and outcome.tasks:
                texts = self._store.get_many([keyspace.payload(task.id) for task in outcome.tasks])
                # A task may have ended and been deleted since: its claim is void, and no worker can
                # finish it.
                kept = [
                    (task, text.decode())
                    for task, text in zip(outcome.tasks, texts, strict=True)
                    if text is not None
                ]
                outcomes[position] = Claimed(
                    tuple(task for task, _ in kept), tuple(text for _, text in kept)
                )
        return outcomes

    # -- releasing -------------------------------------------------------------------------------

    def _release(self, leadership: Leadership, ordinal: int) -> None:
        batch = leadership.sent.popleft()
        assert batch.ordinal == ordinal, "entries are applied in another order than decided"
        leadership.view.applied(ordinal, chain(batch.rows, batch.cancelled), batch.tasks)
        self._forget(batch)
        batch.release(self._with_payloads)
        took_s = asyncio.get_running_loop().time() - batch.taken_at
        if not leadership.sent:
            leadership.gathering.begin(
                answered=batch.operations, waiting=leadership.waiting, took_s=took_s
            )
        self._observer.committed(shard=self.shard, mutations=len(batch.rows), commit_s=took_s)
        for change in batch.changes:
            self._observer.changed(change)

    def _release_after_barrier(self, leadership: Leadership, batch: Batch) -> None:
        def confirmed(leads: bool) -> None:
            if leads and self._leadership is leadership and leadership.sent:
                # The answers may rest on batches still in flight, so they go out with the last one.
                leadership.sent[-1].adopt(batch)
                return
            self._forget(batch)
            if leads:
                batch.release(self._with_payloads)
            else:
                batch.fail(partial(self._lost, leadership))

        self._group.barrier(confirmed)

    def _forget(self, batch: Batch) -> None:
        self._operations -= batch.operations
        self._bytes -= batch.rows_bytes

    def _end_leadership(self) -> None:
        leadership, self._leadership = self._leadership, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if leadership is None:
            return
        leadership.gathering.stop()
        self._replica = self._new_view()
        log.info("no longer leading", extra={"shard": self.shard, "term": leadership.term})
        for batch in (*leadership.sent, *leadership.open):
            self._forget(batch)
            batch.fail(partial(self._lost, leadership))

    def _lost(self, leadership: Leadership, waiting: Waiting) -> CodeqError:
        """Return what a caller can know of its outcome if leadership ends before its answer."""
        if waiting.since is not None and waiting.since <= leadership.taken:
            return OutcomeUnknown("leadership ended while the write was on its way")
        return NotLeader(self.leader)

    async def _barrier(self) -> None:
        self._leading()
        confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(leads: bool) -> None:
            if not confirmed.done():
                confirmed.set_result(leads)

        self._group.barrier(done)
        if not await confirmed:
            raise NotLeader(self.leader)

    # -- time ------------------------------------------------------------------------------------

    def _arm_timer(self, leadership: Leadership) -> None:
        """Set the timer for the next instant at which a lease, delay or retention ends."""
        due_ms = leadership.view.next_due_ms(leases_from_ms=leadership.leases_from_ms)
        if due_ms is None:
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        delay_ms = due_ms - (leadership.clock_base_ms + self._clock.monotonic_ms())
        # Add a millisecond: a timer that fires early would find nothing due.
        self._set_timer(due_ms, (max(0, delay_ms) + 1) / 1000)

    def _set_timer(self, due_ms: int, delay_s: float) -> None:
        self._timer_due_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._begin_advance)

    def _begin_advance(self) -> None:
        self._timer = None
        # Run in a fresh context: the timer inherited the tracing context of the request that set
        # it.
        task = asyncio.get_running_loop().create_task(self._advance(), context=Context())
        self._advancing.add(task)
        task.add_done_callback(self._advancing.discard)

    async def _advance(self) -> None:
        """Act on what is due, in one bounded batch; then set the timer for the rest."""
        leadership = self._leadership
        if leadership is None:
            return
        now_ms = leadership.clock_base_ms + self._clock.monotonic_ms()
        advance = Advance(count=ADVANCE_COUNT, leases_too=now_ms >= leadership.leases_from_ms)
        try:
            # Skip admission: timers must run even while callers are refused for a full queue.
            await self._answered(leadership, [advance])
        except (NotLeader, OutcomeUnknown):
            return  # The next leader's timers take over.
        except Exception:
            # Catch everything: without a new timer, leases and delays of this shard would never
            # end.
            log.exception("timers failed", extra={"shard": self.shard})
            if self._leadership is leadership and self._timer is None:
                self._set_timer(leadership.view.now_ms, RETRY_S)
            return
        if self._leadership is leadership:
            self._arm_timer(leadership)

    # -- inside ----------------------------------------------------------------------------------

    def _opened(self, tenant: str, queue: str) -> None:
        self.view.opened(tenant, queue)

    def _read_soon(self) -> None:
        """Schedule a read of the queues that the last look left out, some at a time."""
        if self._reading is None:
            # Wait a little, so that other work on the loop gets its turn between two reads.
            self._reading = asyncio.get_running_loop().call_later(
                READ_ON_S, self._read_on, context=Context()
            )

    def _read_on(self) -> None:
        self._reading = None
        if not self._stopped and self.view.read_on():
            self._read_soon()

    def _new_view(self) -> ShardView:
        return ShardView(
            self._store, shard=self.shard, fraction=self._fraction, catalogue=self._catalogue
        )

    def _number(self, key: bytes) -> int:
        return int.from_bytes(self._store.get(key) or b"", "big")

    def _tell_rows(self, rows: dict[bytes, bytes | None]) -> None:
        followed = keyspace.followed(rows)
        for call in self._on_rows:
            call(followed)

    def _tell_leader(self) -> None:
        for call in self._on_leader:
            call()


def _smaller(operation: Operation) -> Operation:
    """Return the operation for half as many tasks.

    Raises:
        OperationTooLarge: The operation is for one task already.
    """
    if isinstance(operation, Advance | Claim) and operation.count > 1:
        return replace(operation, count=operation.count // 2)
    raise OperationTooLarge("the operation writes more than an entry of the log can carry")


def _changed(change: TaskChange) -> Task:
    task = change.after or change.before
    assert task is not None, "a change of nothing"
    return task


def _extend(digest: bytes, index: int, term: int, payload: bytes | None) -> bytes:
    """Return the digest after one more entry."""
    running = blake2b(digest, digest_size=16)
    running.update(index.to_bytes(8, "big") + term.to_bytes(8, "big"))
    running.update(b"" if payload is None else payload)
    return running.digest()
