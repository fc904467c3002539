"""Limits of queues and keys, beside everything else that makes, holds, returns and ends tasks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from msgspec.structs import replace

from codeq_cluster.core.bulk import ActionKind, BulkAction, StartBulk
from codeq_cluster.core.decide import decide
from codeq_cluster.core.dependencies import CreateDependent, Need, Node, OnDead, RunIf, Terms
from codeq_cluster.core.durable import Park, RecordStep, SendSignal
from codeq_cluster.core.explaining import Facts, Reason, explain
from codeq_cluster.core.gate import Gate, PerQueue
from codeq_cluster.core.gating import shared_limit
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.groups import AddMembers, CreateGroup, OnFailure
from codeq_cluster.core.holds import HOLDS, Nack
from codeq_cluster.core.lane import PerKey
from codeq_cluster.core.new_task import Create, CreateKeyed, CreateTagged, CreateUnique
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Finish,
    Operation,
    Requeue,
    Submit,
)
from codeq_cluster.core.outcomes import Claimed, Rejected
from codeq_cluster.core.reject import Reject
from codeq_cluster.core.selecting import Selection
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task
from codeq_cluster.core.unique import On, UniqueTerms

from . import checks
from .lane_rules import queue_rules
from .lane_rules import rules as key_rules
from .limit_rules import LEASE_MS, QUEUES, RULES, TENANT, LimitRules, queues

# A history that fails is made shorter for five minutes at most; then it is shown.
pytestmark = pytest.mark.timeout(600)

TASKS_MAX = 40  # Of those that producers make.

keys = st.sampled_from(["", "a", "a", "a", "b"])
indexes = st.integers(0, 1000)
terms = st.builds(Terms, run_if=st.sampled_from(RunIf), on_dead=st.sampled_from(OnDead)) | st.just(
    Terms(run_if=RunIf.ENDED)
)
uniques = st.builds(
    UniqueTerms, key=st.sampled_from("uv"), on=st.sampled_from([On.REPLACE, On.KEEP_LAST])
)
ENDS = ("done", "done", "failed", "nack", "nack", "abandon", "undelivered", "reject", "next")
ACTIONS = (
    BulkAction(kind=ActionKind.CANCEL),
    BulkAction(kind=ActionKind.REQUEUE),
    BulkAction(kind=ActionKind.DELETE),
    BulkAction(kind=ActionKind.PRIORITY, priority=7),
    BulkAction(kind=ActionKind.RUN_NOW),
)


class Together(LimitRules):
    """All that may become of tasks while the limits of their queues change."""

    @initialize(
        of_key=key_rules.filter(bool),
        own=st.none() | queue_rules,
        of_limit=queue_rules,
        stay=st.booleans(),
    )
    def begin(
        self, *, of_key: PerKey, own: PerQueue | None, of_limit: PerQueue, stay: bool
    ) -> None:
        """Let both queues share a limit, and the keys of one have a rule; some tasks wait."""
        self.limits_stay = stay
        self.put_limit(of_limit)
        self.put_flow("charge", of_key, own, shares=True)
        self.put_flow("refund", None, None, shares=True)
        for queue in QUEUES:
            self.create(queue=queue, key="a", many=4, priority=0, delay_ms=0, ttl_ms=0)

    # -- what producers do -----------------------------------------------------------------------

    @precondition(lambda self: len(self.view.tasks) < TASKS_MAX)
    @rule(
        queue=queues,
        key=keys,
        many=st.integers(1, 4),
        priority=st.sampled_from([0, 0, 5]),
        delay_ms=st.sampled_from([0, 0, 0, 800]),
        ttl_ms=st.sampled_from([0, 0, 0, 2000]),
    )
    def create(
        self, *, queue: str, key: str, many: int, priority: int, delay_ms: int, ttl_ms: int
    ) -> None:
        """Create tasks."""
        for _ in range(many):
            create = replace(
                self._create(queue, key), priority=priority, delay_ms=delay_ms, ttl_ms=ttl_ms
            )
            tagged = replace(create, tags=(("of", "bulk"),))
            self.ask(CreateKeyed(tagged) if key else CreateTagged(tagged))

    @precondition(lambda self: len(self.view.tasks) < TASKS_MAX)
    @rule(queue=queues, key=keys, unique=uniques, many=st.integers(1, 2))
    def create_unique(self, queue: str, key: str, unique: UniqueTerms, many: int) -> None:
        """Create tasks that may take the place of another one, or wait for it."""
        for _ in range(many):
            self.ask(CreateUnique(replace(self._create(queue, key), unique=unique)))

    @precondition(lambda self: 0 < len(self.view.tasks) < TASKS_MAX)
    @rule(queue=queues, key=keys, of=st.lists(st.tuples(indexes, terms), min_size=1, max_size=2))
    def create_dependent(self, queue: str, key: str, of: list[tuple[int, Terms]]) -> None:
        """Create a task that waits for others."""
        found = {self._pick(index, *State).id: each for index, each in of}
        needs = tuple(Need(parent=name, name=name, terms=each) for name, each in found.items())
        self.ask(CreateDependent(Node(self._create(queue, key), needs)))

    @precondition(lambda self: len(self.view.tasks) < TASKS_MAX)
    @rule(
        queue=queues,
        of_keys=st.lists(keys, max_size=4),
        name=st.sampled_from(["g", "h"]),
        failure=st.sampled_from(OnFailure),
        seal=st.booleans(),
    )
    def add_to_group(
        self, queue: str, of_keys: list[str], name: str, failure: OnFailure, *, seal: bool
    ) -> None:
        """Begin a group, or add members to it; its last end makes a task of the other queue."""
        tasks = tuple(replace(self._create(queue, key), id="", tenant="") for key in of_keys)
        if (ItemKind.GROUP, TENANT, name) in self.view.items:
            request = self.name("r")
            self.ask(AddMembers(tenant=TENANT, id=name, name=request, tasks=tasks, seal=seal))
            return
        then = Create(command="refund" if queue == "charge" else "charge", payload="0", key="a")
        self.ask(
            CreateGroup(
                tenant=TENANT,
                id=name,
                digest="",
                then=then,
                on_failure=failure,
                tasks=tasks,
                seal=seal,
            )
        )

    # -- what workers do -------------------------------------------------------------------------

    @rule(
        asked=st.sets(queues),
        most=st.integers(1, 5),
        pause_ms=st.sampled_from([0, 500, 1000]),
        ends=st.lists(st.sampled_from(ENDS), max_size=3),
    )
    def work(self, asked: set[str], most: int, pause_ms: int, ends: list[str]) -> None:
        """Claim after a pause; end some of what is handed out, and claim again."""
        self.rest(pause_ms)
        for task, end in zip(self.claim(asked, most), ends, strict=False):
            self._end(task, end, "a")
        self.claim(asked, most)

    @precondition(lambda self: self._leased)
    @rule(index=indexes, end=st.sampled_from(ENDS), key=keys)
    def end(self, index: int, end: str, key: str) -> None:
        """End a delivery."""
        self._end(self._pick(index, State.LEASED), end, key)

    def _end(self, task: Task, end: str, key: str) -> None:
        held: dict[str, Any] = {
            "request": self.name("w"),
            "id": task.id,
            "tenant": TENANT,
            "worker": "ann",
        }
        done = Submit(**held, status="COMPLETED", body="1")
        follow = replace(self._create("charge", key), id="", tenant="")
        ends: dict[str, Operation] = {
            "done": done,
            "failed": Submit(**held, status="FAILED", error="broken"),
            "nack": Nack(**held, delay_ms=1500),
            "abandon": Abandon(**held),
            "undelivered": Abandon(**held, token=task.lease_token, undelivered=True),
            "reject": Reject(**held),
            "next": Finish(submit=done, next=(follow,), digest="d", shards=1),
        }
        self.ask(ends[end])

    @precondition(lambda self: self._leased)
    @rule(
        index=indexes,
        scope=st.sampled_from(["key", "queue", "limit"]),
        span_ms=st.integers(1, 3000),
    )
    def hold(self, index: int, scope: str, span_ms: int) -> None:
        """Give a task back, and let nothing of its key, its queue or the limit go."""
        task, watch = self._pick(index, State.LEASED), self.watch
        nack = Nack(
            id=task.id, tenant=TENANT, worker="ann", request=self.name("w"), delay_ms=span_ms
        )
        key, until_ms = watch.lives[task.id].key, self.view.now_ms + span_ms
        if isinstance(self.ask(HOLDS[scope](nack=nack)), Rejected):
            return
        if scope == "key":
            watch.held_ms[key] = max(until_ms, watch.held_ms.get(key, 0))
        else:
            of = watch.limit if scope == "limit" else watch.own[key[0]]
            of.held_ms = max(of.held_ms, until_ms)

    @precondition(lambda self: self._leased)
    @rule(
        index=indexes,
        step=st.sampled_from("stuv"),
        wait_ms=st.sampled_from([0, 900, 5000]),
        keeps_key=st.booleans(),
    )
    def step(self, index: int, step: str, wait_ms: int, *, keeps_key: bool) -> None:
        """Record a step, or wait without a lease."""
        task = self._pick(index, State.LEASED)
        held: dict[str, Any] = {"id": task.id, "tenant": TENANT, "worker": "ann"}
        if wait_ms:
            said: dict[str, Any] = {"signal": "go", "wait_ms": wait_ms, "keeps_key": keeps_key}
            self.ask(Park(**held, step=f"wait-{step}", extend_ms=LEASE_MS, **said))
        else:
            self.ask(RecordStep(**held, name=step, value="1", extend_ms=LEASE_MS))

    # -- what others do --------------------------------------------------------------------------

    @precondition(lambda self: self.view.tasks)
    @rule(index=indexes)
    def signal(self, index: int) -> None:
        """Send a signal, to a task that waits for one if there is any."""
        parked = [task for task in self.view.tasks.values() if task.parked_at]
        task = parked[index % len(parked)] if parked else self._pick(index, *State)
        request = self.name("s")
        self.ask(SendSignal(request=request, id=task.id, tenant=TENANT, name="go", payload="1"))

    @precondition(lambda self: self.view.tasks)
    @rule(index=indexes, grace_ms=st.sampled_from([-1, 0, 1000]), dependents=st.booleans())
    def cancel(self, index: int, grace_ms: int, *, dependents: bool) -> None:
        """Cancel a task, at once or with a grace, perhaps with what waits for it."""
        task, request = self._pick(index, *State), self.name("x")
        name: dict[str, Any] = {"request": request, "id": task.id, "tenant": TENANT}
        if grace_ms < 0:
            self.ask(Cancel(**name))
        else:
            self.ask(AskCancel(**name, grace_ms=grace_ms, dependents=dependents))

    @rule(index=indexes)
    def requeue(self, index: int) -> None:
        """Revive a dead letter."""
        dead = [task.id for task in self.view.tasks.values() if task.state is State.DEAD]
        if dead:
            ids = (dead[index % len(dead)],)
            self.ask(Requeue(request=self.name("q"), tenant=TENANT, ids=ids, by="op"))

    @rule(action=st.sampled_from(ACTIONS), queue=st.sampled_from(["", *QUEUES]))
    def bulk(self, action: BulkAction, queue: str) -> None:
        """Begin a job over the tasks of a queue that were created with its tag."""
        select = Selection(queue=queue, tags=(("of", "bulk"),))
        name, request = self.name("job"), self.name("b")
        self.ask(
            StartBulk(
                request=request, tenant=TENANT, id=name, by="op", select=select, action=action
            )
        )

    @rule(span_ms=st.sampled_from([0, 1, 300, 1000, 3000, LEASE_MS]), whole=st.booleans())
    def wait(self, span_ms: int, *, whole: bool) -> None:
        """Let time pass, and act on all that is due, or on one thing."""
        if whole:
            self.rest(span_ms)
        else:
            self.view.now_ms += span_ms
            self.ask(Advance(count=1))

    # -- why tasks wait --------------------------------------------------------------------------

    @invariant()
    def a_claim_gets_what_is_said_to_wait_for_one(self) -> None:
        """Let the next task of a queue go with a claim, or give the reason why none may go."""
        for queue in () if self._has_due else QUEUES:
            ready = next(self.view.ready(TENANT, queue), None)
            if ready is None:
                continue
            decision = decide(self.view, checks.look(TENANT, queue), RULES)
            assert isinstance(decision.outcome, Claimed)
            got = [task.id for task in decision.outcome.tasks]
            reason = explain(self.view.tasks[ready[-1]], self._facts(queue)).reason

            # A claim may be the first to see that tokens are lacking, which shuts a gate.
            if reason is not Reason.NO_CLAIM:
                assert not got
            elif not any(isinstance(each.after, Gate) for each in decision.changes):
                assert [ready[-1]] == got

    def _facts(self, queue: str) -> Facts:
        view = self.view
        gate = view.gates.get((TENANT, queue))
        return Facts(
            now_ms=view.now_ms,
            policy=view.policy(TENANT, queue),
            leased=view.leased(TENANT, queue),
            held_until_ms=gate.held_until_ms if gate is not None else 0,
            limited_until_ms=gate.opens_ms if gate is not None else 0,
            limit=shared_limit(view, TENANT, queue),
        )

    # -- inside ----------------------------------------------------------------------------------

    @property
    def _leased(self) -> list[Task]:
        return [task for task in self.view.tasks.values() if task.state is State.LEASED]

    def _pick(self, index: int, *states: State) -> Task:
        found = [task for task in self.view.tasks.values() if task.state in states]
        return found[index % len(found)]

    def _create(self, queue: str, key: str) -> Create:
        name = self.name("t")
        return Create(
            id=name, tenant=TENANT, command=queue, payload=name[1:], max_attempts=2, key=key
        )


TestTogether = Together.TestCase
TestTogether.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
