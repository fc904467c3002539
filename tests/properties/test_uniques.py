"""Unique keys against a model: who holds each of them, who is next, and what was said last."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.explaining import Facts, Reason, explain
from codeq_cluster.core.faults import task_fault
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.lane import FlowRule, Lane, PerKey, SetFlow
from codeq_cluster.core.lanes import count as count_in_lane
from codeq_cluster.core.merging import REPEATED_MS
from codeq_cluster.core.new_task import Create, CreateUnique
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Delete,
    Operation,
    Purge,
    Requeue,
    Revise,
    Submit,
    UndoRequeue,
)
from codeq_cluster.core.outcomes import Changed, Claimed, Created, Outcome, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import State, Task, Until
from codeq_cluster.core.unique import Holder, How, On, UniqueTerms, scope_of, unique_of
from codeq_cluster.core.uniques import count as count_holder
from tests.fakes.dict_view import DictView

from .checks import check_arrows, check_changes

TENANT = "acme"
HOUR_MS = 3_600_000
RULES = LifetimeRules(retention_ms=HOUR_MS, dlq_retention_ms=HOUR_MS, key_retention_ms=2 * HOUR_MS)
ONE_AT_ONCE = FlowRule(TENANT, "render", 1, PerKey(), 0)
_HELD: dict[str, Any] = {"request": "w", "id": "t", "tenant": TENANT, "worker": "ann"}
_END: dict[str, Submit | Nack | Abandon] = {
    "done": Submit(**_HELD, status="COMPLETED", body="1"),
    "failed": Submit(**_HELD, status="FAILED", error="broken"),
    "nack": Nack(**_HELD, delay_ms=3000),
    "abandon": Abandon(**_HELD),
}
WAITING = (State.READY, State.DELAYED, State.HELD)


def _terms(key: str, on: On, until: Until, waits_s: tuple[int, int], times: int) -> UniqueTerms:
    throttle_s, debounce_s = waits_s
    debounce_s = 0 if on is On.REJECT else debounce_s
    return UniqueTerms(
        key=key,
        on=on,
        until=until,
        throttle_ms=1000 * (throttle_s or (20 if until is Until.THROTTLE else 0)),
        debounce_ms=1000 * debounce_s,
        max_wait_ms=1000 * debounce_s * times,
    )


terms = st.builds(
    _terms,
    st.sampled_from("uv"),
    st.sampled_from(On),
    st.sampled_from(Until),
    st.tuples(st.sampled_from([0, 0, 0, 20]), st.sampled_from([0, 0, 5])),
    st.integers(1, 3),
)
# Of a create: its payload, its priority, its delay and its time to live in seconds, its key.
said = st.tuples(
    st.integers(0, 999),
    st.sampled_from([0, 5]),
    st.sampled_from([0, 0, 8]),
    st.sampled_from([0, 0, 0, 60]),
    st.sampled_from(["", "", "k"]),
)


@dataclass
class Known:
    """What the model knows of a task."""

    payload: str
    until: Until
    throttle_ms: int
    start_ms: int
    latest_ms: int
    free_ms: int = 0  # When its throttle lets go; 0 for never.


@dataclass
class Key:
    """What the model knows of a unique key."""

    holder: str = ""
    following: str = ""


@dataclass
class Answered:
    """A create that was answered, for its repetition."""

    create: Create
    how: str
    task_id: str
    at_ms: int


class Uniques(RuleBasedStateMachine):
    """One shard; the model watches states, and knows by itself who holds what and what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.view = DictView(now_ms=1_000_000)
        self.numbers = count()
        self.keys: dict[str, Key] = {}
        self.known: dict[str, Known] = {}
        self.answered: list[Answered] = []
        self.by_once: dict[tuple[str, str], Answered] = {}
        self._ask(SetFlow(ONE_AT_ONCE))

    # -- creates ---------------------------------------------------------------------------------

    @rule(terms=terms, said=said, once=st.sampled_from(["", "", "", "a", "b"]))
    def create(self, terms: UniqueTerms, said: tuple[int, int, int, int, str], once: str) -> None:
        """Create a task, and compare what became of it."""
        number, priority, delay_s, ttl_s, lane = said
        now_ms = self.view.now_ms
        create = Create(
            id=f"t{next(self.numbers)}",
            tenant=TENANT,
            command="render",
            payload=str(number),
            priority=priority,
            max_attempts=2,
            delay_ms=0 if terms.debounce_ms else 1000 * delay_s,
            ttl_ms=1000 * ttl_s,
            key=lane,
            unique=terms,
            idempotency_key=once,
            fingerprint=str(number) if once else "",
        )
        scope = scope_of(create)
        before = self.by_once.get((lane or scope, once)) if once else None
        if before is not None and before.task_id in self.view.tasks:
            if now_ms < before.at_ms + RULES.key_retention_ms:
                self._replayed(create, before)
            return
        key = self.keys.setdefault(scope, Key())
        holder = self.view.task(key.holder) if key.holder else None
        outcome = self._ask(CreateUnique(create))
        if holder is not None and terms.on is On.REJECT:
            assert isinstance(outcome, Rejected)
            assert outcome.rejection is Rejection.UNIQUE_CONFLICT
            assert outcome.limit.split()[:2] == [holder.id, holder.state.name]
            return
        assert isinstance(outcome, Created)
        how, target = _expected(create, holder, key.following)
        assert (outcome.unique, outcome.task.id) == (how, target)
        waits = holder is not None and holder.state in WAITING
        if how in (How.CREATED, How.QUEUED):
            self._made(create, terms, key, how)
        elif how is How.REPLACED or (waits and terms.debounce_ms):
            self._changed(create, terms, target, how)
        found = Answered(create, outcome.unique, target, now_ms)
        if how is not How.RETURNED:
            self.answered.append(found)
        if once:
            self.by_once[lane or scope, once] = found

    def _made(self, create: Create, terms: UniqueTerms, key: Key, how: How) -> None:
        now_ms = self.view.now_ms
        start_ms = now_ms + (terms.debounce_ms or create.delay_ms)
        latest_ms = now_ms + terms.max_wait_ms if terms.debounce_ms else 0
        of = Known(create.payload, terms.until, terms.throttle_ms, start_ms, latest_ms)
        self.known[create.id] = of
        if how is How.CREATED:
            key.holder = create.id
            of.free_ms = now_ms + of.throttle_ms if of.throttle_ms else 0
        else:
            key.following = create.id

    def _changed(self, create: Create, terms: UniqueTerms, target: str, how: How) -> None:
        now_ms, of = self.view.now_ms, self.known[target]
        if terms.debounce_ms:
            of.latest_ms = of.latest_ms or now_ms + terms.max_wait_ms
            of.start_ms = min(now_ms + terms.debounce_ms, of.latest_ms)
        else:
            of.start_ms = now_ms + create.delay_ms
        if how is How.REPLACED:
            of.payload = create.payload
            task = self.view.tasks[target]
            assert task.priority == create.priority
            assert task.expires_ms == (now_ms + create.ttl_ms if create.ttl_ms else 0)

    def _replayed(self, create: Create, before: Answered) -> None:
        tasks = dict(self.view.tasks)
        outcome = self._ask(CreateUnique(create))
        assert self.view.tasks == tasks
        if create.fingerprint != before.create.fingerprint:
            assert outcome == Rejected(Rejection.IDEMPOTENCY_CONFLICT)
            return
        assert isinstance(outcome, Created)
        assert outcome.replay
        assert outcome.task.id == before.task_id

    @rule(index=st.integers(0, 99))
    def repeat(self, index: int) -> None:
        """Send a create again, as a node does whose leader is gone: nothing changes."""
        now_ms = self.view.now_ms
        fresh = [
            each
            for each in self.answered
            if now_ms < each.at_ms + REPEATED_MS and each.task_id in self.view.tasks
        ]
        if not fresh:
            return
        each, tasks = fresh[index % len(fresh)], dict(self.view.tasks)
        outcome = self._ask(CreateUnique(each.create))

        assert self.view.tasks == tasks
        assert isinstance(outcome, Created)
        assert outcome.task.id == each.task_id

    # -- workers, operators, time ----------------------------------------------------------------

    @rule(most=st.integers(1, 3))
    def claim(self, most: int) -> None:
        """Claim; what is handed out says what was said last, and no earlier than that allows."""
        outcome = self._ask(
            Claim(
                request=f"c{next(self.numbers)}",
                tenant=TENANT,
                worker="ann",
                commands=("render",),
                count=most,
                lease_ms=10_000,
            )
        )
        assert isinstance(outcome, Claimed)
        for task in outcome.tasks:
            of = self.known[task.id]
            assert self.view.payload(task.id) == of.payload
            assert self.view.now_ms >= of.start_ms or task.attempts > 1

    @rule(index=st.integers(0, 99), how=st.sampled_from([*_END]))
    def give_back(self, index: int, how: str) -> None:
        """End a delivery."""
        task = self._pick(index, State.LEASED)
        if task is None:
            return
        self._ask(replace(_END[how], request=f"w{next(self.numbers)}", id=task.id))

    @rule(index=st.integers(0, 99), purge=st.booleans())
    def cancel(self, index: int, *, purge: bool) -> None:
        """Cancel a task that has not ended."""
        task = self._pick(index, *WAITING, *(() if purge else (State.LEASED,)))
        if task is None:
            return
        name: dict[str, Any] = {"request": f"x{next(self.numbers)}", "tenant": TENANT}
        if purge:
            self._ask(Purge(**name, queue="render", ids=(task.id,), by="ops"))
        else:
            self._ask(Cancel(**name, id=task.id))

    @rule(index=st.integers(0, 99), how=st.sampled_from(["one", "all", "patched"]))
    def requeue(self, index: int, how: str) -> None:
        """Requeue dead letters; one whose key is held stays dead."""
        dead = [task for task in self.view.tasks.values() if task.state is State.DEAD]
        if not dead:
            return
        first = dead[index % len(dead)]
        named = dead if how == "all" else [first]
        name: dict[str, Any] = {"request": f"r{next(self.numbers)}", "tenant": TENANT, "by": "ops"}
        free: dict[str, str] = {}
        for task in named:
            if not self.keys[scope_of(task)].holder:
                free.setdefault(scope_of(task), task.id)
        if how == "patched":
            payload = str(next(self.numbers))
            outcome = self._ask(Revise(**name, id=first.id, payload=payload, endings=first.endings))
            if free:
                self.known[first.id].payload = payload
        else:
            outcome = self._ask(Requeue(**name, ids=tuple(task.id for task in named)))
        if len(named) == 1 and not free:
            holder = self.keys[scope_of(first)].holder
            assert isinstance(outcome, Rejected)
            assert outcome.limit.split()[0] == holder
            return
        assert outcome == Changed(len(free))
        for scope, task_id in free.items():
            self.keys[scope].holder = task_id
            of = self.known[task_id]
            of.start_ms = 0
            of.free_ms = self.view.now_ms + of.throttle_ms if of.throttle_ms else 0

    @rule(index=st.integers(0, 99))
    def undo(self, index: int) -> None:
        """Take a requeue back."""
        found = [
            task
            for task in self.view.tasks.values()
            if task.history and task.history[-1].outcome == "REQUEUED"
        ]
        if found:
            task = found[index % len(found)]
            self._ask(
                UndoRequeue(
                    request=f"u{next(self.numbers)}",
                    tenant=TENANT,
                    ids=(task.id,),
                    by="ops",
                    requeue=task.history[-1].request,
                )
            )

    @rule(index=st.integers(0, 99))
    def delete(self, index: int) -> None:
        """Delete an ended task."""
        task = self._pick(index, State.DONE, State.FAILED, State.DEAD)
        if task is not None:
            request = f"d{next(self.numbers)}"
            self._ask(Delete(request=request, tenant=TENANT, ids=(task.id,), by="ops"))

    @rule(passed_s=st.sampled_from([1, 2, 4, 7, 11, 30, 4000]), most=st.sampled_from([1, 2, 100]))
    def wait(self, passed_s: int, most: int) -> None:
        """Let time pass and act, perhaps in steps."""
        self.view.now_ms += passed_s * 1000
        self._ask(Advance(count=most))

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def rows_follow_from_tasks(self) -> None:
        """Check the rows of both kinds of keys against a recount, and with the model."""
        holders: dict[tuple[str, str], Holder] = {}
        lanes: dict[tuple[str, str], Lane] = {}
        for task in self.view.tasks.values():
            count_holder(holders, task)
            count_in_lane(lanes, task)
            assert not task_fault(replace(task, id=f"{task.id:0>8}"))
        found = {
            (item.tenant, item.id): item
            for item in self.view.items.values()
            if isinstance(item, Holder)
        }
        assert found == holders
        assert lanes == {
            (item.tenant, item.id): item
            for item in self.view.items.values()
            if isinstance(item, Lane)
        }
        modelled = {
            scope: (key.holder, key.following) for scope, key in self.keys.items() if key.holder
        }
        assert modelled == {row.id: (row.task_id, row.next_id) for row in found.values()}

    @invariant()
    def what_is_next_waits_and_says_why(self) -> None:
        """Check that a task that is next is HELD, and that it says for whom it waits."""
        for key in self.keys.values():
            if key.following:
                task = self.view.tasks[key.following]
                assert task.state is State.HELD
                told = explain(task, Facts(now_ms=self.view.now_ms, before=key.holder))
                assert told.reason in (Reason.KEY_BUSY, Reason.EXPIRING)

    @invariant()
    def every_task_says_what_was_said_last(self) -> None:
        """Check that payloads are those of the last create that was let through."""
        for task_id in self.view.tasks:
            assert self.view.payload(task_id) == self.known[task_id].payload

    # -- inside ----------------------------------------------------------------------------------

    def _pick(self, index: int, *states: State) -> Task | None:
        found = [task for _, task in sorted(self.view.tasks.items()) if task.state in states]
        return found[index % len(found)] if found else None

    def _ask(self, operation: Operation) -> Outcome:
        decision = decide(self.view, operation, RULES)
        check_changes(decision)
        check_arrows(operation, decision)
        self.view.advance(decision.changes)
        changed = [each for each in decision.changes if isinstance(each, TaskChange)]
        for change in changed:
            if change.before is not None and not isinstance(operation, CreateUnique):
                self._watch(change)
        if isinstance(operation, Advance):
            self._throttled(operation)
        for key in self.keys.values():
            if not key.holder and key.following:
                key.holder, key.following = key.following, ""
                of = self.known[key.holder]
                of.free_ms = self.view.now_ms + of.throttle_ms if of.throttle_ms else 0
        return decision.outcome

    def _watch(self, change: TaskChange) -> None:
        """Let go of a key whose holder has ended, been claimed or deleted, as its terms say."""
        before, after = change.before, change.after
        assert before is not None
        key, of = self.keys[scope_of(before)], self.known[before.id]
        if before.id == key.following and (after is None or after.state.terminal):
            key.following = ""
        if before.id != key.holder:
            return
        gone = after is None or after.state is State.DEAD
        ended = after is None or after.state.terminal
        claimed = after is not None and after.state is State.LEASED
        lets_go = {
            Until.ENDED: ended,
            Until.CLAIMED: ended or claimed,
            Until.THROTTLE: gone,
        }
        if lets_go[of.until]:
            key.holder = ""

    def _throttled(self, operation: Advance) -> None:
        """Let go of keys whose throttle is over; an advance in steps may not get to each."""
        for key in self.keys.values():
            if not key.holder:
                continue
            due_ms = self.known[key.holder].free_ms
            unique = unique_of(self.view.tasks[key.holder])
            assert unique is not None
            assert unique.held_until_ms in (0, due_ms)
            over = 0 < due_ms <= self.view.now_ms
            if over and (operation.count == 100 or not unique.held_until_ms):
                key.holder = ""


def _expected(create: Create, holder: Task | None, following: str) -> tuple[How, str]:
    """Return what a create does, and to which task it leads."""
    terms = create.unique
    assert terms is not None
    if holder is None:
        return How.CREATED, create.id
    if terms.on.replaces and following:
        return How.REPLACED, following
    if holder.state in WAITING:
        return (How.REPLACED if terms.on.replaces else How.RETURNED), holder.id
    if terms.on is On.KEEP_LAST:
        return How.QUEUED, create.id
    return How.RETURNED, holder.id


def test_unique_keys_agree_with_a_model_that_watches_tasks() -> None:
    """One task holds a key, one is next, and both say what was said last, in every order."""
    run_state_machine_as_test(
        Uniques, settings=settings(max_examples=150, stateful_step_count=50, deadline=None)
    )
