"""The core against the model, and the bytes against the core, over random histories."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.codec.mutations import mutations
from codeq_cluster.core.changes import Decision, TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Create,
    Heartbeat,
    Nack,
    Operation,
    Submit,
)
from codeq_cluster.core.outcomes import (
    Advanced,
    Cancelled,
    Claimed,
    Created,
    Extended,
    Outcome,
    Rejected,
    Returned,
    Submitted,
)
from codeq_cluster.core.rules import Rules
from codeq_cluster.core.task import Counters, State, Task
from codeq_cluster.testing.dict_view import DictView

from .model import BASE_MS, DLQ_RETENTION_MS, KEY_RETENTION_MS, MAX_MS, RETENTION_MS, Answer, Model

RULES = Rules(
    backoff_base_ms=BASE_MS,
    backoff_max_ms=MAX_MS,
    retention_ms=RETENTION_MS,
    dlq_retention_ms=DLQ_RETENTION_MS,
    key_retention_ms=KEY_RETENTION_MS,
)
PLACES = {
    State.READY: "ready",
    State.DELAYED: "delayed",
    State.LEASED: "leased",
    State.DONE: "ended",
    State.FAILED: "ended",
    State.DEAD: "dead",
}

Rows = dict[bytes, bytes]

tenants = st.sampled_from(["acme", "acme", "acme", ""])
commands = st.sampled_from(["render", "Render", "scan"])
workers = st.sampled_from(["ann", "bob"])
indexes = st.integers(0, 1000)
spans_ms = st.integers(1, 40)


@dataclass(frozen=True)
class Caller:
    """A worker that asks about a task it may hold.

    Attributes:
        index: Which task; of those leased, if `sane` and there are any.
        sane: The worker is the holder, if there is one.
        token_age: How much older the token sent is than the task's; None for no token.
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


class Lifecycle(RuleBasedStateMachine):
    """Every operation goes to the core and to the model; its rows to two stores."""

    def __init__(self) -> None:
        super().__init__()
        self.view = DictView()
        self.model = Model()
        self.rows: Rows = {}  # After every decision.
        self.batched_rows: Rows = {}  # After every batch of decisions.
        self.batch: list[TaskChange] = []
        self.names = count()
        self.asked: list[Operation] = []
        self.tokens: dict[str, int] = {}

    @initialize(draw=st.floats(0, 1, exclude_max=True))
    def draw_jitter(self, draw: float) -> None:
        """Fix the leader's random number for the whole history."""
        self.view.draw = self.model.draw = draw

    @rule(
        many=st.integers(1, 3),
        tenant=tenants,
        command=commands,
        payload=st.sampled_from(['"one"', '"two"']),
        priority=st.sampled_from([0, 5, 9]),
        max_attempts=st.integers(1, 3),
        key=st.sampled_from(["", "", "", "", "k", "k/2"]),
        delay_ms=st.sampled_from([0, 0, 0, 0, 5, 30]),
        run_at_ms=st.sampled_from([0, 0, 0, 0, 40]),
        ttl_ms=st.sampled_from([0, 0, 0, 10, 30]),
    )
    def create(
        self,
        *,
        many: int,
        tenant: str,
        command: str,
        payload: str,
        priority: int,
        max_attempts: int,
        key: str,
        delay_ms: int,
        run_at_ms: int,
        ttl_ms: int,
    ) -> None:
        """Create a few tasks alike; with a key, the second is a replay."""
        for _ in range(many):
            operation = Create(
                id=f"task-{next(self.names)}",
                tenant=tenant,
                command=command,
                payload=payload,
                priority=priority,
                max_attempts=max_attempts,
                idempotency_key=key,
                fingerprint=payload,
                run_at_ms=run_at_ms,
                delay_ms=delay_ms,
                ttl_ms=ttl_ms,
            )
            self._ask(operation)

    @rule(
        tenant=tenants,
        worker=workers,
        wanted=st.one_of(st.just([]), st.lists(commands, max_size=3)),
        most=st.integers(1, 4),
        lease_ms=spans_ms,
    )
    def claim(self, tenant: str, worker: str, wanted: list[str], most: int, lease_ms: int) -> None:
        """Claim from some queues, or from all."""
        self._ask(
            Claim(
                request=self._request(),
                tenant=tenant,
                worker=worker,
                commands=tuple(wanted),
                count=most,
                lease_ms=lease_ms,
            )
        )

    @precondition(lambda self: self.view.tasks)
    @rule(caller=callers, extend_ms=spans_ms)
    def heartbeat(self, caller: Caller, extend_ms: int) -> None:
        """Extend a lease."""
        task, worker, token = self._meet(caller)
        self._ask(
            Heartbeat(
                id=task.id, tenant=task.tenant, worker=worker, token=token, extend_ms=extend_ms
            )
        )

    @precondition(lambda self: self.view.tasks)
    @rule(caller=callers, undelivered=st.booleans())
    def abandon(self, caller: Caller, undelivered: bool) -> None:
        """Give a task back, or the claim of it."""
        task, worker, token = self._meet(caller)
        request = self._request()
        undelivered = undelivered and token > 0
        self._ask(
            Abandon(
                id=task.id,
                tenant=task.tenant,
                worker=worker,
                token=token,
                request=request,
                undelivered=undelivered,
            )
        )

    @precondition(lambda self: self.view.tasks)
    @rule(caller=callers, delay_ms=st.sampled_from([-1, 0, 0, 7, 100]))
    def nack(self, caller: Caller, delay_ms: int) -> None:
        """Give a task back for later."""
        task, worker, token = self._meet(caller)
        self._ask(
            Nack(
                id=task.id,
                tenant=task.tenant,
                worker=worker,
                token=token,
                request=self._request(),
                delay_ms=delay_ms,
                reason="busy",
            )
        )

    @precondition(lambda self: self.view.tasks)
    @rule(caller=callers, done=st.booleans())
    def submit(self, caller: Caller, done: bool) -> None:
        """End a task."""
        task, worker, token = self._meet(caller)
        self._ask(
            Submit(
                id=task.id,
                tenant=task.tenant,
                worker=worker,
                token=token,
                request=self._request(),
                status="COMPLETED" if done else "FAILED",
                body="{}" if done else "",
                error="" if done else "broken",
            )
        )

    @precondition(lambda self: self.view.tasks)
    @rule(index=indexes, stranger=st.booleans(), held=st.booleans())
    def cancel(self, index: int, stranger: bool, held: bool) -> None:
        """Cancel a task, or try to from another tenant."""
        task = self._pick(index, prefer=State.LEASED if held else State.DEAD)
        tenant = "stranger" if stranger else task.tenant
        self._ask(Cancel(request=self._request(), id=task.id, tenant=tenant))

    @rule(
        passed_ms=st.sampled_from([0, 1, 3, 10, 40]),
        most=st.integers(1, 5),
        leases_too=st.booleans(),
    )
    def let_time_pass(self, passed_ms: int, most: int, leases_too: bool) -> None:
        """Move the clock, and let it act on some of what is due."""
        self.view.now_ms += passed_ms
        self.model.now_ms += passed_ms
        self._ask(Advance(count=most, leases_too=leases_too))

    @precondition(lambda self: self.asked)
    @rule(index=indexes)
    def send_again(self, index: int) -> None:
        """Long after, under the same request: what was done is remembered, not done again."""
        operation = self.asked[index % len(self.asked)]
        if isinstance(operation, Claim):
            operation = replace(operation, retry=True)
        self._ask(operation)

    @rule()
    def commit(self) -> None:
        """One write for all decisions since the last one."""
        _write(self.batched_rows, mutations(self.batch, _counters(self.batched_rows)))
        self.batch = []

        assert self.batched_rows == self.rows

    @invariant()
    def the_model_agrees(self) -> None:
        """Every task is where the model has it."""
        seen = {
            task.id: (PLACES[task.state], task.attempts, task.lease_token, task.worker)
            for task in self.view.tasks.values()
        }

        assert seen == {
            item.id: (item.place, item.attempts, item.token, item.worker)
            for item in self.model.items.values()
        }

    @invariant()
    def no_task_is_delivered_too_often(self) -> None:
        """Deliveries stay within the task's bound."""
        assert all(task.attempts <= task.max_attempts for task in self.view.tasks.values())

    @invariant()
    def the_rows_are_those_of_the_tasks_and_no_others(self) -> None:
        """Rows written one decision at a time are those computed from scratch."""
        assert self.rows == _recomputed(self.view)

    @invariant()
    def the_rows_answer_as_the_tasks_do(self) -> None:
        """Claim order and timers, read from the keys, are those of the tasks."""
        for tenant in ("acme", ""):
            for queue in ("render", "scan"):
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

    def _ask(self, operation: Operation) -> None:
        decision = decide(self.view, operation, RULES)
        self._check(decision)
        _write(self.rows, mutations(decision.changes, _counters(self.rows)))
        self.batch.extend(decision.changes)
        self.view.advance(decision.changes)
        self.asked.append(operation)
        answer = self.model.ask(operation)
        by_id = isinstance(operation, Claim) and operation.retry

        assert answer == _answer(decision.outcome, by_id=by_id)
        if not isinstance(operation, Advance):
            self._check_sent_again(operation, decision)

    def _check_sent_again(self, operation: Operation, first: Decision) -> None:
        """Asked once more at once, the answer is the same and nothing moves."""
        by_id = isinstance(operation, Claim)
        if isinstance(operation, Claim):
            operation = replace(operation, retry=True)
        again = decide(self.view, operation, RULES)

        assert again.changes == ()
        if isinstance(operation, Abandon) and operation.undelivered:
            return
        assert _answer(again.outcome, by_id=by_id) == _answer(first.outcome, by_id=by_id)

    def _check(self, decision: Decision) -> None:
        changed = [_id_of(change) for change in decision.changes]

        assert len(changed) == len(set(changed))
        for change in decision.changes:
            before, after = change.before, change.after
            if before is not None and before.state.terminal:
                assert after is None
            if after is None:
                continue
            claimed = after.state is State.LEASED and (
                before is None or before.state is not State.LEASED
            )
            least = self.tokens.get(after.id, 0) + (1 if claimed else 0)

            assert after.lease_token >= least
            self.tokens[after.id] = after.lease_token

    def _meet(self, caller: Caller) -> tuple[Task, str, int]:
        """Return the task asked about, the worker that asks and the token it sends."""
        task = self._pick(caller.index, prefer=State.LEASED if caller.sane else None)
        worker = task.worker if caller.sane and task.worker else caller.worker
        token = 0 if caller.token_age is None else max(0, task.lease_token - caller.token_age)
        return task, worker, token

    def _pick(self, index: int, *, prefer: State | None) -> Task:
        tasks = list(self.view.tasks.values())
        preferred = [task for task in tasks if task.state is prefer]
        chosen = preferred or tasks
        return chosen[index % len(chosen)]

    def _request(self) -> str:
        return f"request-{next(self.names)}"


def _answer(outcome: Outcome, *, by_id: bool) -> Answer:
    match outcome:
        case Rejected():
            return "rejected", outcome.rejection.value
        case Created():
            return "created", outcome.task.id, outcome.replay
        case Claimed():
            ids = [task.id for task in outcome.tasks]
            return "claimed", tuple(sorted(ids) if by_id else ids)
        case Extended():
            return "extended", outcome.lease_until_ms
        case Returned():
            return "returned", outcome.dead, outcome.delay_ms
        case Submitted():
            result = outcome.result
            return "submitted", result.status, result.body, result.error, result.worker
        case Cancelled():
            return "cancelled", outcome.task.id
        case Advanced():
            return "advanced", outcome.count


def _id_of(change: TaskChange) -> str:
    task = change.after or change.before
    assert task is not None
    return task.id


def _write(rows: Rows, written: dict[bytes, bytes | None]) -> None:
    for key, value in written.items():
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value


def _counters(rows: Rows) -> Callable[[str, str], Counters]:
    def counters(queue: str, tenant: str) -> Counters:
        value = rows.get(keyspace.stats(queue, tenant))
        return Counters() if value is None else records.decode_counters(value)

    return counters


def _recomputed(view: DictView) -> Rows:
    """Return every row the tasks must have, from nothing but the tasks."""
    rows: Rows = {}
    for task in view.tasks.values():
        rows[keyspace.task(task.id)] = records.encode_task(task)
        rows[keyspace.payload(task.id)] = view.payload(task.id).encode()
        rows |= keyspace.index_rows(task)
        result = view.result(task.id)
        assert (result is not None) == task.state.terminal == task.has_result
        if result is not None:
            rows[keyspace.result(task.id)] = records.encode_result(result)
        if task.idempotency_key:
            row = view.keyed(task.tenant, task.idempotency_key)
            assert row is not None
            key = keyspace.idempotency(task.tenant, task.idempotency_key)
            rows[key] = records.encode_key_row(row)
    return rows | _recounted(view.tasks.values())


def _recounted(tasks: Iterable[Task]) -> Rows:
    places: dict[tuple[str, str], list[State]] = {}
    for task in tasks:
        places.setdefault((task.command.lower(), task.tenant), []).append(task.state)
    return {
        keyspace.stats(queue, tenant): records.encode_counters(counters)
        for (queue, tenant), states in places.items()
        if (
            counters := Counters(
                states.count(State.READY),
                states.count(State.DELAYED),
                states.count(State.LEASED),
                states.count(State.DEAD),
            )
        )
        != Counters()
    }


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
