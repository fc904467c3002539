"""Leadership: decides one shard's operations for as long as this node leads it.

Each operation is decided on the view as soon as it arrives, one after another. Its rows join the
open batch and its caller waits. When the Raft group takes its turn, it takes the open batch as one
entry. When that entry is applied, the batch's callers are answered.

- Nothing is answered before its batch is applied here, and batches are applied in order. An answer
  without changes may rest on decisions that are not applied yet, so it waits for all of them. If
  its own batch has no rows, it also waits for a read index.
- When the leadership ends, its view is dropped with it. Batches that the group took are
  *outcome unknown*; batches that it did not take were certainly not done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

from msgspec.structs import replace

from codeq_cluster.broker.engine.batch import NO_CALLER, Batch, OutcomeSlot, Waiting, weigh
from codeq_cluster.broker.engine.faults import is_fault, unreadable
from codeq_cluster.broker.engine.group_commit import GroupCommit
from codeq_cluster.broker.engine.state import CLOCK_KEY, SEQ_KEY, EngineState
from codeq_cluster.broker.engine.timers import Timers
from codeq_cluster.codec import entries, keyspace
from codeq_cluster.codec.mutations import mutations
from codeq_cluster.core.changes import Change, TaskChange, share_a_row
from codeq_cluster.core.checkpoint import Checkpoint
from codeq_cluster.core.decide import decide
from codeq_cluster.core.dependencies import Dependencies, Input
from codeq_cluster.core.depending import inputs as inputs_of
from codeq_cluster.core.durable import Step
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.operations import Advance, Claim, Operation
from codeq_cluster.core.outcomes import Claimed, Outcome
from codeq_cluster.core.runs import runs
from codeq_cluster.core.schedules import FillBack, Fire
from codeq_cluster.core.stepping import steps_of
from codeq_cluster.core.stored_item import ItemKind
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
ENTRY_OVERHEAD_BYTES = 1024  # For an entry's frame, clock and sequence rows.


class Leadership:
    """One leadership of a shard; begins on a new view.

    Attributes:
        timers: Act on what is due.
        open: The batches that the log has not taken yet, in order.
    """

    def __init__(self, state: EngineState, term: int) -> None:
        self.term = term
        self._state = state
        self._setup = setup = state.setup
        self._view = view = state.new_view()
        state.view = view
        view.seq = state.number(SEQ_KEY)
        # The clock never runs backwards over a change of leader and never jumps within a
        # leadership. So the wall clock is read once here, and the monotonic clock counts from
        # there.
        view.now_ms = max(state.number(CLOCK_KEY), setup.clock.wall_ms())
        state.clock_base_ms = view.now_ms - setup.clock.monotonic_ms()
        self._gathering = GroupCommit(state.log.wake, wait_s_max=setup.limits.gather_s)
        self.timers = Timers(
            state.shard,
            view,
            now_ms=lambda: state.now_ms,
            leases_from_ms=view.now_ms + setup.limits.lease_grace_ms,
            act=self._act,
            failed=partial(setup.observer.item_failed, Loop.TIMERS),
        )
        self.open: deque[Batch] = deque()
        self._sent: deque[Batch] = deque()  # Taken and not applied, in order.
        self._ordinal = 0
        self._taken = 0  # Ordinal of the last batch that was taken.
        self._waiting = 0  # Operations in the open batches.
        self._operations = 0  # Decided and not released.
        self._bytes = 0  # Of their rows.
        self._ended = False

    async def decided(
        self, operations: Sequence[Operation], *, bounded: bool = True
    ) -> list[Outcome]:
        """Decide, and wait until everything that the outcomes rest on is applied; see `submit`."""
        future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        batch = self.submit(operations, future, bounded=bounded)
        tracing = self._setup.tracing
        if batch is None or tracing is None:
            return await future
        with tracing.commit(
            shard=self._state.shard,
            term=self.term,
            ordinal=batch.ordinal,
            operations=len(operations),
        ):
            return await future

    def submit(
        self, operations: Sequence[Operation], place: OutcomeSlot, *, bounded: bool = True
    ) -> Batch | None:
        """Decide; return the batch that the outcomes wait for, or None if already answered.

        Args:
            operations: In order.
            place: Gets the outcomes.
            bounded: False for the broker's own operations, which are decided even while callers are
                refused.

        Raises:
            Overloaded: There is no room for so many more operations; nothing was done.
        """
        limits, count = self._setup.limits, len(operations)
        if bounded and (
            self._operations + count > limits.operations_max or self._bytes > limits.bytes_max
        ):
            raise Overloaded(f"the write queue of shard {self._state.shard}")
        outcomes: list[Outcome] = []
        since: int | None = None
        try:
            left = deque((operations,) if count == 1 else runs(operations, self._setup.rules))
            while left:
                run = left.popleft()
                decided = self._decide(run)
                if decided is None:
                    half = len(run) // 2
                    left.extendleft((run[half:], run[:half]))
                    continue
                some, ordinal = decided
                outcomes += some
                since = ordinal if since is None else since
        except Exception as error:
            if since is None:
                self._set_aside_ready(operations, error)
                raise
            # The decisions made before the failure are in the batch and will be committed.
            self._state.log.wake()
            raise OutcomeUnknown("a batch of operations failed half way") from error
        if since is None and all(isinstance(each, Claimed) and not each.tasks for each in outcomes):
            # An empty claim promises nothing, so it need not wait for a commit.
            place.set_result(outcomes)
            return None
        batch = self.open[-1] if self.open else self._new_batch()
        batch.operations += count
        self._waiting += count
        self._operations += count
        batch.waiting.append(Waiting(place, outcomes, since))
        if self._gathering.timer is None or self._gathering.is_due(self._waiting):
            self._state.log.wake()
        return batch

    # -- for the log -----------------------------------------------------------------------------

    def take(self) -> bytes | None:
        """Return the next batch as one entry, or None while more is likely to join it."""
        if self._gathering.timer is not None:
            return None
        while self.open:
            batch = self.open.popleft()
            self._waiting -= batch.operations
            if not batch.rows:
                self._release_after_barrier(batch)
                continue
            self._sent.append(batch)
            self._taken = batch.ordinal
            batch.taken_at = asyncio.get_running_loop().time()
            if self._view.time.has_new_first:
                self.timers.arm()
            batch.clock_ms, batch.seq = self._view.now_ms, self._view.seq
            entry = entries.Entry(self.term, batch.ordinal, batch.clock_ms, batch.seq, batch.rows)
            batch.payload = entries.encode(entry, level=self._state.log.level)
            return batch.payload
        return None

    def sent(self, term: int, payload: bytes) -> entries.Entry | None:
        """Return the content of the next entry if it is of this leadership."""
        if self._sent and self.term == term:
            batch = self._sent[0]
            if batch.payload == payload:
                rows = dict(batch.rows)
                return entries.Entry(term, batch.ordinal, batch.clock_ms, batch.seq, rows)
        return None

    def release(self, term: int, ordinal: int) -> None:
        """Answer the callers of a batch whose entry is applied."""
        assert self.term == term, "an entry of another leadership is applied in this one"
        batch = self._sent.popleft()
        assert batch.ordinal == ordinal, "entries are applied in another order than decided"
        self._view.applied(ordinal, chain(batch.rows, batch.cancelled), batch.tasks)
        self._operations -= batch.operations
        self._bytes -= batch.rows_bytes
        batch.release(self._with_payloads)
        took_s = asyncio.get_running_loop().time() - batch.taken_at
        if not self._sent:
            self._gathering.begin(answered=batch.operations, waiting=self._waiting, took_s=took_s)
        state = self._state
        self._setup.observer.committed(
            shard=state.shard, mutations=len(batch.rows), commit_s=took_s
        )
        state.listeners.changed(batch.changes)
        if state.watches.of:
            state.watches.changed(batch.changes)

    def end(self) -> None:
        """Decide no more; fail the callers that still wait."""
        self._ended = True
        self._gathering.stop()
        self.timers.stop()
        self._state.watches.end()
        for batch in (*self._sent, *self.open):
            batch.fail(self._lost)
        self._sent.clear()
        self.open.clear()

    # -- deciding --------------------------------------------------------------------------------

    async def _act(self, operation: Operation) -> None:
        """Do an operation of the timers."""
        if self._ended:
            raise NotLeader(self._state.leader)
        await self.decided([operation], bounded=False)

    def _set_aside_ready(self, operations: Sequence[Operation], error: Exception) -> None:
        """Set aside the ready tasks that a claim failed at; the next claim gets those behind."""
        claims = [each for each in operations if isinstance(each, Claim)]
        for operation in unreadable(self._view, claims[0]) if claims else ():
            if is_fault(error):
                log.error(
                    "set aside", extra={"shard": self._state.shard, "task": operation.subject}
                )
                self._setup.observer.item_failed(Loop.CLAIMS)
                self.submit([operation], NO_CALLER, bounded=False)

    def _decide(self, run: Sequence[Operation]) -> tuple[list[Outcome], int | None] | None:
        """Decide a run.

        Returns:
            The outcomes and the ordinal of their rows' batch, if they have any; None if the run has
            to be decided in parts.
        """
        setup, view = self._setup, self._view
        view.now_ms = max(view.now_ms, self._state.clock_base_ms + setup.clock.monotonic_ms())
        most = setup.limits.entry_bytes_max - ENTRY_OVERHEAD_BYTES
        while True:
            outcomes: list[Outcome] = []
            decided: list[Change] = []
            for operation in run:
                decision = decide(view, operation, setup.rules)
                outcomes.append(decision.outcome)
                decided += decision.changes
            if view.unread:
                self._state.read_soon()
            if not decided:
                return outcomes, None
            rows = mutations(decided, view.counters)
            rows_bytes = weigh(rows)
            fits = rows_bytes <= most
            # Only numbers have been drawn so far, so deciding again for fewer tasks is safe.
            if len(run) > 1 and (not fits or share_a_row(decided)):
                return None
            if fits:
                break
            run = [_smaller(run[0])]
        batch = self.open[-1] if self.open else self._new_batch()
        if batch.rows and batch.rows_bytes + rows_bytes > min(BATCH_BYTES_MAX, most):
            batch = self._new_batch()
        tasks: dict[str, Task | None] = {}
        for change in decided:
            if isinstance(change, TaskChange):
                task = change.after or change.before
                assert task is not None, "a change of nothing"
                tasks[task.id] = change.after
        batch.changes += decided
        view.advance(batch.ordinal, rows, tasks)
        batch.add_rows(rows, rows_bytes=rows_bytes)
        batch.tasks.update(tasks)
        self._bytes += rows_bytes
        return outcomes, batch.ordinal

    def _new_batch(self) -> Batch:
        self._ordinal += 1
        batch = Batch(self._ordinal)
        self.open.append(batch)
        return batch

    # -- releasing -------------------------------------------------------------------------------

    def _with_payloads(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Add the payloads, which only the store has, now that the claimed tasks are in it."""
        for position, outcome in enumerate(outcomes):
            if isinstance(outcome, Claimed) and outcome.tasks:
                keys = [keyspace.payload(task.id) for task in outcome.tasks]
                kept: list[tuple[Task, str]] = []
                for task, payload in zip(
                    outcome.tasks, self._state.store.get_many(keys), strict=True
                ):
                    # A task may have ended and been deleted since: its claim is void, and no worker
                    # can finish it.
                    text = None if payload is None else self._text(payload, task)
                    if text is not None:
                        kept.append((task, text))
                if not kept:
                    outcomes[position] = Claimed((), (), lost=True)
                    continue
                tasks, payloads = zip(*kept, strict=True)
                outcomes[position] = Claimed(tasks, payloads)
                for task in tasks:
                    more = task.more
                    if more and (more.depends or more.durable or more.checkpoint_bytes):
                        inputs, steps = self._inputs(tasks), self._steps(tasks)
                        left = self._checkpoints(tasks)
                        outcomes[position] = Claimed(tasks, payloads, inputs, steps, left)
                        break
        return outcomes

    def _inputs(self, tasks: Iterable[Task]) -> dict[str, tuple[Input, ...]]:
        """Return what the tasks that these have waited for have handed to them."""
        found: dict[str, tuple[Input, ...]] = {}
        for task in tasks:
            if task.more is not None and task.more.depends:
                row = self._view.item(ItemKind.DEPENDENCIES, task.tenant, task.id)
                if isinstance(row, Dependencies):
                    found[task.id] = tuple(inputs_of(self._view, row))
        return found

    def _steps(self, tasks: Iterable[Task]) -> dict[str, tuple[Step, ...]]:
        """Return what the functions of these tasks have recorded."""
        return {
            task.id: steps_of(self._view, task)
            for task in tasks
            if task.more is not None and task.more.durable is not None
        }

    def _checkpoints(self, tasks: Iterable[Task]) -> dict[str, str]:
        """Return what earlier workers have left for the next ones."""
        found: dict[str, str] = {}
        for task in tasks:
            if task.more is not None and task.more.checkpoint_bytes:
                row = self._view.item(ItemKind.CHECKPOINT, task.tenant, task.id)
                if isinstance(row, Checkpoint):
                    found[task.id] = row.text
        return found

    def _text(self, payload: bytes, task: Task) -> str | None:
        """Return a payload as text, or None: the task's lease then ends, and it dies in the end."""
        try:
            return payload.decode()
        except UnicodeDecodeError:
            log.exception(
                "a payload is no text", extra={"shard": self._state.shard, "task": task.id}
            )
            self._setup.observer.item_failed(Loop.CLAIMS)
            return None

    def _release_after_barrier(self, batch: Batch) -> None:
        def confirmed(leads: bool) -> None:
            if leads and self._sent:
                # The answers may rest on batches still in flight, so they go out with the last one.
                self._sent[-1].adopt(batch)
                return
            self._operations -= batch.operations
            self._bytes -= batch.rows_bytes
            if leads:
                batch.release(self._with_payloads)
            else:
                batch.fail(self._lost)

        self._state.log.barrier(confirmed)

    def _lost(self, waiting: Waiting) -> CodeqError:
        """Return what a caller can know of its outcome if leadership ends before its answer."""
        if waiting.since is not None and waiting.since <= self._taken:
            return OutcomeUnknown("leadership ended while the write was on its way")
        return NotLeader(self._state.leader)


def _smaller(operation: Operation) -> Operation:
    """Return the operation for half as many tasks; raises OperationTooLarge if it is for one."""
    if isinstance(operation, Advance | Claim) and operation.count > 1:
        return replace(operation, count=operation.count // 2)
    if isinstance(operation, Fire | FillBack) and len(operation.runs) > 1:
        return operation.half
    raise OperationTooLarge("the operation writes more than an entry of the log can carry")
