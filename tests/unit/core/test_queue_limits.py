"""Limits of a whole queue: how many of its tasks run at once, and how often they are claimed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from codeq_cluster.core.bulk import STEP_MS, ActionKind, BulkAction, BulkJob, StartBulk
from codeq_cluster.core.explaining import Facts, Reason, explain
from codeq_cluster.core.gate import Gate, PerQueue
from codeq_cluster.core.lane import Flow, PerKey
from codeq_cluster.core.new_task import CreateKeyed, CreateUnique
from codeq_cluster.core.operations import Abandon, DeleteTopic, PutFlow, PutTopic, Requeue, Revise
from codeq_cluster.core.outcomes import Changed, Rejected, Rejection, TopicStands
from codeq_cluster.core.placing import is_apart, without_keys
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.selecting import Selection
from codeq_cluster.core.sharding import shard_of_queue, with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State
from codeq_cluster.core.unique import UniqueTerms

from .shard import NOW_MS, Shard, create, submit

TOKEN_MS = 1000
SLOW = PerQueue(rate=Rate(1))  # A token a second, and none saved up.


class Limited(Shard):
    """A queue with a limit, on the home shard of its topic."""

    def __init__(self, rule: PerQueue | None = SLOW, *, shards: int = 1) -> None:
        super().__init__(LifetimeRules(shards=shards))
        self.put(rule)

    def put(self, rule: PerQueue | None, per_key: PerKey | None = None) -> object:
        """Put the rules in force."""
        request = f"{rule} {per_key} {self.view.now_ms}"
        topic = PutTopic(request=request, tenant="acme", name="render", by="ops")
        put = PutFlow(topic=topic, per_key=per_key, shards=1, per_queue=rule)
        outcome = self.ask(put)
        self.wait(0)
        return outcome

    def take(self, count: int = 9) -> list[str]:
        """Claim all that is there."""
        return self.claim(count=count, request=f"claim {self.view.now_ms} {len(self.view.tasks)}")

    @property
    def gate(self) -> Gate | None:
        """Return what the queue has spent, if it has."""
        return self.view.gates.get(("acme", "render"))


def test_a_claim_gets_no_more_than_may_run_at_once() -> None:
    """What ends makes room, at once."""
    shard = Limited(PerQueue(max_running=2))
    for each in "abcd":
        shard.create(each)

    assert ["a", "b"] == shard.take()
    assert [] == shard.claim(request="other")
    shard.ask(submit(id="a", token=1))
    assert ["c"] == shard.claim(count=9, request="third")
    shard.put(PerQueue(max_running=3))
    assert ["d"] == shard.claim(count=9, request="fourth")


def test_the_next_task_goes_when_the_token_comes_and_not_before() -> None:
    """Nobody polls: the queue's row has the instant, and a retry costs a token too."""
    shard = Limited()
    for each in "abc":
        shard.create(each)

    assert ["a"] == shard.take()
    assert shard.gate is not None
    assert NOW_MS + TOKEN_MS == shard.gate.opens_ms == shard.gate.end_ms
    shard.ask(Abandon(request="x", id="a", tenant="acme", worker="ann", token=1))
    shard.wait(TOKEN_MS - 1)
    assert [] == shard.take()
    shard.wait(1)
    assert ["b"] == shard.take()
    shard.wait(2 * TOKEN_MS)
    assert shard.gate is None, "nothing is left to remember"
    assert ["c"] == shard.take()


def test_a_batch_spends_what_was_saved_up() -> None:
    """Then it gets a token at a time; a task that costs more waits for more."""
    shard = Limited(PerQueue(rate=Rate(1, 1, 3)))
    for each in "abcd":
        shard.create(each)
    shard.create("dear", cost=3)

    assert ["a", "b", "c"] == shard.take()
    shard.wait(TOKEN_MS)
    assert ["d"] == shard.take()
    shard.wait(TOKEN_MS)
    assert [] == shard.take()
    assert shard.gate is not None
    assert NOW_MS + 4 * TOKEN_MS == shard.gate.opens_ms
    shard.wait(2 * TOKEN_MS)
    assert ["dear"] == shard.take()
    assert Rejected(Rejection.INVALID_COST, "3") == shard.ask(create("dearer", cost=4))


def test_a_shut_queue_holds_up_no_other() -> None:
    """Whether a claim names its queues or takes what there is."""
    shard = Limited()
    for each in "abc":
        shard.create(each)
    shard.create("free", command="thumb")
    shard.create("more", command="thumb")

    assert ["a", "free"] == sorted(shard.claim(count=2, commands=("render", "thumb")))
    assert ["more"] == shard.claim(count=9, commands=(), request="any")
    assert [] == shard.claim(count=9, commands=(), request="again")


@given(
    rate=st.builds(Rate, st.integers(1, 50), st.integers(1, 5), st.integers(1, 9)),
    most=st.integers(0, 5),
    steps=st.lists(
        st.tuples(st.integers(0, 700), st.integers(1, 4), st.integers(1, 9)), max_size=25
    ),
)
def test_no_window_has_more_than_the_burst_and_what_the_rate_adds(
    rate: Rate, most: int, steps: list[tuple[int, int, int]]
) -> None:
    """And never do more run than may; whenever there is a token and a place, a claim gets one."""
    shard = Limited(PerQueue(max_running=most, rate=rate))
    gone: list[tuple[int, int]] = []
    running: list[str] = []
    for number, (span_ms, count, cost) in enumerate(steps):
        for each in range(count):
            shard.create(f"{number}.{each}", cost=min(cost, rate.burst))
        shard.wait(span_ms)
        taken = shard.take(count)
        running += taken
        gone += [(shard.view.now_ms, min(cost, rate.burst)) for _ in taken]
        assert not most or len(running) <= most
        if number % 2 and running:
            token = shard.task(running[0]).lease_token
            shard.ask(submit(id=running.pop(0), request=f"r{number}", token=token))
    for first, (begun_ms, _) in enumerate(gone):
        for spent, (at_ms, _) in enumerate(gone[first:], start=1):
            added = rate.count * (at_ms - begun_ms)
            assert (spent - rate.burst) * rate.per_s * 1000 <= added


def test_a_new_task_belongs_on_the_shard_of_its_queue() -> None:
    """Elsewhere a leader makes none, but says what its key has made there before."""
    shard = Limited(None, shards=4)
    home = shard_of_queue("acme", "render", 4)
    here, there = (with_shard("f" * 8, shards=4, wanted=(home + step) % 4) for step in (0, 1))
    old = with_shard("a" * 8, shards=4, wanted=(home + 1) % 4)
    shard.create(old, idempotency_key="k", fingerprint="f")
    shard.put(SLOW)

    assert Rejected(Rejection.MISPLACED, "render") == shard.ask(create(there))
    again = shard.ask(create(there, idempotency_key="k", fingerprint="f"))
    assert old == again.task.id
    shard.create(here)
    more = shard.task(here).more
    assert more is not None
    assert more.pinned
    assert not is_apart(shard.task(here), 4)
    assert without_keys(shard.task(here)).more != more


def test_a_dead_letter_from_before_the_limit_cannot_have_its_unique_key_again() -> None:
    """Another task may hold the key on the queue's shard, which this one does not see."""
    shard = Limited(None, shards=4)
    home = shard_of_queue("acme", "render", 4)
    first, second = (with_shard(each * 8, shards=4, wanted=(home + 1) % 4) for each in "ab")
    for each in (first, second):
        new = create(each, max_attempts=1, unique=UniqueTerms(key=each))
        shard.ask(CreateUnique(new))
    shard.claim(count=2)
    for each in (first, second):
        nack = Abandon(request=f"n{each}", id=each, tenant="acme", worker="ann")
        shard.ask(nack)
    unlimited = shard.ask(Requeue(request="r", tenant="acme", ids=(first,), by="ops"))
    shard.put(SLOW)

    assert Changed(1) == unlimited
    assert State.DEAD is shard.task(second).state
    refused = Rejected(Rejection.KEYS_ELSEWHERE, second)
    alone = Requeue(request="s", tenant="acme", ids=(second,), by="ops")
    assert refused == shard.ask(alone)
    assert Changed(0) == shard.ask(replace(alone, ids=(first, second)))
    endings = shard.task(second).endings
    revise = Revise(request="p", tenant="acme", id=second, by="ops", payload="{}", endings=endings)
    assert refused == shard.ask(revise)
    bulk = BulkAction(kind=ActionKind.REQUEUE)
    shard.ask(
        StartBulk(request="b", tenant="acme", id="b", by="ops", select=Selection(), action=bulk)
    )
    shard.wait(2 * STEP_MS)
    [job] = shard.items(ItemKind.BULK)
    assert isinstance(job, BulkJob)
    assert (2, 0) == (job.selected, job.changed)


def test_a_place_stays_when_the_limit_goes() -> None:
    """Or a key would be looked for on a shard that never had it."""
    shard = Limited()
    shard.put(None)
    shard.ask(DeleteTopic(request="d", tenant="acme", name="render", by="ops"))
    shard.ask(PutTopic(request="again", tenant="acme", name="render", by="ops"))
    [flow] = shard.items(ItemKind.FLOW)
    shard.create("a")
    shard.create("b")

    assert isinstance(flow, Flow)
    assert (None, "render") == (flow.per_queue, flow.pinned)
    assert ["a", "b"] == shard.take()


@pytest.mark.parametrize("rule", [None, SLOW], ids=["without", "with"])
def test_a_topic_that_is_made_again_knows_the_place_of_its_queue(rule: PerQueue | None) -> None:
    """So it shows which shards still have tasks from before, and which follow its end not yet."""
    shard = Limited()
    shard.ask(DeleteTopic(request="d", tenant="acme", name="render", by="ops"))
    [ended] = shard.items(ItemKind.FLOW)
    stands = shard.put(rule)
    [flow] = shard.items(ItemKind.FLOW)

    assert isinstance(ended, Flow)
    assert isinstance(flow, Flow)
    assert isinstance(stands, TopicStands)
    assert ("render", flow.seq) == (stands.topic.pinned, stands.topic.rule_seq)
    assert (flow.seq == ended.seq) == (rule is None), "equal rules are sent nowhere"


def test_a_rule_of_keys_alone_stays_alone() -> None:
    """The tasks of its keys are on many shards; with both from the start they are on one."""
    keyed = Limited(None)
    keyed.put(None, PerKey())
    both = Limited(None)
    both.put(PerQueue(max_running=2), PerKey())
    for each in ("a1", "a2", "b1", "c1"):
        both.ask(CreateKeyed(create(each, key=each[0])))

    assert Rejected(Rejection.KEYS_ELSEWHERE) == keyed.put(SLOW, PerKey())
    assert ["a1", "b1"] == both.take()
    assert [State.HELD, State.READY] == [both.task(each).state for each in ("a2", "c1")]


def test_another_rate_counts_from_its_answer_on() -> None:
    """A faster one lets the next task go at once; without one all go."""
    shard = Limited(PerQueue(rate=Rate(1, 86_400)))
    for each in "abcd":
        shard.create(each)
    shard.take()
    shard.wait(TOKEN_MS)
    assert [] == shard.take()
    shard.put(PerQueue(rate=Rate(2, 1)))
    shard.wait(TOKEN_MS // 2)
    assert ["b"] == shard.take()
    shard.wait(TOKEN_MS // 2)
    assert ["c"] == shard.take()
    shard.put(None)
    assert shard.gate is None


@pytest.mark.parametrize(("until_ms", "reason"), [(0, Reason.NO_CLAIM), (9, Reason.RATE_LIMITED)])
def test_the_rate_says_why_a_task_waits(until_ms: int, reason: Reason) -> None:
    """And until when."""
    shard = Limited()
    shard.create()
    policy = shard.view.policy("acme", "render")
    explained = explain(shard.task(), Facts(now_ms=1, policy=policy, limited_until_ms=until_ms))

    assert (reason, until_ms) == (explained.reason, explained.until_ms)
