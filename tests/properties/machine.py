"""Machine: every operation goes to the core and to the model, and its rows to two stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from msgspec.structs import asdict, replace

from codeq_cluster.codec import keyspace
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.codec.mutations import mutations
from codeq_cluster.core.budget import Budget
from codeq_cluster.core.changes import Change, Decision, TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.faults import item_fault, result_fault, task_fault
from codeq_cluster.core.handling import Handling
from codeq_cluster.core.items import Delivery
from codeq_cluster.core.items import Item as CoreItem
from codeq_cluster.core.lane import Flow, lane_of
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Claim,
    DeleteTopic,
    Delivered,
    Operation,
    PutFlow,
    ResumeQueue,
    Staging,
    Swept,
    Undelivered,
    Unsubscribe,
)
from codeq_cluster.core.outcomes import Changed
from codeq_cluster.core.relays import Relay
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import DeleteSchedule, FillBack, Fire, Schedule
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task
from tests.fakes.dict_view import DictView

from . import checks, model_items, model_task
from .answers import answer_of
from .model import Model
from .rows import Rows, counters_in, recomputed, write

RULES = LifetimeRules(
    backoff_base_ms=model_task.BASE_MS,
    backoff_max_ms=model_task.MAX_MS,
    retention_ms=model_task.RETENTION_MS,
    dlq_retention_ms=model_items.DLQ_RETENTION_MS,
    key_retention_ms=model_task.KEY_RETENTION_MS,
    max_attempts_default=model_task.ATTEMPTS_DEFAULT,
    overtime_ms=model_task.OVERTIME_MS,
    audit_retention_ms=model_items.AUDIT_RETENTION_MS,
    delivery_attempts_max=model_items.DELIVERY_ATTEMPTS_MAX,
    delivery_age_max_ms=model_items.DELIVERY_AGE_MAX_MS,
    delivery_base_ms=model_items.DELIVERY_BASE_MS,
    delivery_max_ms=model_items.DELIVERY_MAX_MS,
    sweep_delay_ms=model_task.SWEEP_DELAY_MS,
    budgets={
        model_task.TIGHT: Budget(
            waiting_max=model_task.WAITING_MAX,
            leased_max=model_task.LEASED_MAX,
            bytes_max=model_task.BYTES_MAX,
        )
    },
)
PLACES = {
    State.READY: "ready",
    State.DELAYED: "delayed",
    State.LEASED: "leased",
    State.DONE: "done",
    State.FAILED: "failed",
    State.DEAD: "dead",
    State.HELD: "held",
}
QUEUES = ("render", "scan")

# No state remembers the first call of these operations, so a repeat proves nothing.
FORGOTTEN = (
    DeleteTopic,
    ResumeQueue,
    Unsubscribe,
    Delivered,
    Undelivered,
    Swept,
    DeleteSchedule,
    Fire,
    FillBack,
)

handlings = st.sampled_from(
    [
        *(None, None, None),
        Handling(timeout_ms=5),
        Handling(timeout_ms=2, backoff="linear"),
        Handling(backoff="linear", backoff_base_ms=3),
        Handling(backoff_base_ms=2, backoff_max_ms=12),
    ]
)
tenants = st.sampled_from(["acme"] * 6 + ["", model_task.TIGHT])
commands = st.sampled_from(["render", "Render", "scan"])
workers = st.sampled_from(["ann", "bob"])
indexes = st.integers(0, 1000)
spans_ms = st.integers(1, 40)


@dataclass(frozen=True)
class Caller:
    """A worker that acts on a task it may hold.

    Attributes:
        index: Selects the task; among leased ones if `sane` and there are any.
        sane: The worker is the holder, if there is one.
        token_age: By how much the sent token is older than the task's; None for no token.
    """

    index: int
    sane: bool
    worker: str
    token_age: int | None


callers = st.builds(
    Caller,
    index=indexes,
    sane=st.sampled_from([True, True, True, False]),
    worker=workers,
    token_age=st.sampled_from([None, None, 0, 0, 1, -1]),
)
EXPLAINED_MAX = 30


class Machine(RuleBasedStateMachine):
    """The base of all rules, and the invariants checked after each."""

    def __init__(self) -> None:
        super().__init__()
        self.view = DictView(seq=1000)  # A requeue takes a place before others.
        self.model = Model()
        self.rows: Rows = {}  # Rows as written after every decision.
        self.batched_rows: Rows = {}  # Rows as written after every batch of decisions.
        self.batch: list[Change] = []
        self.names = count()
        self.last_request = ""
        self.asked: list[Operation] = []
        self.tokens: dict[str, int] = {}
        # Stored artifacts as (tenant, task id, upload).
        self.stored: set[tuple[str, str, str]] = set()

    @initialize(draw=st.floats(0, 1, exclude_max=True))
    def draw_jitter(self, draw: float) -> None:
        """Fix the leader's random number for the whole history."""
        self.view.draw = self.model.draw = draw

    @invariant()
    def the_model_has_the_same_tasks(self) -> None:
        """Every task has the state and place that the model gives it."""
        seen = {
            task.id: (
                PLACES[task.state],
                task.attempts,
                task.max_attempts,
                task.handling.timeout_ms if task.handling is not None else 0,
                task.lease_token,
                task.worker,
                task.worker_name,
                task.error,
                task.endings,
                task.dead_queue,
                sorted(task.uploads),
                task.payload_bytes + task.result_bytes,
                (task.more.parent_id, task.more.root_id) if task.more is not None else ("", ""),
                task.more.run if task.more is not None else None,
                lane_of(task),
                task.due_ms or task.lease_until_ms or task.retain_until_ms,
            )
            for task in self.view.tasks.values()
        }

        assert seen == {
            item.id: (
                item.place,
                item.attempts,
                item.max_attempts,
                item.timeout_ms,
                item.token,
                item.worker,
                item.worker_name,
                item.error,
                item.endings,
                item.dead_queue,
                sorted(item.uploads),
                item.size,
                item.origin,
                item.run,
                item.lane,
                item.timer_ms,
            )
            for item in self.model.items.values()
        }

    @invariant()
    def the_model_has_the_same_items(self) -> None:
        """Every item and every delivery's body equal the model's, field by field."""
        kinds = {**self.model.beside.kinds, "lane": self.model.lanes.rows()}

        assert {name: asdict(item) for name, item in self.view.items.items()} == {
            (ItemKind(kind), *name): item for kind in kinds for name, item in kinds[kind].items()
        }
        assert (self.model.beside.bodies) == {
            name: asdict(body) for name, body in self.view.bodies.items()
        }

    @invariant()
    def no_pending_callback_is_looked_at_after_its_end(self) -> None:
        """Every pending delivery is due before it is too old, however often it was deferred."""
        pending = [
            item
            for item in self.view.items.values()
            if isinstance(item, Delivery) and not item.died_ms
        ]

        assert all(each.due_ms <= each.since_ms + RULES.delivery_age_max_ms for each in pending)

    @invariant()
    def no_task_is_delivered_too_often(self) -> None:
        """Deliveries stay within the task's bound."""
        assert all(task.attempts <= task.max_attempts for task in self.view.tasks.values())

    @invariant()
    def no_stored_artifact_is_forgotten_or_swept_too_early(self) -> None:
        """Every stored artifact has a task or a sweep, and none has both."""
        owned = {
            (task.tenant, task.id, upload)
            for task in self.view.tasks.values()
            for upload in task.uploads
        }
        swept = {
            (sweep["tenant"], sweep["task_id"], sweep["upload"])
            for sweep in self.model.beside.sweeps.values()
        }

        assert owned | swept == self.stored
        assert not owned & swept

    @invariant()
    def each_task_has_the_reason_the_model_gives(self) -> None:
        """Each state has one reason, which agrees with the state and with a claim's result.

        It is asked of the newest tasks: a schedule may have made hundreds.
        """
        for task in islice(reversed(self.view.tasks.values()), EXPLAINED_MAX):
            item = self.model.items[task.id]
            ahead = self.model.ahead(item) if task.state is State.READY else 0
            lanes, is_held = self.model.lanes, task.state is State.HELD
            reason = checks.explained(
                self.view,
                task,
                RULES,
                ahead=ahead,
                stopper=lanes.stopper(item) if is_held else "",
                key_paused=is_held and lanes.is_paused(item),
                held_until_ms=lanes.held_until_ms(item) if is_held else 0,
                limited_until_ms=lanes.limited_until_ms(item) if is_held else 0,
            )

            assert reason == self.model.why(item)

    @invariant()
    def every_record_is_one_that_a_restore_takes(self) -> None:
        """Every record is within the bounds for those from outside."""
        view = self.view
        faults = [task_fault(task) for task in view.tasks.values()]
        faults += [item_fault(item) for item in view.items.values()]
        results = [*view.bodies.values(), *map(view.result, view.tasks)]
        faults += [result_fault(result) for result in results if result is not None]

        assert {""} >= set(faults)

    @invariant()
    def the_rows_are_those_of_the_tasks_and_items_and_no_others(self) -> None:
        """Rows written one decision at a time equal those computed from scratch."""
        assert self.rows == recomputed(self.view)

    @invariant()
    def the_rows_answer_as_the_tasks_do(self) -> None:
        """Claim order and timers, read from the keys, are those of the tasks and items."""
        for tenant in ("acme", "", model_task.TIGHT):
            for queue in QUEUES:
                start, end = keyspace.pending_range(queue, tenant)
                keys = sorted(key for key in self.rows if start <= key < end)

                assert [keyspace.pending_parts(key) for key in keys] == list(
                    self.view.ready(tenant, queue)
                )
        timers = sorted(
            keyspace.timed_parts(key)
            for key in self.rows
            if keyspace.family(key) in (Family.LEASE, Family.TTL)
        )
        due = tuple(task_id for when_ms, task_id in timers if when_ms <= self.view.now_ms)

        assert due == self.view.due(len(timers), leases_too=True)
        ends = [key for key in sorted(self.rows) if keyspace.family(key) is Family.EXPIRY]
        lapsed = [
            self.view.item(*keyspace.item_parts(key))
            for key in ends
            if keyspace.item_timer_ms(key) <= self.view.now_ms
        ]

        assert tuple(lapsed) == self.view.lapsed(len(ends))

    def ask(self, operation: Operation) -> None:
        """Ask core and model and compare; then immediately repeat the operation in the core."""
        decision = decide(self.view, operation, RULES)
        checks.check_changes(decision)
        checks.check_arrows(operation, decision)
        checks.check_deliveries(decision)
        checks.check_artifacts(decision, checks.kept_by(operation))
        self._check_tokens(decision)
        self._note_stored(operation, decision)
        write(self.rows, mutations(decision.changes, counters_in(self.rows)))
        self.batch.extend(decision.changes)
        self.view.advance(decision.changes)
        self.asked.append(operation)
        checks.check_bounds(self.view, decision, RULES)
        self._learn_rule(operation, decision)
        answer = self.model.ask(operation)
        beside = self.model.beside
        while beside.unnumbered:
            name = beside.unnumbered.pop(0)
            relay = self.view.items[ItemKind.RELAY, *name]
            assert isinstance(relay, Relay)
            beside.learn_number(name, relay.number)
        while beside.ungenerated:
            name = beside.ungenerated.pop(0)
            schedule = self.view.items[ItemKind.SCHEDULE, *name]
            assert isinstance(schedule, Schedule)
            beside.schedules[name]["generation"] = schedule.generation
        by_id = isinstance(operation, Claim) and operation.retry

        assert answer == answer_of(decision.outcome, by_id=by_id)
        if not isinstance(operation, Advance):
            self._check_sent_again(operation, decision)

    def meet(self, caller: Caller) -> tuple[Task, str, int]:
        """Return the caller's task, the worker that acts and the token it sends."""
        task = self.pick(caller.index, prefer=State.LEASED if caller.sane else None)
        worker = task.worker if caller.sane and task.worker else caller.worker
        token = 0 if caller.token_age is None else max(0, task.lease_token - caller.token_age)
        return task, worker, token

    def pick(self, index: int, *, prefer: State | None) -> Task:
        """Return a task, in the preferred state if there is one."""
        tasks = list(self.view.tasks.values())
        preferred = [task for task in tasks if task.state is prefer]
        chosen = preferred or tasks
        return chosen[index % len(chosen)]

    def items_of(self, kind: ItemKind) -> Sequence[CoreItem]:
        """Return the items of a kind."""
        return [item for (each, _, _), item in self.view.items.items() if each is kind]

    def request(self) -> str:
        """Return a new request id."""
        self.last_request = f"request-{next(self.names)}"
        return self.last_request

    def _check_sent_again(self, operation: Operation, first: Decision) -> None:
        """Check that an immediate retry gets the same answer and changes nothing."""
        by_id = isinstance(operation, Claim)
        if isinstance(operation, Claim):
            operation = replace(operation, retry=True)
        again = decide(self.view, operation, RULES)

        assert () == again.changes
        if isinstance(operation, FORGOTTEN):
            return
        if isinstance(operation, Abandon) and operation.undelivered:
            return
        assert answer_of(again.outcome, by_id=by_id) == answer_of(first.outcome, by_id=by_id)

    def _learn_rule(self, operation: Operation, decision: Decision) -> None:
        """Tell the model the number of a new rule of keys."""
        for change in decision.changes:
            after = change.after
            if isinstance(after, Flow) and isinstance(operation, PutFlow | DeleteTopic):
                self.model.beside.learn_rule(after.seq)

    def _check_tokens(self, decision: Decision) -> None:
        """Check that tokens grow with every claim, and only operators take a task from its end."""
        for change in decision.changes:
            if not isinstance(change, TaskChange):
                continue
            before, after = change.before, change.after
            if after is None:
                assert before is not None
                del self.tokens[before.id]
                continue
            if before is not None and before.state.terminal:
                assert before.state is State.DEAD
                assert after.state in (State.READY, State.HELD)
            claimed = after.state is State.LEASED and (
                before is None or before.state is not State.LEASED
            )
            least = self.tokens.get(after.id, 0) + (1 if claimed else 0)

            assert after.lease_token >= least
            self.tokens[after.id] = after.lease_token

    def _note_stored(self, operation: Operation, decision: Decision) -> None:
        """Act as the artifact store: a staged set is stored, a swept one is gone."""
        match operation:
            case Staging() if isinstance(decision.outcome, Changed):
                self.stored.add((operation.tenant, operation.id, operation.upload))
            case Swept(failed=False) if decision.changes:
                task_id, upload = operation.id.split(".")
                self.stored.remove((operation.tenant, task_id, upload))
