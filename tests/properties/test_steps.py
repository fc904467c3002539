"""Durable steps against a model: what is recorded stays, and no wait ends without its cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.decide import decide
from codeq_cluster.core.durable import Park, RecordStep, SendSignal, Signal, Step
from codeq_cluster.core.explaining import Facts, Reason, explain
from codeq_cluster.core.faults import fault
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.lane import FlowRule, Lane, PerKey, SetFlow
from codeq_cluster.core.lanes import count as count_in_lane
from codeq_cluster.core.new_task import Create, CreateKeyed
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Delete,
    Operation,
    Requeue,
    Revise,
    Submit,
)
from codeq_cluster.core.outcomes import Claimed, Outcome, Rejected, Rejection, Signalled, StepStands
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stepping import steps_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task
from tests.fakes.dict_view import DictView

from .checks import check_arrows, check_changes

TENANT = "acme"
HOUR_MS = 3_600_000
RULES = LifetimeRules(retention_ms=HOUR_MS, dlq_retention_ms=HOUR_MS, key_retention_ms=HOUR_MS)
_HELD: dict[str, Any] = {"request": "w", "id": "t", "tenant": TENANT, "worker": "ann"}
_END: dict[str, Submit | Nack | Abandon] = {
    "done": Submit(**_HELD, status="COMPLETED", body="1"),
    "failed": Submit(**_HELD, status="FAILED", error="broken"),
    "nack": Nack(**_HELD, delay_ms=3000),
    "abandon": Abandon(**_HELD),
}
LEASE_MS = 10_000
names = st.sampled_from("ab")
indices = st.integers(0, 99)


@dataclass
class Wait:
    """A wait as the model knows it; `ended` is empty, `time`, or the payload that ended it."""

    signal: str
    until_ms: int
    ended: str = ""


@dataclass
class Known:
    """What the model knows of a task: steps are values or waits."""

    steps: dict[str, str | Wait] = field(default_factory=dict)
    unread: list[tuple[str, str]] = field(default_factory=list)
    sent: dict[str, tuple[str, str]] = field(default_factory=dict)
    parked: str = ""


class Steps(RuleBasedStateMachine):
    """One shard with an hour's retention, and a queue in which each key has one running place."""

    def __init__(self) -> None:
        super().__init__()
        self.view = DictView(now_ms=1_000_000)
        self.numbers = count()
        self.known: dict[str, Known] = {}
        self._ask(SetFlow(FlowRule(TENANT, "order", 1, PerKey(), 0)))

    @rule(key=st.sampled_from(["", "k"]), ttl_s=st.sampled_from([0, 0, 60]))
    def create(self, key: str, ttl_s: int) -> None:
        """Create a task."""
        create = Create(
            id=f"{next(self.numbers):0>8}",
            tenant=TENANT,
            command="order",
            payload="1",
            priority=0,
            max_attempts=2,
            ttl_ms=1000 * ttl_s,
            key=key,
        )
        self._ask(CreateKeyed(create) if key else create)
        self.known[create.id] = Known()

    @rule(most=st.integers(1, 3))
    def claim(self, most: int) -> None:
        """Claim; nobody gets a task that waits."""
        outcome = self._ask(
            Claim(
                request=f"c{next(self.numbers)}",
                tenant=TENANT,
                worker="ann",
                commands=("order",),
                count=most,
                lease_ms=LEASE_MS,
            )
        )
        assert isinstance(outcome, Claimed)
        for task in outcome.tasks:
            assert not self.known[task.id].parked
            assert [step.name for step in steps_of(self.view, task)] == [*self.known[task.id].steps]

    @rule(index=indices, name=names, value=st.sampled_from(["1", "2"]), stale=st.booleans())
    def record(self, index: int, name: str, value: str, *, stale: bool) -> None:
        """Record a step, also one that is recorded, and under a lease that is lost."""
        task = self._pick(index, State.LEASED)
        if task is None:
            return
        known = self.known[task.id]
        outcome = self._ask(
            RecordStep(
                id=task.id,
                tenant=TENANT,
                worker="ann",
                name=name,
                value=value,
                extend_ms=LEASE_MS,
                token=task.lease_token + stale,
            )
        )
        before = known.steps.get(name)
        if stale:
            assert outcome == Rejected(Rejection.LEASE_LOST)
        elif before is not None and before != value:
            assert outcome == Rejected(Rejection.STEP_CONFLICT)
        else:
            assert isinstance(outcome, StepStands)
            assert (outcome.step.value, outcome.step.is_open) == (value, False)
            assert outcome.lease_until_ms == self.view.tasks[task.id].lease_until_ms
            assert outcome.lease_until_ms >= task.lease_until_ms
            attempts = task.attempts if before is not None else 1
            assert self.view.tasks[task.id].attempts == attempts
            known.steps[name] = value

    @rule(
        index=indices,
        name=st.sampled_from("abw"),
        signal=st.sampled_from(["", "go", "stop"]),
        wait_s=st.sampled_from([0, 5, 20, 90]),
        keeps=st.booleans(),
        again=st.booleans(),
    )
    def park(
        self, index: int, name: str, signal: str, wait_s: int, *, keeps: bool, again: bool
    ) -> None:
        """Park a task, perhaps at a wait that is over, and perhaps twice."""
        task = self._pick(index, State.LEASED)
        if task is None:
            return
        known, now_ms = self.known[task.id], self.view.now_ms
        operation = Park(
            id=task.id,
            tenant=TENANT,
            worker="ann",
            step=name,
            signal=signal,
            until_ms=0 if wait_s else 1,
            wait_ms=1000 * wait_s,
            keeps_key=keeps,
            extend_ms=LEASE_MS,
            token=task.lease_token,
        )
        outcome = self._ask(operation)
        before = known.steps.get(name)
        if isinstance(before, str) or (before is not None and before.signal != signal):
            assert outcome == Rejected(Rejection.STEP_CONFLICT)
            return
        wait = before or Wait(signal, now_ms + 1000 * wait_s)
        known.steps[name] = wait
        if not wait.ended:
            found = next((each for each in known.unread if each[0] == signal), None)
            if found is not None:
                known.unread.remove(found)
                wait.ended = found[1]
            elif wait.until_ms <= now_ms:
                wait.ended = "time"
        assert isinstance(outcome, StepStands)
        assert outcome.step.is_open == (not wait.ended)
        after = self.view.tasks[task.id]
        if wait.ended:
            assert outcome.step.value == wait.ended.removeprefix("time")
            assert after.state is State.LEASED
            return
        known.parked = name
        assert (after.state, after.attempts) == (State.DELAYED, task.attempts - 1)
        assert after.history == task.history
        reason = Reason.EXPIRING if 0 < after.expires_ms <= now_ms else Reason.PARKED
        assert reason is explain(after, Facts(now_ms=now_ms, signal=signal)).reason
        if again:
            assert self._ask(operation) == outcome

    @rule(
        index=indices,
        name=st.sampled_from(["go", "stop"]),
        payload=st.sampled_from(["7", "8"]),
        key=st.sampled_from(["", "", "x", "y"]),
    )
    def signal(self, index: int, name: str, payload: str, key: str) -> None:
        """Send a signal to any task; the second one of a key is a retry."""
        task = self._pick(index, *State)
        if task is None:
            return
        known = self.known[task.id]
        request = f"s{next(self.numbers)}"
        outcome = self._ask(
            SendSignal(
                request=request, id=task.id, tenant=TENANT, name=name, payload=payload, key=key
            )
        )
        if key in known.sent:
            same = known.sent[key] == (name, payload)
            conflict = Rejected(Rejection.IDEMPOTENCY_CONFLICT)
            assert outcome == (Signalled(replay=True) if same else conflict)
        elif task.state.terminal:
            assert outcome == Rejected(Rejection.ALREADY_TERMINAL)
        else:
            assert outcome == Signalled()
            known.sent[key or request] = name, payload
            wait = known.steps.get(known.parked)
            if isinstance(wait, Wait) and wait.signal == name:
                wait.ended, known.parked = payload, ""
                assert self.view.tasks[task.id].state in (State.READY, State.HELD)
            else:
                known.unread.append((name, payload))
                assert self.view.tasks[task.id].state is task.state

    @rule(index=indices, how=st.sampled_from([*_END]))
    def give_back(self, index: int, how: str) -> None:
        """End a delivery."""
        task = self._pick(index, State.LEASED)
        if task is not None:
            self._ask(replace(_END[how], request=f"w{next(self.numbers)}", id=task.id))

    @rule(index=indices)
    def cancel(self, index: int) -> None:
        """Cancel a task that has not ended."""
        task = self._pick(index, State.READY, State.DELAYED, State.HELD, State.LEASED)
        if task is not None:
            self._ask(Cancel(request=f"x{next(self.numbers)}", tenant=TENANT, id=task.id))
            self.known[task.id].parked = ""

    @rule(index=indices, patched=st.booleans())
    def requeue(self, index: int, *, patched: bool) -> None:
        """Requeue a dead letter; with another payload it begins with no steps."""
        task = self._pick(index, State.DEAD)
        if task is None:
            return
        name: dict[str, Any] = {"request": f"r{next(self.numbers)}", "tenant": TENANT, "by": "ops"}
        if patched:
            self._ask(Revise(**name, id=task.id, payload="2", endings=task.endings))
            self.known[task.id].steps.clear()
        else:
            self._ask(Requeue(**name, ids=(task.id,)))

    @rule(index=indices)
    def delete(self, index: int) -> None:
        """Delete an ended task; what stands beside it goes with it."""
        task = self._pick(index, State.DONE, State.FAILED, State.DEAD)
        if task is not None:
            request = f"d{next(self.numbers)}"
            self._ask(Delete(request=request, tenant=TENANT, ids=(task.id,), by="ops"))

    @rule(passed_s=st.sampled_from([1, 4, 7, 30, 4000]), most=st.sampled_from([1, 100]))
    def wait(self, passed_s: int, most: int) -> None:
        """Let time pass and act, perhaps in steps."""
        self.view.now_ms += passed_s * 1000
        self._ask(Advance(count=most))

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        """Check steps, signals and counts of each task, and the rows of keys."""
        lanes: dict[tuple[str, str], Lane] = {}
        rows = self.view.items.values()
        steps, signals = dict.fromkeys(self.known, 0), dict.fromkeys(self.known, 0)
        for row in rows:
            if isinstance(row, Step | Signal):
                task_id = row.id.partition(".")[0]
                assert task_id in self.view.tasks
                (steps if isinstance(row, Step) else signals)[task_id] += 1
        for task in self.view.tasks.values():
            count_in_lane(lanes, task)
            known = self.known[task.id]
            assert task.parked_at == known.parked
            found = steps_of(self.view, task)
            assert {step.name: _seen(step) for step in found} == {
                name: (each, "", True) if isinstance(each, str) else _wanted(each)
                for name, each in known.steps.items()
            }
            assert (steps[task.id], signals[task.id]) == (len(known.steps), len(known.sent))
            beside = [
                row
                for kind in (ItemKind.STEP, ItemKind.SIGNAL)
                for row in self.view.beside(kind, TENANT, task.id)
                if isinstance(row, Step | Signal)
            ]
            read = [row for row in beside if isinstance(row, Signal) and not row.is_read]
            read.sort(key=lambda row: row.seq)
            assert [(row.name, row.payload) for row in read] == known.unread
            arrival = Arrival(
                task=task,
                payload=self.view.payload(task.id),
                result=self.view.result(task.id),
                beside=tuple(beside),
            )
            assert not fault(arrival)
        assert lanes == {(row.tenant, row.id): row for row in rows if isinstance(row, Lane)}

    def _pick(self, index: int, *states: State) -> Task | None:
        found = [task for _, task in sorted(self.view.tasks.items()) if task.state in states]
        return found[index % len(found)] if found else None

    def _ask(self, operation: Operation) -> Outcome:
        decision = decide(self.view, operation, RULES)
        check_changes(decision)
        check_arrows(operation, decision)
        self.view.advance(decision.changes)
        if isinstance(operation, Advance):
            self._time_out()
        return decision.outcome

    def _time_out(self) -> None:
        """End the waits of tasks that time has woken; one that its time to live ends stays open."""
        for task_id, known in self.known.items():
            task = self.view.tasks.get(task_id)
            if not known.parked or (task is not None and task.state is State.DELAYED):
                continue
            wait = known.steps[known.parked]
            assert isinstance(wait, Wait)
            assert task is not None
            if task.state is not State.DEAD:
                assert wait.until_ms <= self.view.now_ms
                wait.ended = "time"
            known.parked = ""


def _seen(step: Step) -> tuple[str, str, bool]:
    return step.value, step.signal, not step.is_open


def _wanted(wait: Wait) -> tuple[str, str, bool]:
    return wait.ended.removeprefix("time"), wait.signal, bool(wait.ended)


def test_steps_agree_with_a_model() -> None:
    """What is recorded stays with its task, whoever ends what, in every order."""
    run_state_machine_as_test(
        Steps, settings=settings(max_examples=150, stateful_step_count=50, deadline=None)
    )
