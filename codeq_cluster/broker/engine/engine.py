"""Engine: one shard on one node: applies its log, answers about its state, leads it in turn.

`leadership` decides operations while this node leads. The rules that keep a change of leader
correct:

- An entry names the term it was decided in. Applied under another term it is a no-op on every
  replica, so a batch of a deposed leader can never take effect (the epoch fence).
- A new leader decides only after its own first entry is applied (`lead`), on a new view.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

from codeq_cluster.broker.engine import answers
from codeq_cluster.broker.engine.batch import OutcomeSlot
from codeq_cluster.broker.engine.leadership import Leadership
from codeq_cluster.broker.engine.state import CLOCK_KEY, EVERY, SEQ_KEY, EngineSetup, EngineState
from codeq_cluster.broker.engine.view import ShardView
from codeq_cluster.broker.ports import Depth, Head, Log, LogEntry, Snapshot, StateStore, Tap
from codeq_cluster.broker.questions import Answer, AnyQuestion, Settle, Watch
from codeq_cluster.codec import entries
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.codec.mutations import number_audit_rows
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.errors import NotLeader
from codeq_cluster.forwarded import forwarded

log = logging.getLogger(__name__)


class Engine:
    """One shard's broker; implements the group's StateMachine and EntrySource.

    Args:
        fraction: Returns random numbers in [0, 1).

    Attributes:
        fenced: How many entries were dropped because another term decided them.
        leader: The id of the node that leads the shard, or None if this node knows of none.
        leads: Whether this node decides for the shard.
        view: The state known here, including a leader's decisions not yet durable.
        replica: The view of the applied state, for gauges.
        applied_index: Index of the last entry in the state.
        stored_index: Index of the last entry that a restart would find in the state.
        seen_index: Index of the last entry known to have been applied, possibly before a crash.
        digest: Running hash over every applied entry.
        oldest_index: Index of the oldest entry that `entries` may return.
        level: Of the formats in use.
        tap: Gets every applied entry, for watchers; None while there is none.
    """

    leader: str | None = forwarded("_state.leader")
    view: ShardView = forwarded("_state.view")
    replica: ShardView = forwarded("_state.replica")
    applied_index: int = forwarded("_store.applied_index")
    stored_index: int = forwarded("_store.stored_index")
    seen_index: int = forwarded("_store.seen_index")
    digest: bytes = forwarded("_store.digest")
    oldest_index: int = forwarded("_state.log.oldest_index")
    level: int = forwarded("_state.log.level")

    def __init__(
        self,
        setup: EngineSetup,
        *,
        shard: int,
        store: StateStore,
        fraction: Callable[[], float],
        open_log: Callable[[Engine], Log],
    ) -> None:
        self.shard = shard
        self.fenced = 0
        self.leads = False
        self.tap: Tap | None = None
        self._store = store
        self._state = state = EngineState(setup, shard=shard, store=store, fraction=fraction)
        self._leadership: Leadership | None = None
        setup.catalogue.on_open(state.opened)
        setup.catalogue.follow(state)
        # Last: a log may ask its engine for its state at once.
        state.log = open_log(self)

    def on_leader(self, call: Callable[[], None]) -> None:
        """Call `call` whenever this node learns of a leader or loses one."""
        self._state.listeners.on_leader.append((call, EVERY))

    def on_rows(self, call: Callable[[dict[bytes, bytes | None]], None], *of: Family) -> None:
        """Call `call` with the followed rows of every applied entry, on every replica.

        `codec.followed` selects the rows.

        Args:
            of: Only entries with a row of one of these families are told; without any, all are.
        """
        self._state.listeners.on_rows.append((call, frozenset(of)))

    def on_reload(self, call: Callable[[], None]) -> None:
        """Call `call` when the replica's state has been replaced by a later one."""
        self._state.listeners.on_reload.append((call, EVERY))

    def reload(self) -> None:
        """Read the store again: its state was replaced while this node did not lead."""
        assert self._leadership is None, "a leader's state is exchanged"
        self._state.replaced()
        self._state.listeners.reload()

    def stop(self) -> None:
        """Refuse everything from now on; callers still waiting get OutcomeUnknown or NotLeader."""
        self._state.stop()
        self._end_leadership()

    @property
    def now_ms(self) -> int:
        """Return the clock of decisions, Unix milliseconds; it runs only while this node leads."""
        assert self._leadership is not None, "the clock of decisions is asked of a follower"
        return self._state.now_ms

    # -- for callers -----------------------------------------------------------------------------

    async def operate(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Decide operations in order and return their outcomes once all are durable.

        Raises:
            NotLeader: Nothing was done.
            Overloaded: Nothing was done.
            OperationTooLarge: The operation's rows do not fit an entry; nothing was done.
            OutcomeUnknown: Leadership ended while the entry was in flight.
        """
        return await self._leading().decided(operations)

    def begin(self, operations: Sequence[Operation], place: OutcomeSlot) -> None:
        """Decide operations in order; `place` later gets what `operate` would return or raise.

        Raises:
            NotLeader: Nothing was done; after this and the errors below, `place` gets nothing.
            Overloaded: Nothing was done.
            OperationTooLarge: The operation's rows do not fit an entry; nothing was done.
            OutcomeUnknown: A batch of operations failed half way.
        """
        leadership = self._leadership
        if leadership is None:
            raise NotLeader(self._state.leader)
        leadership.submit(operations, place)

    async def read(self, keys: Sequence[bytes]) -> Snapshot:
        """Return rows as of now: after a quorum has confirmed that this node still leads.

        Raises:
            NotLeader: This node does not lead, or stopped leading meanwhile.
        """
        await self._barrier()
        return self.stale(keys)

    async def depths(self, tenant: str, queue: str = "") -> list[Depth]:
        """Return the tenant's queues as of now, or one of them; never scan tasks.

        The counters are of one instant.

        Raises:
            NotLeader: This node does not lead, or stopped leading meanwhile.
            Overloaded: Too many reads of all queues, or of many rows, are asked for.
        """
        await self._barrier()
        read = partial(answers.depths, self._state, tenant, queue)
        return await (read() if queue else self._state.setup.reads.in_turn(tenant, read))

    async def answer(self, question: AnyQuestion) -> Answer:
        """Answer a question as of now.

        Raises:
            NotLeader: This node does not lead, or stopped leading meanwhile.
            Overloaded: Too many callers wait for another shard's entries, or on leases, or too
                many reads are asked for.
        """
        await self._barrier()
        read = partial(answers.answer, self._state, question)
        if isinstance(question, Settle | Watch):
            return await read()
        return await self._state.setup.reads.in_turn(question.tenant, read)

    def stale(self, keys: Sequence[bytes]) -> Snapshot:
        """Return rows from this replica without asking the leader."""
        return Snapshot(self._store.applied_index, self._store.get_many(keys))

    def entries(self, start: int, *, upto: int, bytes_max: int) -> list[LogEntry]:
        """Return entries of the log on this node's disk, as `Log.entries` does."""
        return self._state.log.entries(start, upto=upto, bytes_max=bytes_max)

    def head(self, tenant: str, queues: tuple[str, ...]) -> Head | None:
        """Return the first ready task known here, counting a leader's undurable decisions."""
        view = self._state.view
        head = view.head(tenant, queues)
        if view.unread:
            self._state.read_soon()
        return head

    def ready(self, tenant: str, queue: str) -> int:
        """Return how many tasks of a queue are ready, counting a leader's undurable decisions."""
        counters = self._state.view.counters.get((queue, tenant))
        return 0 if counters is None else counters.ready

    # -- for the group: StateMachine -------------------------------------------------------------

    @property
    def awaited(self) -> bool:
        """Return whether a caller on this node waits for an entry to be applied."""
        return self._state.setup.awaited()

    def apply(self, index: int, term: int, payload: bytes | None) -> None:
        """Apply the next committed entry; answer its callers if this node decided it."""
        store, state, leadership = self._store, self._state, self._leadership
        running = blake2b(store.digest, digest_size=16)
        running.update(index.to_bytes(8, "big") + term.to_bytes(8, "big"))
        entry = None
        if payload is not None:
            running.update(payload)
            # A leader need not decode its own entry.
            own = None if leadership is None else leadership.sent(term, payload)
            entry = own or entries.decode(payload)
            if entry.epoch != term:
                # The entry was decided under another term than the log gave it: every replica
                # drops it.
                self.fenced += 1
                entry = None
        digest = running.digest()
        if entry is None:
            store.commit({}, index=index, digest=digest)
            state.listeners.rows({})
            if self.tap is not None:
                self.tap(index, term, payload, None)
            return
        rows = entry.mutations
        rows[CLOCK_KEY] = entry.clock_ms.to_bytes(8, "big")
        rows[SEQ_KEY] = entry.seq.to_bytes(8, "big")
        number_audit_rows(rows, index)
        store.commit(rows, index=index, digest=digest)
        if leadership is None:
            state.replica.follow(rows)
        else:
            # The leader's own view has the rows already; the replica is replaced at its end.
            state.replica.count(rows)
            leadership.release(term, entry.ordinal)
        state.listeners.rows(rows)
        if self.tap is not None:
            self.tap(index, term, payload, entry)

    # -- for the group: EntrySource --------------------------------------------------------------

    def take(self) -> bytes | None:
        """Return the next batch as one entry, or None while more is likely to join it."""
        leadership = self._leadership
        return leadership.take() if leadership is not None and leadership.open else None

    def lead(self, term: int) -> None:
        """Start to decide; every entry committed before this term is in the store."""
        assert self._leadership is None, "a leadership begins before the last one has ended"
        state = self._state
        self._leadership = Leadership(state, term)
        self.leads = True
        state.leader = state.setup.node_id
        log.info("leading", extra={"shard": self.shard, "term": term})
        self._leadership.timers.arm()
        state.listeners.leader()

    def follow(self, leader: str | None) -> None:
        """Stop deciding; as far as this node knows, `leader` leads now."""
        self._state.leader = leader
        self._end_leadership()
        self._state.listeners.leader()

    # -- inside ----------------------------------------------------------------------------------

    def _leading(self) -> Leadership:
        if self._leadership is None:
            raise NotLeader(self._state.leader)
        return self._leadership

    def _end_leadership(self) -> None:
        leadership, self._leadership = self._leadership, None
        self.leads = False
        if leadership is None:
            return
        self._state.reload()
        log.info("no longer leading", extra={"shard": self.shard, "term": leadership.term})
        leadership.end()

    async def _barrier(self) -> None:
        """Wait until a quorum has confirmed that this node leads."""
        self._leading()
        confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(leads: bool) -> None:
            if not confirmed.done():
                confirmed.set_result(leads)

        self._state.log.barrier(done)
        if not await confirmed:
            raise NotLeader(self._state.leader)
