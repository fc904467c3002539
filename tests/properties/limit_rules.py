"""Limit rules: two queues whose limits change at any time, and what always holds of their tasks."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.durable import Park
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.groups import Group
from codeq_cluster.core.lane import Lane, OwnRule, PerKey, SetKey
from codeq_cluster.core.lanes import count as count_in_lane
from codeq_cluster.core.limit import DeleteLimit, PutLimit
from codeq_cluster.core.operations import (
    Advance,
    Claim,
    Delete,
    DeleteTopic,
    Operation,
    PutFlow,
    PutTopic,
    Requeue,
    Submit,
)
from codeq_cluster.core.outcomes import Changed, Claimed, LimitStands, Outcome, Rejected
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import State, Task
from tests.fakes.dict_view import DictView

from .checks import check_arrows, check_changes
from .lane_rules import own_rules, queue_rules
from .lane_rules import rules as key_rules
from .model_limits import Watch

TENANT = "acme"
QUEUES = ("charge", "refund")
LIMIT = "api"
LEASE_MS = 30_000
YEARS_MS = 10**11
RULES = LifetimeRules(
    backoff_base_ms=500,
    backoff_max_ms=5000,
    retention_ms=YEARS_MS,
    dlq_retention_ms=YEARS_MS,
    key_retention_ms=YEARS_MS,
    audit_retention_ms=YEARS_MS,
)
# At the end of a history: what no task needs longer than, and how often all that can go, goes.
REST_MS = 100_000
ROUNDS_MAX = 400

queues = st.sampled_from(QUEUES)


class LimitRules(RuleBasedStateMachine):
    """Two queues of one tenant on one shard, each with keys, and a limit that they may share."""

    def __init__(self) -> None:
        super().__init__()
        self.view = DictView(now_ms=1_000_000)
        self.watch = Watch(QUEUES)
        self.numbers = count()
        self.limits_stay = False
        self.is_judged = True  # False after a judgement that a change is wrong.

    # -- limits ----------------------------------------------------------------------------------

    @rule(
        queue=queues,
        of_key=key_rules,
        own=st.none() | queue_rules,
        shares=st.booleans(),
        deletes=st.sampled_from([False, False, False, True]),
    )
    def put_rules(
        self,
        queue: str,
        of_key: PerKey | None,
        own: PerQueue | None,
        *,
        shares: bool,
        deletes: bool,
    ) -> None:
        """Give a queue and its keys other rules, or none."""
        if deletes:
            self.delete_topic(queue)
        else:
            self.put_flow(queue, of_key, own, shares=shares)

    def put_flow(
        self, queue: str, of_key: PerKey | None, own: PerQueue | None, *, shares: bool
    ) -> None:
        """Put the rules of a queue and its keys."""
        topic = PutTopic(request=self.name("r"), tenant=TENANT, name=queue, by="op")
        limit = LIMIT if shares else ""
        put = PutFlow(topic=topic, per_key=of_key, shards=1, per_queue=own, limit=limit)
        if not isinstance(self.ask(put), Rejected):
            self._follow(queue, of_key, own, shares=shares)

    def delete_topic(self, queue: str) -> None:
        """End all rules of a queue."""
        request = self.name("r")
        self.ask(DeleteTopic(request=request, tenant=TENANT, name=queue, by="op"))
        self._follow(queue, None, None, shares=False)

    @rule(put=st.none() | queue_rules | queue_rules)
    def change_limit(self, put: PerQueue | None) -> None:
        """Make the limit, change it, or try to delete it."""
        if put is None:
            self.delete_limit()
        else:
            self.put_limit(put)

    def put_limit(self, put: PerQueue) -> None:
        """Make the limit, or change it."""
        request = self.name("r")
        outcome = self.ask(
            PutLimit(request=request, tenant=TENANT, name=LIMIT, by="op", rule=put, shards=1)
        )
        assert isinstance(outcome, LimitStands)
        if put != self.watch.limit.rule:
            self.watch.limit.put(put, self.view.now_ms)

    def delete_limit(self) -> None:
        """Delete the limit, unless a queue shares it."""
        request = self.name("r")
        outcome = self.ask(
            DeleteLimit(request=request, tenant=TENANT, name=LIMIT, by="op", shards=1)
        )
        assert isinstance(outcome, Rejected) == bool(self.watch.shares)
        if isinstance(outcome, Changed):
            self.watch.limit.put(None, self.view.now_ms)

    @rule(queue=queues, key=st.sampled_from("aab"), own=own_rules)
    def set_key(self, queue: str, key: str, own: OwnRule | None) -> None:
        """Give a key a rule of its own, another one, or none."""
        watch, name = self.watch, (queue, key)
        if own != watch.of_key.get(name):
            watch.obey(queue, key)
            watch.of_key |= {name: own} if own is not None else {}
            if own is None:
                del watch.of_key[name]
        request = self.name("r")
        self.ask(SetKey(request=request, tenant=TENANT, queue=queue, key=key, own=own, by="op"))

    # -- claims, and time ------------------------------------------------------------------------

    def claim(self, asked: set[str], most: int) -> list[Task]:
        """Claim from some queues, or from all; what is left may not go."""
        view = self.view
        ready = {task.id for task in view.tasks.values() if task.state is State.READY}
        outcome = self.ask(
            Claim(
                request=self.name("c"),
                tenant=TENANT,
                worker="ann",
                commands=tuple(sorted(asked)),
                count=most,
                lease_ms=LEASE_MS,
            )
        )
        assert isinstance(outcome, Claimed)
        # The next task of a key is ready only after this claim.
        left = {
            task.command
            for task in map(view.tasks.__getitem__, ready)
            if task.state is State.READY and not 0 < task.expires_ms <= view.now_ms
        } & (asked or set(QUEUES))
        goes = [queue for queue in left if self.watch.lets(queue, view.now_ms)]
        assert len(outcome.tasks) == most or not goes, "less than the limits allow"
        return [*outcome.tasks]

    def finish(self, task: Task) -> None:
        """Complete a task that is leased."""
        request = self.name("w")
        self.ask(
            Submit(
                request=request,
                id=task.id,
                tenant=TENANT,
                worker="ann",
                status="COMPLETED",
                body="1",
            )
        )

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def nothing_waits_that_may_go(self) -> None:
        """Once nothing is due, no task is held while there is room for one of its key."""
        if not self._has_due:
            assert not [*self.watch.stuck(self.view.now_ms, with_rates=False)]

    @invariant()
    def nothing_is_lost(self) -> None:
        """Every task stands that was not deleted, and every key's row counts those of its key."""
        assert self.view.tasks == {name: life.task for name, life in self.watch.lives.items()}
        lanes: dict[tuple[str, str], Lane] = {}
        for task in self.view.tasks.values():
            count_in_lane(lanes, task)
        rows = [row for row in self.view.items.values() if isinstance(row, Lane)]
        counted = {(row.tenant, row.id): _counts(row) for row in rows if any(_counts(row))}
        assert {name: _counts(lane) for name, lane in lanes.items()} == counted

    def teardown(self) -> None:
        """End every task, within the limits or after their end: none of them is left behind."""
        if not self.is_judged:
            return
        for queue in QUEUES:
            for key in "ab":
                self.set_key(queue, key, None)
            if not self.limits_stay:
                self.delete_topic(queue)
        for _ in range(ROUNDS_MAX):
            self.rest(REST_MS)
            assert not [*self.watch.stuck(self.view.now_ms, with_rates=True)]
            dead = tuple(task.id for task in self.view.tasks.values() if task.state is State.DEAD)
            if dead:
                self.ask(Requeue(request=self.name("q"), tenant=TENANT, ids=dead, by="op"))
            if all(task.state.terminal for task in self.view.tasks.values()):
                break
            if not self._work_off() and dead:
                # A dead letter may stop its key for the task that holds its unique key by now.
                self.ask(Delete(request=self.name("d"), tenant=TENANT, ids=dead, by="op"))
        else:
            raise AssertionError("tasks that never end")
        groups = [each for each in self.view.items.values() if isinstance(each, Group)]
        assert all(each.ended_ms for each in groups if each.sealed_ms)

    def _work_off(self) -> int:
        """Complete all tasks that may go now; return how many."""
        ended = 0
        while tasks := self.claim(set(), 50):
            for task in tasks:
                self.finish(task)
            ended += len(tasks)
        return ended

    # -- inside ----------------------------------------------------------------------------------

    @property
    def _has_due(self) -> bool:
        return bool(self.view.due(1, leases_too=True) or self.view.lapsed(1))

    def name(self, of: str) -> str:
        """Return a new name."""
        return f"{of}{next(self.numbers)}"

    def _follow(
        self, queue: str, of_key: PerKey | None, own: PerQueue | None, *, shares: bool
    ) -> None:
        watch = self.watch
        if watch.per_key[queue] != of_key:
            watch.per_key[queue] = of_key
            watch.obey(queue)
        watch.own[queue].put(own, self.view.now_ms)
        (watch.shares.add if shares else watch.shares.discard)(queue)

    def rest(self, span_ms: int) -> None:
        """Let time pass and act until nothing is due."""
        self.view.now_ms += span_ms
        for _ in range(ROUNDS_MAX):
            if not self._has_due:
                return
            self.ask(Advance(count=100))
        raise AssertionError("time comes to no rest")

    def ask(self, operation: Operation) -> Outcome:
        """Decide, and let the model judge what becomes of the tasks."""
        view, watch = self.view, self.watch
        decision = decide(view, operation, RULES)
        check_changes(decision)
        check_arrows(operation, decision)
        view.advance(decision.changes)
        watch.begin()
        self.is_judged = False
        keeps_key = isinstance(operation, Park) and operation.keeps_key
        for change in decision.changes:
            if isinstance(change, TaskChange):
                watch.see(change.before, change.after, keeps_key=keeps_key, now_ms=view.now_ms)
        flows = {queue: view.flow(TENANT, queue) for queue in QUEUES}
        watch.settling = {name for name, flow in flows.items() if flow and not flow.is_followed}
        self.is_judged = True
        return decision.outcome


def _counts(lane: Lane) -> tuple[int | str, ...]:
    return lane.running, lane.ready, lane.kept, lane.held, lane.stopped_by
