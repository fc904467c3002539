"""Fairness: the published bound on a queue's wait for others, whatever arrives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from codeq_cluster.core.decide import decide
from codeq_cluster.core.fairness import WEIGHT_MAX, Turns
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Claim, Operation, PutTopic
from codeq_cluster.core.outcomes import Claimed, Outcome
from codeq_cluster.core.rules import LifetimeRules
from tests.fakes.dict_view import DictView

QUEUES = ("a", "b", "c", "d")
RULES = LifetimeRules()

weights = st.lists(
    st.one_of(st.sampled_from([1, 1, 2, 3, 7, WEIGHT_MAX]), st.integers(1, WEIGHT_MAX)),
    min_size=2,
    max_size=len(QUEUES),
)


@dataclass(frozen=True)
class Step:
    """Some tasks arrive, then a worker claims.

    Attributes:
        arrivals: Indexes of the queues, one for each task.
        most: Maximum number of tasks of the claim.
        named: Whether the claim names its queues, in reverse; otherwise it takes from all.
    """

    arrivals: list[int]
    most: int
    named: bool


steps = st.lists(
    st.builds(
        Step,
        arrivals=st.lists(st.integers(1, 3), max_size=4),
        most=st.sampled_from([1, 1, 2, 5, 9]),
        named=st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


@dataclass
class Shard:
    """Queues with weights; for each, how often the others were served since its last turn."""

    weights: dict[str, int]
    view: DictView = field(default_factory=DictView)
    served: list[str] = field(default_factory=list)
    since: dict[str, Counter[str]] = field(default_factory=dict)
    _made: int = 0

    def __post_init__(self) -> None:
        for queue, weight in self.weights.items():
            topic = PutTopic(request=queue, tenant="acme", name=queue, by="op", weight=weight)
            self._ask(topic)

    def arrive(self, queue: str, count: int = 1) -> None:
        """Create tasks of one priority."""
        for _ in range(count):
            self._made += 1
            create = Create(id=f"t{self._made}", tenant="acme", command=queue, payload="{}")
            self._ask(create)

    def claim(self, step: Step) -> None:
        """Claim, and check every turn against the bound."""
        commands = tuple(reversed(self.weights)) if step.named else ()
        self._made += 1
        claim = Claim(
            request=f"r{self._made}",
            tenant="acme",
            worker="ann",
            commands=commands,
            count=step.most,
            lease_ms=1_000,
        )
        waiting = Counter(task.command for task in self.view.tasks.values() if task.seq)
        for queue in waiting:
            # The queue has joined, and its wait begins now.
            self.since.setdefault(queue, Counter())
        outcome = self._ask(claim)
        assert isinstance(outcome, Claimed)
        for task in outcome.tasks:
            self._turn(task.command, waiting)

    def _turn(self, queue: str, waiting: Counter[str]) -> None:
        """Note a turn of one queue, and check how long the others have been waiting."""
        self.served.append(queue)
        waiting[queue] -= 1
        self.since[queue] = Counter()
        for other in self.weights:
            if other == queue:
                continue
            if waiting[other] < 1:
                # The bound holds only for queues that always have work.
                self.since.pop(other, None)
            elif other in self.since:
                self.since[other][queue] += 1

                assert self.since[other][queue] <= self._bound(waits=other, served=queue)

    def _bound(self, *, waits: str, served: str) -> int:
        return -(-self.weights[served] // self.weights[waits]) + 1

    def _ask(self, operation: Operation) -> Outcome:
        decision = decide(self.view, operation, RULES)
        self.view.advance(decision.changes)
        return decision.outcome


@given(weights=weights, steps=steps)
@settings(max_examples=300, deadline=None)
def test_between_two_turns_of_a_queue_each_other_is_served_within_the_bound(
    weights: list[int], steps: list[Step]
) -> None:
    """The bound is ceil(w_j / w_i) + 1, for single claims and batches, whatever arrives."""
    shard = Shard(dict(zip(QUEUES, weights, strict=False)))
    names = list(shard.weights)
    shard.arrive(names[0], 40)  # One queue always has work; the others' work is random.
    for step in steps:
        for index in step.arrivals:
            shard.arrive(names[index % len(names)])
        shard.claim(step)


@given(weights=weights)
@settings(max_examples=60, deadline=None)
def test_no_queue_starves_and_each_gets_its_share(weights: list[int]) -> None:
    """Under endless work a queue waits for a bounded time, and gets its weight's share."""
    turns = Turns()
    shares = dict(zip(QUEUES, weights, strict=False))
    total = sum(weights)
    served: Counter[str] = Counter()
    waits = dict.fromkeys(shares, 0)
    rounds = 4
    for _ in range(rounds * total):
        queue = turns.due(shares)
        turns.served(queue, weight=shares[queue])
        served[queue] += 1
        for name, weight in shares.items():
            waits[name] = 0 if name == queue else waits[name] + 1

            assert waits[name] <= sum(
                -(-other // weight) + 1 for each, other in shares.items() if each != name
            )

    for name, weight in shares.items():
        assert abs(served[name] - rounds * weight) <= 1


def test_a_heavy_queue_is_served_in_proportion() -> None:
    """A ratio of 3 to 1 holds in claims of one and in batches, and breaks without weights."""
    for most in (1, 4, 8):
        shard = Shard({"a": 3, "b": 1})
        shard.arrive("a", 40)
        shard.arrive("b", 40)
        for _ in range(16 // most):
            shard.claim(Step(arrivals=[], most=most, named=True))

        assert {"a": 12, "b": 4} == Counter(shard.served)


def test_a_queue_that_was_idle_saves_up_no_turns() -> None:
    """Such a queue joins at the time of the queues being served, and does not shut them out."""
    shard = Shard({"a": 1, "b": 1})
    shard.arrive("a", 30)
    for _ in range(20):
        shard.claim(Step(arrivals=[], most=1, named=True))
    shard.arrive("b", 10)
    shard.claim(Step(arrivals=[], most=6, named=True))

    assert ["b", "b", "a", "b", "a", "b"] == shard.served[20:]
