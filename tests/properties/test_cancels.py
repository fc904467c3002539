"""Cancels with a grace, against a model: who has been asked, by when, and how each task may end."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.decide import decide
from codeq_cluster.core.durable import Park, RecordStep, SendSignal
from codeq_cluster.core.faults import task_fault
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.holds import HoldKey, Nack
from codeq_cluster.core.lane import FlowRule, PerKey, SetFlow
from codeq_cluster.core.new_task import Create, CreateKeyed
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Heartbeat,
    Operation,
    Requeue,
    Submit,
)
from codeq_cluster.core.outcomes import (
    Cancelled,
    Extended,
    Outcome,
    Rejected,
    Rejection,
    Returned,
    Submitted,
)
from codeq_cluster.core.progress import Progress
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import State, Task, cancelling_of
from codeq_cluster.core.transitions import CANCELLED
from tests.fakes.dict_view import DictView

from .checks import check_arrows, check_changes

TENANT = "acme"
LEASE_MS = 60_000
RULES = LifetimeRules(retention_ms=10**9, dlq_retention_ms=10**9, overtime_ms=1000)
TASKS = tuple(f"t{number}" for number in range(4))


class World:
    """Four tasks of one shard, two of them with a key, each asked to end in every way."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.view = DictView(now_ms=1_000_000)
        self.numbers = count()
        # By task: until when it has to end, and whether what waits for it is to end as well.
        self.asked: dict[str, tuple[int, bool]] = {}
        self._ask(SetFlow(FlowRule(TENANT, "render", 1, PerKey(max_running=2), 0)))
        for name in TASKS:
            create = Create(id=name, tenant=TENANT, command="render", payload="1", max_attempts=3)
            self._ask(CreateKeyed(replace(create, key="k")) if name in TASKS[:2] else create)

    def live(self, steps: int) -> None:
        """Do random things, mostly with tasks that are in progress."""
        random = self.random
        self.claim(4)
        for _ in range(steps):
            leased = [name for name in TASKS if self._task(name).state is State.LEASED]
            name = random.choice(leased if leased and random.random() < 0.8 else TASKS)
            match random.randrange(14):
                case 0 | 1:
                    self.claim(random.randint(1, 4))
                case 2 | 3 | 4:
                    says = random.random() < 0.3
                    self.beat(name, random.choice([1, 1000, LEASE_MS]), says=says)
                case 5:
                    self.submit(name, random.choice(["COMPLETED", "FAILED"]))
                case 6 | 7:
                    self.give_back(name, random.choice(["nack", "hold", "abandon", "undelivered"]))
                case 8:
                    self.step(name, is_step=random.random() < 0.5)
                case 9 | 10 | 11:
                    graces = [0, 1, 1000, LEASE_MS, LEASE_MS, 10 * LEASE_MS]
                    dependents = random.random() < 0.5
                    self.ask_cancel(name, random.choice(graces), dependents=dependents)
                case 12:
                    random.choice([self.cancel, self.requeue])(name)
                case _:
                    self.wait(random.choice([1, 999, 1000, LEASE_MS - 1, LEASE_MS, 5 * LEASE_MS]))
            self.nobody_waits_who_is_to_end()

    # -- what workers say ------------------------------------------------------------------------

    def claim(self, many: int) -> None:
        """Claim some; none of them has been asked to end."""
        claim = Claim(
            request=self._request(),
            tenant=TENANT,
            worker="ann",
            commands=(),
            count=many,
            lease_ms=LEASE_MS,
        )
        outcome = self._ask(claim)
        assert not {task.id for task in getattr(outcome, "tasks", ())} & self.asked.keys()

    def beat(self, name: str, extend_ms: int, says: bool) -> None:
        """Hear exactly of what was asked; the lease never reaches beyond it."""
        held: dict[str, Any] = {
            "id": name,
            "tenant": TENANT,
            "worker": "ann",
            "extend_ms": extend_ms,
        }
        beat = Report(**held, progress=Progress(done=1)) if says else Heartbeat(**held)
        before = self._task(name)
        outcome = self._ask(beat)
        if before.state is not State.LEASED:
            assert isinstance(outcome, Rejected)
            return
        assert isinstance(outcome, Extended)
        assert (outcome.cancelling is None) == (name not in self.asked)
        until_ms = self.view.now_ms + extend_ms
        if outcome.cancelling is not None:
            deadline_ms, dependents = self.asked[name]
            said = outcome.cancelling
            assert (said.deadline_ms, said.dependents) == (deadline_ms, dependents)
            until_ms = min(until_ms, deadline_ms)
        assert outcome.lease_until_ms == until_ms

    def submit(self, name: str, status: str) -> None:
        """End a task with a result: it counts as long as the lease has not ended."""
        before = self._task(name)
        # A repetition of the same result would be answered as the first one.
        body = f"{next(self.numbers)}" if status == "COMPLETED" else ""
        submit = Submit(
            request=self._request(),
            id=name,
            tenant=TENANT,
            worker="ann",
            status=status,
            body=body,
            error=f"{next(self.numbers)}",
        )
        outcome = self._ask(submit)

        assert isinstance(outcome, Submitted) == (before.state is State.LEASED)

    def give_back(self, name: str, how: str) -> None:
        """Give a task back; it ends if it was asked to, and a retry says the same."""
        before = self._task(name)
        of: dict[str, Any] = {
            "request": self._request(),
            "id": name,
            "tenant": TENANT,
            "worker": "ann",
        }
        token = before.lease_token
        operation: Operation = Nack(**of, delay_ms=1000)
        if how == "hold":
            operation = HoldKey(nack=Nack(**of, delay_ms=1000))
        elif how in ("abandon", "undelivered"):
            operation = Abandon(**of, token=token, undelivered=how == "undelivered" and token > 0)
        outcome = self._ask(operation)
        if before.state is not State.LEASED or isinstance(outcome, Rejected):
            return
        assert isinstance(outcome, Returned)
        assert outcome.cancelled == (name in self.asked)
        assert outcome.cancelled == (self._task(name).error == CANCELLED)
        if how != "undelivered":
            assert self._ask(operation) == outcome

    def step(self, name: str, is_step: bool) -> None:
        """Record a step, or wait without a worker; who is to end may do the first alone."""
        before = self._task(name)
        of: dict[str, Any] = {"id": name, "tenant": TENANT, "worker": "ann", "extend_ms": LEASE_MS}
        step = next(self.numbers)
        operation: Operation = (
            RecordStep(**of, name=f"s{step}", value="1")
            if is_step
            else Park(**of, step=f"w{step}", signal="go")
        )
        outcome = self._ask(operation)
        if before.state is State.LEASED and name in self.asked:
            assert isinstance(outcome, Rejected) != is_step
            assert is_step or outcome == Rejected(Rejection.CANCELLING)
        if not is_step and not isinstance(outcome, Rejected):
            self._ask(
                SendSignal(request=self._request(), id=name, tenant=TENANT, name="go", payload="1")
            )

    # -- what others do --------------------------------------------------------------------------

    def ask_cancel(self, name: str, grace_ms: int, dependents: bool) -> None:
        """Ask for a task's end, also again; the deadline never moves back."""
        before = self._task(name)
        ask = AskCancel(
            request=self._request(),
            id=name,
            tenant=TENANT,
            grace_ms=grace_ms,
            reason="why",
            dependents=dependents,
        )
        outcome = self._ask(ask)
        if before.state.terminal:
            assert Rejected(Rejection.ALREADY_TERMINAL) == outcome
            return
        assert isinstance(outcome, Cancelled)
        deadline_ms, others = self.asked.get(name, (self.view.now_ms + grace_ms, False))
        deadline_ms = min(deadline_ms, self.view.now_ms + grace_ms)
        self.asked[name] = deadline_ms, others or dependents
        stays = before.state is State.LEASED and grace_ms > 0
        assert (self._task(name).state is State.LEASED) == stays
        assert isinstance(self._ask(ask), Cancelled)

    def cancel(self, name: str) -> None:
        """Cancel a task at once, whatever time it has."""
        before = self._task(name)
        outcome = self._ask(Cancel(request=self._request(), id=name, tenant=TENANT))

        assert isinstance(outcome, Cancelled) == (not before.state.terminal)
        assert self._task(name).state.terminal

    def requeue(self, name: str) -> None:
        """Revive a dead letter; no cancelled task is one."""
        self._ask(Requeue(request=self._request(), tenant=TENANT, ids=(name,), by="op"))

    def wait(self, passed_ms: int) -> None:
        """Let time pass, and act on what is due."""
        self.view.now_ms += passed_ms
        self._ask(Advance(count=100))
        for name, (deadline_ms, _) in self.asked.items():
            assert self._task(name).state.terminal or self.view.now_ms < deadline_ms

    # -- what always holds -----------------------------------------------------------------------

    def nobody_waits_who_is_to_end(self) -> None:
        """Check that a task that was asked to end is leased by its deadline at most, or ended."""
        for name in TASKS:
            task = self._task(name)
            said = cancelling_of(task)
            assert "" == task_fault(task)
            assert (said is not None) == (name in self.asked)
            if said is not None:
                assert task.state in (State.LEASED, State.DONE, State.FAILED)
                assert task.lease_until_ms <= self.asked[name][0]

    # -- inside ----------------------------------------------------------------------------------

    def _request(self) -> str:
        return f"r{next(self.numbers)}"

    def _task(self, name: str) -> Task:
        task = self.view.task(name)
        assert task is not None
        return task

    def _ask(self, operation: Operation) -> Outcome:
        decision = decide(self.view, operation, RULES)
        check_changes(decision)
        check_arrows(operation, decision)
        self.view.advance(decision.changes)
        return decision.outcome


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_who_is_asked_to_end_has_until_the_deadline(seed: int) -> None:
    """Its result counts until then, and nothing else keeps the task."""
    World(seed).live(40)
