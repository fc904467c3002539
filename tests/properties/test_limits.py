"""Limits of queues, own and shared, against a model that counts leases and tokens by itself."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.holds import HoldLimit, HoldQueue, Nack
from codeq_cluster.core.limit import DeleteLimit, PutLimit, scope_of_limit
from codeq_cluster.core.operations import Abandon, DeleteTopic, PutFlow, PutTopic
from codeq_cluster.core.outcomes import Changed, LimitStands, Rejected, Rejection, TopicStands
from tests.unit.core.shard import LEASE_MS, Shard, submit

from .lane_rules import queue_rules
from .model_limits import Scope

QUEUES = ("charge", "refund", "render")
LIMIT = "api"
SCOPE = scope_of_limit(LIMIT)

queues = st.sampled_from(QUEUES)
indexes = st.integers(0, 1000)
unlikely = st.sampled_from([False, False, True])
SPANS_MS = (0, 0, 1, 100, 333, 500, 1000, 3000)


class Limits(RuleBasedStateMachine):
    """Three queues of one tenant, and one limit that they may share."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard()
        self.numbers = count()
        self.own = {queue: Scope() for queue in QUEUES}
        self.limit = Scope()
        self.shares: set[str] = set()
        self.pinned: set[str] = set()
        self.queue_of: dict[str, str] = {}
        self.here: set[str] = set()  # Tasks from after their queue was pinned.
        self.ready: set[str] = set()
        self.leases: dict[str, int] = {}  # By task, until when.

    @initialize(of_limit=queue_rules, own=st.none() | queue_rules)
    def begin(self, of_limit: PerQueue, own: PerQueue | None) -> None:
        """Let two queues with many tasks share the limit, and one of them have its own."""
        self.create("render", 8)
        self.put_limit(of_limit)
        for queue in ("charge", "refund"):
            self.put_topic(queue, own if queue == "refund" else None, shares=True)
            self.create(queue, 8)

    @rule(queue=queues, many=st.integers(1, 4))
    def create(self, queue: str, many: int) -> None:
        """Add tasks to a queue."""
        for _ in range(many):
            task_id = f"t{next(self.numbers)}"
            self.shard.create(task_id, command=queue, max_attempts=100)
            self.queue_of[task_id] = queue
            self.ready.add(task_id)
            self.here |= {task_id} if queue in self.pinned else set()

    @rule(queue=queues, own=st.none() | queue_rules, shares=st.sampled_from([True, True, False]))
    def put_topic(self, queue: str, own: PerQueue | None, *, shares: bool) -> None:
        """Let a queue have a limit of its own, or share one, or neither."""
        topic = PutTopic(request=self._request(), tenant="acme", name=queue, by="op")
        limit = LIMIT if shares else ""
        put = PutFlow(topic=topic, per_key=None, shards=1, per_queue=own, limit=limit)
        outcome = self.shard.ask(put)
        if shares and self.limit.rule is None:
            assert Rejected(Rejection.UNKNOWN_LIMIT, LIMIT) == outcome
            return
        assert isinstance(outcome, TopicStands)
        self._follow(queue, own, shares=shares)

    @rule(queue=queues, sure=unlikely)
    def delete_topic(self, queue: str, *, sure: bool) -> None:
        """End the rules of a queue."""
        if not sure:
            return
        self.shard.ask(DeleteTopic(request=self._request(), tenant="acme", name=queue, by="op"))
        self._follow(queue, None, shares=False)

    @rule(put=queue_rules)
    def put_limit(self, put: PerQueue) -> None:
        """Make the limit or change it."""
        request = self._request()
        outcome = self.shard.ask(
            PutLimit(request=request, tenant="acme", name=LIMIT, by="op", rule=put, shards=1)
        )
        assert isinstance(outcome, LimitStands)
        if put != self.limit.rule:
            self.limit.put(put, self.now_ms)

    @rule()
    def delete_limit(self) -> None:
        """Delete the limit, unless a queue names it."""
        outcome = self.shard.ask(
            DeleteLimit(request=self._request(), tenant="acme", name=LIMIT, by="op", shards=1)
        )
        if self.shares:
            assert Rejected(Rejection.LIMIT_IN_USE, ", ".join(sorted(self.shares))) == outcome
            return
        assert Changed(int(self.limit.rule is not None)) == outcome
        self.limit.put(None, self.now_ms)

    @rule(asked=st.sets(queues), most=st.integers(1, 5), span_ms=st.sampled_from(SPANS_MS))
    def claim(self, asked: set[str], most: int, span_ms: int) -> None:
        """Claim after a while: what is handed out may go, and what is left may not."""
        self.wait(span_ms)
        got = self.shard.claim(commands=tuple(sorted(asked)), count=most, request=self._request())
        for task_id in got:
            assert self._lets(self.queue_of[task_id]), "more than a limit allows"
            for scope in self._scopes(self.queue_of[task_id]):
                scope.took(self.now_ms)
            self.ready.remove(task_id)
            self.leases[task_id] = self.now_ms + LEASE_MS
        left = {self.queue_of[each] for each in self.ready} & (asked or set(QUEUES))
        assert len(got) == most or not any(map(self._lets, left)), "less than the limits allow"

    @precondition(lambda self: self.leases)
    @rule(index=indexes, ends=st.sampled_from(["result", "abandon"]))
    def end(self, index: int, ends: str) -> None:
        """End a lease, with the task or without it."""
        task_id = self._leased(index)
        token = self.shard.task(task_id).lease_token
        if ends == "result":
            self.shard.ask(submit(id=task_id, token=token, request=self._request()))
        else:
            request = self._request()
            self.shard.ask(
                Abandon(request=request, id=task_id, tenant="acme", worker="ann", token=token)
            )
            self.ready.add(task_id)
        del self.leases[task_id]

    @precondition(lambda self: self.leases)
    @rule(
        index=indexes,
        of_limit=st.booleans(),
        span_ms=st.integers(1, 3000),
        other=st.none() | queue_rules,
    )
    def hold(self, index: int, span_ms: int, other: PerQueue | None, *, of_limit: bool) -> None:
        """Give a task back, and let nothing of its queue or limit go, whose rule may change."""
        task_id = self._leased(index)
        queue = self.queue_of[task_id]
        nack = Nack(
            id=task_id,
            tenant="acme",
            worker="ann",
            token=self.shard.task(task_id).lease_token,
            request=self._request(),
            delay_ms=span_ms,
        )
        outcome = self.shard.ask(
            HoldLimit(nack=nack, commands=()) if of_limit else HoldQueue(nack=nack, commands=())
        )
        scope = self.own[queue] if not of_limit else self.limit
        is_bound = scope.rule is not None and (not of_limit or queue in self.shares)
        if not is_bound or task_id not in self.here:
            what = "limit" if of_limit else "queue"
            assert Rejected(Rejection.NOTHING_TO_HOLD, what) == outcome
            return
        scope.held_ms = max(scope.held_ms, self.now_ms + span_ms)
        del self.leases[task_id]
        self.ready.add(task_id)
        if other is not None and of_limit:
            self.put_limit(other)

    @rule(span_ms=st.sampled_from([*SPANS_MS, LEASE_MS]))
    def wait(self, span_ms: int) -> None:
        """Let time pass: tokens come, holds and leases end."""
        self.shard.wait(span_ms)
        for task_id in [each for each, until_ms in self.leases.items() if until_ms <= self.now_ms]:
            del self.leases[task_id]
            self.ready.add(task_id)

    @invariant()
    def nothing_is_remembered_without_a_rule(self) -> None:
        """Whoever shares the limit is known, and no gate stays behind."""
        scopes = {**self.own, SCOPE: self.limit}
        assert self.shares == self.shard.view.sharers.get(("acme", SCOPE), set())
        assert {scope for _, scope in self.shard.view.gates} <= {
            name for name, scope in scopes.items() if scope.rule is not None
        }

    @property
    def now_ms(self) -> int:
        """Return the log's clock."""
        return self.shard.view.now_ms

    def _follow(self, queue: str, own: PerQueue | None, *, shares: bool) -> None:
        self.own[queue].put(own, self.now_ms)
        (self.shares.add if shares else self.shares.discard)(queue)
        self.pinned |= {queue} if own is not None or shares else set()

    def _scopes(self, queue: str) -> list[Scope]:
        return [self.own[queue], *([self.limit] if queue in self.shares else [])]

    def _lets(self, queue: str) -> bool:
        together = self.shares if queue in self.shares else set()
        running = [self.queue_of[each] for each in self.leases]
        counts = [running.count(queue), sum(each in together for each in running)]
        scopes = self._scopes(queue)
        return all(
            scope.lets(number, self.now_ms)
            for scope, number in zip(scopes, counts[: len(scopes)], strict=True)
        )

    def _leased(self, index: int) -> str:
        return [*self.leases][index % len(self.leases)]

    def _request(self) -> str:
        return f"request-{next(self.numbers)}"


TestLimits = Limits.TestCase
TestLimits.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
